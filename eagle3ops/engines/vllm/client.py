"""How is vLLM asked? Token ids in and out by its OpenAI-like API, and states through our extension of its workers."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from eagle3ops.engines.client import Answer, EngineClient, EngineError, EngineRefused, Sampling
from eagle3ops.errors import first_failure

_V2 = "vllm.v1.worker.gpu."
"""Modules of the second model runner; those of the first are called `vllm.v1.worker.gpu_model_runner` and the like."""


class VllmClient(EngineClient):
    """Asks one vLLM server; see `EngineClient`."""

    def __init__(self, url: str, *, log: Path | None = None, timeout_s: float = 3600.0) -> None:
        super().__init__(url, log=log, timeout_s=timeout_s)
        # What the drafter is given belongs to one request as long as there is only one.
        self._one_at_a_time = asyncio.Lock()
        self._watching = False

    async def generate(self, ids: Sequence[int], sampling: Sampling, return_hidden_states: bool = False) -> Answer:
        """See `EngineClient.generate`; `latency_s` is from here to the server and back.

        `hidden_states` are of the prompt only, whatever the answer's length.
        """
        if not return_hidden_states:
            return await self._complete(ids, sampling)
        async with self._one_at_a_time:
            if not self._watching:
                self.notes = (*self.notes, *told_by(await self._workers("eagle3ops_watch")))
                self._watching = True
            await self._workers("eagle3ops_captured")
            answer = await self._complete(ids, sampling)
            return replace(answer, hidden_states=[rows_of(await self._workers("eagle3ops_captured"), ids)])

    async def generate_batch(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        return_hidden_states: bool = False,
        rids: Sequence[str] | None = None,
    ) -> list[Answer]:
        """See `EngineClient.generate_batch`; one request for each, as vLLM counts accepted drafts by request. It gives
        names of its own: `rids` are not sent."""
        with first_failure():
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self.generate(ids, sampling, return_hidden_states)) for ids in prompts]
        return [task.result() for task in tasks]

    async def stream(self, ids: Sequence[int], sampling: Sampling) -> AsyncIterator[tuple[float, bytes]]:
        """Refused: those who read the pieces know SGLang's."""
        raise _not_asked("answers piece by piece")
        yield  # what makes it a generator, as the base class has it

    async def next_logprobs(self, ids: Sequence[int], tokens: Sequence[int]) -> list[float]:
        """Refused."""
        raise _not_asked("log probabilities")

    async def top_logprobs(
        self, ids: Sequence[int], sampling: Sampling, count: int = 2
    ) -> tuple[Answer, list[list[tuple[float, int]]]]:
        """Refused."""
        raise _not_asked("log probabilities")

    async def start_profile(self, folder: Path, steps: int, *, on_gpu: bool) -> None:
        """Refused: vLLM is told by its command line where traces go."""
        raise _not_asked("a trace")

    async def server_info(self) -> dict[str, Any]:
        """Its version, the only thing that it tells of itself without its developers' mode."""
        return self._mapping(await self._call("GET", "/version"))

    async def model_info(self) -> dict[str, Any]:
        """Which model it serves, and how long its texts may be."""
        listed = self._mapping(await self._call("GET", "/v1/models")).get("data")
        if not isinstance(listed, list) or not listed:
            raise EngineError(f"{self.url}/v1/models: names no model")
        return self._mapping(listed[0])

    async def _complete(self, ids: Sequence[int], sampling: Sampling) -> Answer:
        began = time.monotonic()
        raw = await self._call("POST", "/v1/completions", request(ids, sampling))
        return parse_completion(raw, time.monotonic() - began)

    async def _workers(self, method: str) -> list[Any]:
        raw = self._mapping(await self._call("POST", "/collective_rpc", {"method": method})).get("results")
        if not isinstance(raw, list):
            raise EngineError(f"{self.url}/collective_rpc: {method} returned no list")
        return [one for one in raw if one is not None]


def request(ids: Sequence[int], sampling: Sampling) -> dict[str, Any]:
    """The body of `/v1/completions`."""
    body: dict[str, Any] = {
        "prompt": list(ids),
        "max_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "ignore_eos": sampling.ignore_eos,
        "return_token_ids": True,
        "skip_special_tokens": False,
    }
    if sampling.seed is not None:
        body["seed"] = sampling.seed
    return body


def parse_completion(raw: object, latency_s: float) -> Answer:
    """What `/v1/completions` answered to one prompt.

    Raises:
        EngineError: a field is missing or of the wrong kind.
    """
    try:
        body = _object(raw)
        (choice,) = body["choices"]
        ids, usage = choice["token_ids"], _object(body["usage"])
        if not isinstance(ids, list) or not all(type(token) is int for token in ids):
            raise TypeError("token_ids: a list of whole numbers was expected")
        spec = _object(_object(body.get("metrics") or {}).get("speculative_decoding") or {})
        histogram = spec.get("acceptance_histogram")
        return Answer(
            output_ids=ids,
            text=str(choice.get("text", "")),
            finish_reason=str(choice["finish_reason"]),
            prompt_tokens=_whole(usage["prompt_tokens"]),
            completion_tokens=_whole(usage["completion_tokens"]),
            latency_s=latency_s,
            verify_steps=_whole(spec["num_spec_steps"]) if spec else None,
            correct_drafts=_whole(spec["num_accepted_draft_tokens"]) if spec else None,
            proposed_drafts=_whole(spec["num_draft_tokens"]) if spec else None,
            histogram=None if histogram is None else [_whole(count) for count in histogram],
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise EngineError(f"vLLM's answer is not understood: {type(error).__name__}: {error}") from error


def rows_of(workers: Sequence[Any], ids: Sequence[int]) -> list[list[float]]:
    """The states that the drafter was given for a prompt, a row for each token: of the first worker that has any.

    Args:
        workers: of each worker what `eagle3ops_captured` returned: pieces of token ids and rows.
        ids: the prompt.

    Raises:
        EngineError: there are none, or they belong to other tokens.
    """
    try:
        pieces = workers[0] if workers else []
        given = [token for tokens, _ in pieces for token in tokens]
        rows = [row for _, part in pieces for row in part]
    except (TypeError, ValueError, KeyError) as error:
        raise EngineError(f"the capture in vLLM's worker is not understood: {error}") from error
    if not rows:
        raise EngineError(
            "vLLM gave its drafter no states for this prompt",
            remedy="is it longer than the drafter may see? Look for warnings of speculative decoding in its log",
        )
    # A watchdog may have asked something meanwhile, and what follows the prompt are tokens of the answer.
    wanted, count = list(ids), len(ids)
    found = next((at for at in range(len(given) - count + 1) if given[at : at + count] == wanted), None)
    if len(rows) != len(given) or found is None:
        raise EngineError(
            f"vLLM gave its drafter {len(rows)} states for {len(given)} tokens, and the {count} that were sent are not "
            "among them",
            remedy="send nothing else to this server meanwhile, and leave its prefix cache off",
        )
    return rows[found : found + count]


def told_by(workers: Sequence[Any]) -> list[str]:
    """What a reader of a verdict should know of the server, from what `eagle3ops_watch` returned.

    Raises:
        EngineError: no worker has a drafter.
    """
    if not workers or not isinstance(workers[0], Mapping):
        raise EngineError("no worker of vLLM has a drafter", remedy="name the drafter that is to be served")
    if str(workers[0].get("runner", "")).startswith(_V2):
        return ["vLLM ran with model runner V2, which reads layer ids at the top level of the drafter's config only"]
    return [
        "vLLM ran with model runner V1, as it does without a GPU; V2, which it takes on most GPUs, does not read ids "
        "that stand in eagle_config"
    ]


def _not_asked(what: str) -> EngineRefused:
    return EngineRefused(f"vLLM is not asked for {what} by eagle3ops", remedy="set engine.name: sglang or reference")


def _object(value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"an object was expected, not {type(value).__name__}")
    return value


def _whole(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f"a whole number was expected, not {value!r}")
    return value
