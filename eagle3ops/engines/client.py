"""How does a job ask an engine? A client for the native API that SGLang and the reference engine share."""

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import aiohttp

from eagle3ops.engines.starts import Start
from eagle3ops.errors import Eagle3opsError, RequestError

_TAIL_LINES = 25
_KEEPALIVE_S = 2.0


class EngineError(Eagle3opsError):
    """The engine died, does not answer, or answers what is not understood."""


class EngineRefused(RequestError):
    """The engine says that this one request is wrong (status 4xx)."""


class Process(Protocol):
    """As much of `asyncio.subprocess.Process` as is needed."""

    @property
    def returncode(self) -> int | None:
        """None while it lives."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the engine chooses tokens; temperature 0 is greedy."""

    max_new_tokens: int = 128
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = -1
    ignore_eos: bool = False
    seed: int | None = None

    def to_json(self) -> dict[str, Any]:
        """As the native API takes it."""
        params: dict[str, Any] = {
            "max_new_tokens": self.max_new_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "ignore_eos": self.ignore_eos,
        }
        if self.seed is not None:
            params["sampling_seed"] = self.seed
        return params


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer; the accept statistics are None where the engine does not speculate.

    Attributes:
        output_ids: with the stop token, if that ended the answer.
        finish_reason: `stop`, `length` or `abort`.
        latency_s: as the engine measured it, from the arrival of the request.
        histogram: index = number of correct drafts in one verification step.
        hidden_states: as the engine sends them: rows of the prompt, then one row for each further token.
    """

    output_ids: list[int]
    text: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    latency_s: float
    verify_steps: int | None = None
    correct_drafts: int | None = None
    proposed_drafts: int | None = None
    histogram: list[int] | None = None
    hidden_states: object | None = None

    @property
    def accept_length(self) -> float | None:
        """Tokens a verification step, the bonus token included."""
        if not self.verify_steps or self.correct_drafts is None:
            return None
        return 1 + self.correct_drafts / self.verify_steps


def parse_answer(raw: object) -> Answer:
    """One object of `/generate` -> Answer.

    Raises:
        EngineError: a field is missing or of the wrong kind.
    """
    try:
        if not isinstance(raw, Mapping):
            raise TypeError(f"an object was expected, not {type(raw).__name__}")
        meta = raw["meta_info"]
        reason = meta["finish_reason"]
        return Answer(
            output_ids=_ints(raw["output_ids"]),
            text=str(raw.get("text", "")),
            finish_reason=str(reason["type"]),
            prompt_tokens=_int(meta["prompt_tokens"]),
            completion_tokens=_int(meta["completion_tokens"]),
            latency_s=float(meta.get("e2e_latency", 0.0)),
            verify_steps=_optional(meta, "spec_verify_ct"),
            correct_drafts=_optional(meta, "spec_num_correct_drafts", "spec_accepted_drafts"),
            proposed_drafts=_optional(meta, "spec_num_proposed_drafts", "spec_proposed_drafts"),
            histogram=_histogram(meta),
            hidden_states=meta.get("hidden_states"),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise EngineError(f"the engine's answer is not understood: {type(error).__name__}: {error}") from error


def _int(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f"a whole number was expected, not {value!r}")
    return value


def _ints(value: object) -> list[int]:
    if not isinstance(value, list):
        raise TypeError(f"a list was expected, not {type(value).__name__}")
    return [_int(v) for v in value]


def _optional(meta: Mapping[str, Any], *names: str) -> int | None:
    found = next((meta[name] for name in names if meta.get(name) is not None), None)
    return None if found is None else _int(found)


def _histogram(meta: Mapping[str, Any]) -> list[int] | None:
    for name in ("spec_correct_drafts_histogram", "spec_accept_histogram"):
        if meta.get(name) is not None:
            return _ints(meta[name])
    return None


def parse_logprobs(raw: object, key: str) -> list[list[tuple[float, int]]]:
    """`meta_info[key]` of an answer -> for each place (log probability, token) of every token that is told.

    Raises:
        EngineError: it is missing or of another shape.
    """
    try:
        if not isinstance(raw, Mapping):
            raise TypeError(f"an object was expected, not {type(raw).__name__}")
        places = raw["meta_info"][key]
        found = [[(float(entry[0]), _int(entry[1])) for entry in place or ()] for place in places]
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        raise EngineError(f"the engine's {key} are not understood: {type(error).__name__}: {error}") from error
    if not all(math.isfinite(value) for place in found for value, _ in place):
        raise EngineError(f"the engine's {key} hold what is no number")
    return found


def log_tail(path: Path | None, lines: int = _TAIL_LINES) -> str:
    """The last lines of a log, or a word on why there are none."""
    if path is None:
        return "(its log is not known here)"
    try:
        with path.open("rb") as handle:
            handle.seek(max(0, path.stat().st_size - 65536))
            text = handle.read().decode("utf-8", "replace")
    except OSError as error:
        return f"({path}: {error.strerror})"
    return f"the last lines of {path}:\n" + "\n".join("    " + line for line in text.splitlines()[-lines:])


class EngineClient:
    """Asks one server; an async context manager that owns the connections.

    Args:
        url: `http://host:port`.
        log: the server's log, quoted when the server dies.
        timeout_s: the longest a single answer may take.
    """

    def __init__(self, url: str, *, log: Path | None = None, timeout_s: float = 3600.0) -> None:
        self.url = url.rstrip("/")
        self.log = log
        self.process: Process | None = None
        self.start: Start | None = None
        """What its start took, where it was started and read here."""
        self.notes: tuple[str, ...] = ()
        """What a reader of its answers should know of this server, a sentence each; mostly nothing."""
        self._timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=10)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        # Not used again after a while: uvicorn closes what was idle for 5 s, and to read a large answer takes longer.
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_S)
        self._session = aiohttp.ClientSession(timeout=self._timeout, connector=connector, trust_env=False)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _call(
        self, method: str, path: str, body: object = None, timeout_s: float | None = None, *, plain: bool = False
    ) -> Any:
        if self._session is None:
            raise RuntimeError("use `async with EngineClient(...)`")
        timeout = self._timeout if timeout_s is None else aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with self._session.request(method, self.url + path, json=body, timeout=timeout) as response:
                text = await response.text(errors="replace")
                status = response.status
        except TimeoutError as error:
            raise EngineError(f"{self.url}{path}: no answer in time; {log_tail(self.log)}") from error
        except (aiohttp.ClientError, OSError) as error:
            raise EngineError(f"{self.url}{path}: {self._fate()}{error or type(error).__name__}; "
                              f"{log_tail(self.log)}") from error  # fmt: skip
        if 400 <= status < 500:
            raise EngineRefused(f"{self.url}{path}: refused ({status}): {_message(text)}")
        if status != 200:
            raise EngineError(f"{self.url}{path}: status {status}: {_message(text)}; {log_tail(self.log)}")
        if plain:
            return text
        try:
            return json.loads(text) if text else None
        except (ValueError, RecursionError) as error:
            raise EngineError(f"{self.url}{path}: the answer is not JSON: {text[:200]!r}") from error

    def _fate(self) -> str:
        code = None if self.process is None else self.process.returncode
        if code is None:
            return ""
        return f"the server {'was ended by signal ' + str(-code) if code < 0 else f'ended with exit code {code}'}; "

    async def wait_ready(self, process: Process, timeout_s: float = 600.0) -> None:
        """Return once the server answers.

        Args:
            process: the server; kept, so that later errors can say that it died.

        Raises:
            EngineError: it ended or did not become ready in time; the tail of its log is in the message.
        """
        self.process = process
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if process.returncode is not None:
                raise EngineError(f"the engine did not start: {self._fate()}{log_tail(self.log)}")
            try:
                await self._call("GET", "/health", timeout_s=30)
                # A process can end while another server answers at the same port.
                await asyncio.sleep(0)
                if process.returncode is None:
                    return
            except EngineError:
                await asyncio.sleep(0.1)
        raise EngineError(
            f"the engine was not ready within {timeout_s:.0f} s; {log_tail(self.log)}",
            remedy="give it more time, or look at its log",
        )

    async def generate(self, ids: Sequence[int], sampling: Sampling, return_hidden_states: bool = False) -> Answer:
        """Answer one prompt, given as token ids.

        Raises:
            EngineRefused: the engine says the request is wrong.
            EngineError: it died or cannot be understood.
        """
        return parse_answer(await self._call("POST", "/generate", _body(list(ids), sampling, return_hidden_states)))

    async def generate_batch(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        return_hidden_states: bool = False,
        rids: Sequence[str] | None = None,
    ) -> list[Answer]:
        """Answer several prompts sent as one request; on an idle reference engine the same batch always gives the
        same bits. `rids` names them for the engine. Raises as `generate`."""
        if not prompts:
            return []
        body = _body([list(p) for p in prompts], sampling, return_hidden_states)
        if rids is not None:
            body["rid"] = list(rids)
        raw = await self._call("POST", "/generate", body)
        if not isinstance(raw, list) or len(raw) != len(prompts):
            raise EngineError(f"{len(prompts)} answers were expected")
        return [parse_answer(item) for item in raw]

    async def stream(self, ids: Sequence[int], sampling: Sampling) -> AsyncIterator[tuple[float, bytes]]:
        """Answer one prompt piece by piece: the moment (`time.perf_counter`) and the raw JSON of every piece.

        Nothing is parsed here, so that a measurement of arrivals does not measure a parser. Raises as `generate`.
        """
        if self._session is None:
            raise RuntimeError("use `async with EngineClient(...)`")
        body = _body(list(ids), sampling, False) | {"stream": True}
        place = f"{self.url}/generate"
        try:
            async with self._session.post(place, json=body) as response:
                if response.status != 200:
                    text = await response.text(errors="replace")
                    kind = EngineRefused if 400 <= response.status < 500 else EngineError
                    raise kind(f"{place}: status {response.status}: {_message(text)}")
                rest = b""
                async for chunk in response.content.iter_any():
                    now = time.perf_counter()
                    *lines, rest = (rest + chunk).split(b"\n")
                    for line in lines:
                        if line.startswith(b"data:"):
                            yield now, line[5:].strip()
        except TimeoutError as error:
            raise EngineError(f"{place}: no answer in time; {log_tail(self.log)}") from error
        except (aiohttp.ClientError, OSError) as error:
            raise EngineError(f"{place}: {self._fate()}{error or type(error).__name__}; "
                              f"{log_tail(self.log)}") from error  # fmt: skip

    async def next_logprobs(self, ids: Sequence[int], tokens: Sequence[int]) -> list[float]:
        """Log probabilities of `tokens` as the one after `ids`; SGLang tells them, the reference engine does not.

        Raises:
            EngineRefused: the engine does not know the question.
            EngineError: it died, or its answer is not understood.
        """
        body = _body(list(ids), Sampling(max_new_tokens=1, ignore_eos=True), False)
        asked = {"return_logprob": True, "token_ids_logprob": list(tokens)}
        found = parse_logprobs(await self._call("POST", "/generate", body | asked), "output_token_ids_logprobs")
        known = {token: value for value, token in found[0]} if found else {}
        if not known.keys() >= set(tokens):
            raise EngineError(f"log probabilities of {list(tokens)} were asked for, those of {list(known)} came")
        return [known[token] for token in tokens]

    async def top_logprobs(
        self, ids: Sequence[int], sampling: Sampling, count: int = 2
    ) -> tuple[Answer, list[list[tuple[float, int]]]]:
        """An answer with the likeliest tokens at each of its places, as (log probability, token). Raises as
        `next_logprobs`."""
        asked = {"return_logprob": True, "top_logprobs_num": count}
        raw = await self._call("POST", "/generate", _body(list(ids), sampling, False) | asked)
        return parse_answer(raw), parse_logprobs(raw, "output_top_logprobs")

    async def flush_cache(self) -> bool:
        """Forget cached prefixes, where the engine keeps any and is idle; returns whether it did."""
        try:
            await self._call("POST", "/flush_cache?timeout=5", timeout_s=30, plain=True)
        except (EngineError, EngineRefused):
            return False
        return True

    async def chat(self, messages: Sequence[Mapping[str, Any]], max_tokens: int = 1, **more: Any) -> dict[str, Any]:
        """Answer a conversation, greedily, behind the engine's own chat template; `more` goes into the body.

        Raises as `generate`.
        """
        body = {"model": "default", "messages": [dict(one) for one in messages], "max_tokens": max_tokens}
        return self._mapping(await self._call("POST", "/v1/chat/completions", body | {"temperature": 0.0} | more))

    async def server_info(self) -> dict[str, Any]:
        """How the server was started, and its counters."""
        return self._mapping(await self._call("GET", "/server_info"))

    async def model_info(self) -> dict[str, Any]:
        """Which model it serves."""
        return self._mapping(await self._call("GET", "/model_info"))

    async def start_profile(self, folder: Path, steps: int, *, on_gpu: bool) -> None:
        """Let it write a trace of its next scheduler steps below `folder`, one file for each of its ranks.

        Raises:
            EngineRefused: it cannot profile.
        """
        body = {
            "output_dir": str(folder),
            "num_steps": steps,
            "activities": ["CPU", "GPU"] if on_gpu else ["CPU"],
            "with_stack": False,
            "record_shapes": False,
        }
        await self._call("POST", "/start_profile", body, plain=True)

    async def health(self) -> bool:
        """Whether it answers now."""
        try:
            await self._call("GET", "/health", timeout_s=30)
        except EngineError:
            return False
        return True

    @staticmethod
    def _mapping(raw: object) -> dict[str, Any]:
        if not isinstance(raw, dict):
            raise EngineError(f"a JSON object was expected, not {type(raw).__name__}")
        return raw


def _body(ids: object, sampling: Sampling, hidden: bool) -> dict[str, Any]:
    body: dict[str, Any] = {"input_ids": ids, "sampling_params": sampling.to_json()}
    if hidden:
        body["return_hidden_states"] = True
    return body


def _message(text: str) -> str:
    """The sentence inside an error body, whichever of the known shapes it has."""
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError):
        return text[:500]
    if isinstance(raw, dict):
        inner = raw.get("error")
        for value in (
            inner.get("message") if isinstance(inner, dict) else inner,
            raw.get("message"),
            raw.get("detail"),
        ):
            if isinstance(value, str):
                return value
    return text[:500]
