"""Does this server really answer? Asked by what only a working one can do: one token, from end to end.

    health      GET /health. Says that the HTTP process lives; for SGLang also that its scheduler does, but not that its
                detokenizer does (with running requests the scheduler answers for it).
    generate    one token through everything. Only this one decides.
    counters    GET /metrics and, for SGLang, /get_load. They tell a queue from a hang; alone they decide nothing: token
                counters stand still during one long healthy request, and a stopped scheduler leaves the last values.

`ok` of a probe is None while nothing can be concluded: it is still under way, the server has not been up yet, it
refuses such requests, or the own request waits in a queue behind others while the engine works.
"""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Literal

import aiohttp

from eagle3ops.watchdog.guard.counters import parse_load, parse_metrics
from eagle3ops.watchdog.state import Probe
from eagle3ops.words import plain

Kind = Literal["", "sglang", "vllm", "reference", "http"]
KINDS = ("sglang", "vllm", "reference", "http")

HEALTH_S = 25.0
"""SGLang says 503 after 20 s."""
GENERATE_S = 20.0
"""One token of an idle engine takes well under a second; SGLang gives itself 20 s for the same question."""
QUEUE_S = 600.0
"""So long an own request may wait behind others, while they are seen to be worked on."""
COUNTERS_S = 5.0
COMPUTES_S = 12.0
"""Longer than from one look at its counters to the next."""
_BODY_BYTES = 4 << 20
_OWNERS: dict[str, Kind] = {"sglang": "sglang", "vllm": "vllm", "eagle3ops": "reference"}
_STARTING_S = 15.0
"""A 503 that comes sooner means "still starting"; one that comes later means that it was tried."""


class Prober:
    """Questions to one server. Not for use by several tasks at once; `generate_one` is never under way twice.

    Args:
        url: where it answers: `http://127.0.0.1:30000`.
        kind: what it is; empty: it is asked. "http" is any server: only whether it answers at all is known.
        token: for an `Authorization: Bearer` header, where the server wants one.
        may_ask: may it be asked for a token now? Where that is a question, it is not asked while it computes, either: a
            request among those of a stage changes which of them are computed together, and so, by rounding, what they
            come to; and a benchmark would count it.
        scale: the limits of health and tokens are multiplied by it.
        clock: monotonic seconds, the clock of the samples.
    """

    def __init__(
        self,
        url: str,
        kind: Kind = "",
        *,
        token: str | None = None,
        may_ask: Callable[[], bool] | None = None,
        scale: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.url = url.rstrip("/")
        self.kind: Kind = kind
        self.model = ""
        self.up = False
        """It has answered well at least once: from now on a refused connection is a failure."""
        self.counted: dict[str, float] = {}
        """What the last answer to `counters` brought."""
        self.moved_at: float | None = None
        """When the number of forward passes last grew."""
        self.scale = scale
        self._may_ask = may_ask
        self._clock = clock
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._session: aiohttp.ClientSession | None = None
        self._refuses = ""
        """Why it cannot be asked for a token."""

    @property
    def generates(self) -> bool:
        """Can it be asked for a token now, as far as is known?"""
        if self.kind in ("", "http") or self._refuses:
            return False
        return self._may_ask is None or (self._may_ask() and not self._computes())

    def _computes(self) -> bool:
        """By the last look at its counters it did something."""
        return self.moved_at is not None and self._clock() - self.moved_at < COMPUTES_S * self.scale

    async def close(self) -> None:
        """End the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def detect(self) -> Kind:
        """What it is, by who owns its models; also learns the model's name. Stays empty while it does not say."""
        with suppress(aiohttp.ClientError, OSError, TimeoutError):
            status, body = await self._ask("GET", "/v1/models", timeout_s=COUNTERS_S)
            if status != 200:
                self.kind = self.kind or ("http" if 400 <= status < 500 else "")
                return self.kind
            entries = _json(body)
            entries = entries.get("data") if isinstance(entries, Mapping) else None
            first = entries[0] if isinstance(entries, list) and entries else None
            if isinstance(first, Mapping):
                self.model = str(first.get("id", ""))[:1000]
                self.kind = self.kind or _OWNERS.get(str(first.get("owned_by")), "http")
        return self.kind

    async def health(self) -> Probe:
        """GET /health; of an unknown server any answer below 500 is one."""
        began = self._clock()
        try:
            status, _ = await self._ask("GET", "/health", timeout_s=HEALTH_S * self.scale)
        except TimeoutError:
            return self._probe("health", began, False, f"no answer to /health for {self._clock() - began:.0f} s")
        except (aiohttp.ClientError, OSError) as error:
            if self.up:
                return self._probe("health", began, False, f"/health: {_reason(error)}")
            return self._probe("health", began, None, f"does not answer yet: {_reason(error)}")
        if status == 200 or (status < 500 and status not in (401, 403)):
            probe = self._probe("health", began, True, f"/health says {status}")
            self.up = True
            if not self.kind:
                await self.detect()
            return probe
        if status in (401, 403):
            return self._probe("health", began, None, f"/health says {status}: it wants a key")
        if not self.up and self._clock() - began < _STARTING_S * self.scale:
            return self._probe("health", began, None, f"/health says {status}: not ready yet")
        return self._probe("health", began, False, f"/health says {status} after {self._clock() - began:.1f} s")

    async def counters(self) -> Probe:
        """What it counts. Its `ok` only says whether it was told; whether it works is not for counters to say."""
        began = self._clock()
        facts: dict[str, float] = {}
        try:
            status, body = await self._ask("GET", "/metrics", timeout_s=COUNTERS_S)
            if status == 200:
                facts = parse_metrics(body.decode("utf-8", "replace"))
            if self.kind == "sglang":
                # Its metrics of requests are written now and then only; this one is right when the engine is idle.
                status, body = await self._ask("GET", "/get_load", timeout_s=COUNTERS_S)
                if status == 200:
                    facts |= parse_load(_json(body))
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            if not facts:
                self.counted = {}
                return self._probe("counters", began, None, f"/metrics: {_reason(error)}")
        now = self._clock()
        before = self.counted.get("forward_passes")
        if "forward_passes" in facts and before is not None and facts["forward_passes"] != before:
            self.moved_at = now
        self.counted = facts
        words = ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in facts.items())
        return self._probe("counters", began, True if facts else None, words or "it counts nothing", facts)

    async def generate_one(self) -> Probe:
        """Ask for one token. Waits `GENERATE_S`, and as long as `QUEUE_S` where the engine works through a queue."""
        began = self._clock()
        if self._refuses or self.kind == "http":
            return self._probe("generate", began, None, self._refuses or "not known how to ask it for a token")
        if not self.kind or (self.kind == "vllm" and not self.model):
            await self.detect()
        path, body = self._question()
        if not path:
            return self._probe("generate", began, None, "not known how to ask it for a token")
        answer = asyncio.ensure_future(self._ask("POST", path, body, timeout_s=QUEUE_S * self.scale + 5))
        try:
            limit = GENERATE_S * self.scale
            while not answer.done():
                await asyncio.wait([answer], timeout=max(0.0, began + limit - self._clock()))
                if answer.done():
                    break
                waited = self._clock() - began
                busy = await self._busy() if waited < QUEUE_S * self.scale else ""
                if answer.done():
                    break
                if not busy:
                    return self._probe("generate", began, False, f"no token for {waited:.0f} s", self.counted)
                limit = waited + GENERATE_S * self.scale / 2
            return self._judged(began, *answer.result(), path=path)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            words = f"{path}: {_reason(error)}"
            return self._probe("generate", began, False if self.up else None, words, self.counted)
        finally:
            # Gives the request up: the server drops it, so that questions do not pile up in a queue.
            answer.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await answer

    async def _busy(self) -> str:
        """Why the own request may be waiting its turn, in words; empty when it is not."""
        if (await self.counters()).ok is None:
            return ""
        before = dict(self.counted)
        await asyncio.sleep(1.0 * self.scale)
        await self.counters()
        now = self.counted
        moved = now.get("forward_passes", 0.0) > before.get("forward_passes", float("inf"))
        queued = [facts.get("queued") for facts in (before, now)]
        if moved and (None in queued or any(queued)):
            return f"waits behind {now.get('running', 0):g} running and {now.get('queued', 0):g} waiting requests"
        return ""

    def _question(self) -> tuple[str, dict[str, Any]]:
        if self.kind in ("sglang", "reference"):
            # Token 0 is in every vocabulary, and needs no tokenizer; SGLang's own health check asks the same.
            return "/generate", {"input_ids": [0], "sampling_params": {"max_new_tokens": 1, "temperature": 0.0}}
        if self.kind == "vllm" and self.model:
            return "/v1/completions", {"model": self.model, "prompt": [0], "max_tokens": 1, "temperature": 0.0}
        return "", {}

    def _judged(self, began: float, status: int, body: bytes, *, path: str) -> Probe:
        took = self._clock() - began
        if status == 200 and isinstance(_json(body), Mapping):
            self.up = True
            return self._probe("generate", began, True, f"one token in {took:.1f} s", self.counted)
        if status in (408, 429):
            return self._probe("generate", began, None, f"{path} says {status}: too much to do", self.counted)
        if 400 <= status < 500:
            # It answers, but this question is none for it: a key is wanted, or it is no model that generates.
            self._refuses = f"{path} says {status}: it cannot be asked for a token"
            return self._probe("generate", began, None, self._refuses)
        if not self.up:
            return self._probe("generate", began, None, f"{path} says {status}: not ready yet")
        return self._probe("generate", began, False, f"{path} says {status} after {took:.1f} s", self.counted)

    def _probe(
        self, name: str, began: float, ok: bool | None, words: str, facts: Mapping[str, float] | None = None
    ) -> Probe:
        return Probe(name, began, ok, max(0.0, self._clock() - began), words, dict(facts or {}))

    async def _ask(
        self, method: str, path: str, body: dict[str, Any] | None = None, *, timeout_s: float
    ) -> tuple[int, bytes]:
        """One question; at most `_BODY_BYTES` of the answer. Every redirection is an answer, not followed."""
        if self._session is None:
            # No proxy of the environment may stand between this and a loopback server.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=4, force_close=True), trust_env=False, headers=self._headers
            )
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        async with self._session.request(
            method, self.url + path, json=body, timeout=timeout, allow_redirects=False
        ) as response:
            data = b""
            async for chunk in response.content.iter_chunked(1 << 16):
                data += chunk
                if len(data) > _BODY_BYTES:
                    break
            return response.status, data


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, aiohttp.ClientConnectorError):
        return plain(error.os_error.strerror or "cannot be reached")[:200]
    return plain(str(error) or type(error).__name__)[:200]
