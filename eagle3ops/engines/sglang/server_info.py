"""What does a running SGLang say of itself? `/server_info` of 0.5.14 and of 0.5.23, as one record.

0.5.14 gives all its options at the top and again in every internal state; 0.5.23 gives its launch command, the times
of its start, and shorter states, in which the graphs' memory stands by kind. The sizes in `memory_usage` are
differences of what the whole device had free: where others start at the same time, they mean nothing.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eagle3ops.engines.client import EngineError


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """One server. What it does not say is None."""

    version: str | None
    attention_backend: str | None
    sampling_backend: str | None
    speculative_algorithm: str | None
    steps: int | None
    topk: int | None
    draft_tokens: int | None
    tp_size: int | None
    dp_size: int | None
    """Replicas of the attention, whichever of its options made them."""
    max_running_requests: int | None
    """As in force: EAGLE-3 lowers it to 48 where nobody names it."""
    token_capacity: int | None
    """Tokens whose keys and values fit."""
    mem_fraction_static: float | None
    weights_gb: float | None
    cache_gb: float | None
    graphs_gb: float | None
    throughput: float | None
    """Tokens a second of the last interval in which it worked; it stays while the server is idle."""
    lifetime_accept_length: float | None
    """Since the start, warm-up included, and up to 40 steps old. Not for a result: count what answers bring."""
    start: Mapping[str, float]
    """Seconds by part of the start, where the version tells (0.5.23)."""

    def as_json(self) -> dict[str, Any]:
        """Without what is not said."""
        named = {name: getattr(self, name) for name in self.__slots__ if name != "start"}
        return {name: value for name, value in named.items() if value is not None} | (
            {"start": dict(self.start)} if self.start else {}
        )


def parse_server_info(raw: object) -> ServerFacts:
    """The answer of `/server_info`.

    Raises:
        EngineError: that is no answer to it.
    """
    if not isinstance(raw, Mapping) or not isinstance(raw.get("version"), str):
        raise EngineError("/server_info: an object with a version was expected")
    states = raw.get("internal_states")
    state = states[0] if isinstance(states, list) and states and isinstance(states[0], Mapping) else {}
    memory = _mapping(state.get("memory_usage"))
    graphs = memory.get("graph")
    dp = max((size for name in ("dp_size", "attn_dp_size") if (size := _whole(raw.get(name)))), default=None)
    return ServerFacts(
        version=_word(raw.get("version")),
        attention_backend=_word(raw.get("attention_backend")),
        sampling_backend=_word(raw.get("sampling_backend")),
        speculative_algorithm=_word(raw.get("speculative_algorithm")),
        steps=_whole(raw.get("speculative_num_steps")),
        topk=_whole(raw.get("speculative_eagle_topk")),
        draft_tokens=_whole(raw.get("speculative_num_draft_tokens")),
        tp_size=_whole(raw.get("tp_size")),
        dp_size=dp,
        max_running_requests=_first(
            _whole(state.get("effective_max_running_requests_per_dp")), _whole(raw.get("max_running_requests"))
        ),
        token_capacity=_first(_whole(memory.get("token_capacity")), _whole(raw.get("max_total_num_tokens"))),
        mem_fraction_static=_real(raw.get("mem_fraction_static")),
        weights_gb=_real(memory.get("weight")),
        cache_gb=_real(memory.get("kvcache")),
        graphs_gb=_total(graphs) if isinstance(graphs, Mapping) else _real(graphs),
        throughput=_real(state.get("last_gen_throughput")),
        lifetime_accept_length=_real(state.get("avg_spec_accept_length")),
        start=_flat(_mapping(raw.get("startup_time"))),
    )


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _word(value: object) -> str | None:
    return value[:200] if isinstance(value, str) and value else None


def _whole(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < 1 << 53 else None


def _real(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)


def _total(parts: Mapping[str, Any]) -> float | None:
    found = [size for value in parts.values() if (size := _real(value)) is not None]
    return round(sum(found), 3) if found else None


def _flat(parts: Mapping[str, Any]) -> dict[str, float]:
    """Numbers by name; those of a part of its own by `part.name`."""
    found: dict[str, float] = {}
    for name, value in parts.items():
        if isinstance(value, Mapping):
            inner = ((f"{name}.{key}", _real(each)) for key, each in value.items())
            found |= {key: number for key, number in inner if number is not None}
        elif (number := _real(value)) is not None:
            found[str(name)] = number
    return found
