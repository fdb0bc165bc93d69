"""How are requests spread over several servers that serve the same, and what happens when one of them dies?

A request goes to the replica with the fewest open ones. A replica that fails a request and then does not answer
`/health` is taken out; what it was asked goes to another, once: a request at which two servers died is not given to a
third.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from eagle3ops.engines.client import Answer, EngineClient, EngineError, Sampling

T = TypeVar("T")
_MOST_DEATHS = 2


@dataclass(slots=True)
class _Replica:
    client: EngineClient
    open: int = 0
    served: int = 0
    gone: str | None = None
    """Why it is out."""


class Fleet:
    """Asks several servers; answers as one `EngineClient` does.

    Args:
        clients: of running servers that serve the same; at least one.
        report: told, in a sentence, of every replica that is taken out.
    """

    def __init__(self, clients: Sequence[EngineClient], report: Callable[[str], None] | None = None) -> None:
        if not clients:
            raise ValueError("a fleet has at least one server")
        self._replicas = [_Replica(client) for client in clients]
        self._report = report or (lambda text: None)

    @property
    def clients(self) -> list[EngineClient]:
        """Those that are still asked."""
        return [replica.client for replica in self._replicas if replica.gone is None]

    @property
    def url(self) -> str:
        """Where the first living one answers."""
        return (self.clients or [self._replicas[0].client])[0].url

    @property
    def urls(self) -> list[str]:
        """Where all living ones answer."""
        return [client.url for client in self.clients]

    @property
    def served(self) -> dict[str, int]:
        """Requests answered so far, by address; those of replicas that are gone as well."""
        return {replica.client.url: replica.served for replica in self._replicas}

    async def generate(self, ids: Sequence[int], sampling: Sampling, return_hidden_states: bool = False) -> Answer:
        """See `EngineClient.generate`."""
        return await self._ask(lambda client: client.generate(ids, sampling, return_hidden_states))

    async def generate_batch(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, return_hidden_states: bool = False
    ) -> list[Answer]:
        """See `EngineClient.generate_batch`. The prompts of one call stay together, on one replica."""
        return await self._ask(lambda client: client.generate_batch(prompts, sampling, return_hidden_states))

    async def server_info(self) -> dict[str, Any]:
        """Of one of them."""
        return await self._ask(lambda client: client.server_info())

    async def model_info(self) -> dict[str, Any]:
        """Of one of them."""
        return await self._ask(lambda client: client.model_info())

    async def health(self) -> bool:
        """Whether one at least answers; those that do not are taken out."""
        for replica in self._living():
            if await replica.client.health():
                return True
            self._take_out(replica, "it does not answer /health")
        return False

    def _living(self) -> list[_Replica]:
        return [replica for replica in self._replicas if replica.gone is None]

    async def _ask(self, question: Callable[[EngineClient], Awaitable[T]]) -> T:
        last: EngineError | None = None
        died = 0
        while died < _MOST_DEATHS and (living := self._living()):
            replica = min(living, key=lambda one: (one.open, one.served))
            replica.open += 1
            try:
                answer = await question(replica.client)
            except EngineError as error:
                last = error
                if len(self._replicas) == 1 or await replica.client.health():
                    # It lives, so it is the request that failed: another would fail as well.
                    raise
                self._take_out(replica, error.what)
                died += 1
                continue
            finally:
                replica.open -= 1
            replica.served += 1
            return answer
        raise last or EngineError("none of the servers answers any more: " + "; ".join(self._reasons()))

    def _reasons(self) -> list[str]:
        return [f"{replica.client.url}: {replica.gone}" for replica in self._replicas if replica.gone is not None]

    def _take_out(self, replica: _Replica, why: str) -> None:
        if replica.gone is None:
            replica.gone = why.partition("; the last lines of ")[0]
            self._report(
                f"{replica.client.url} is taken out, {len(self._living())} of {len(self._replicas)} servers are left: "
                f"{replica.gone}"
            )
