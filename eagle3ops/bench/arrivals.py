"""When did the tokens of a streamed answer come? Time to the first one, and the gaps between them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from eagle3ops.engines.client import Answer, EngineError, parse_answer

PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Seconds.

    Attributes:
        first_s: from sending the request to the first token (TTFT).
        gaps_s: one gap for every later token (ITL). Tokens that came in one piece, as the accepted ones of a
            verification step do, share the wait for it, as `sglang.bench_serving` counts it.
        per_token_s: mean time of a token after the first piece (TPOT); None where there was only one piece.
    """

    first_s: float
    gaps_s: tuple[float, ...]

    @property
    def per_token_s(self) -> float | None:
        """Mean gap; None where the answer came in one piece."""
        return sum(self.gaps_s) / len(self.gaps_s) if self.gaps_s else None


def arrivals(began: float, pieces: Sequence[tuple[float, bytes]]) -> tuple[Answer, Arrivals]:
    """The whole answer and when its tokens came.

    Args:
        began: when the request was sent, seconds of a monotonic clock.
        pieces: moment and raw JSON of every piece, each with all tokens so far, as the native API streams them.

    Raises:
        EngineError: there are no pieces, one is not understood, or the engine reports an error in one.
    """
    if not pieces:
        raise EngineError("the engine ended the stream without an answer")
    first = before = had = None
    gaps: list[float] = []
    for when, raw in pieces:
        tokens = _tokens(raw)
        if tokens == 0:
            continue
        if first is None or before is None or had is None:
            first, before, had = when - began, when, tokens
            continue
        new = tokens - had
        if new > 0:
            gaps += [(when - before) / new] * new
            before, had = when, tokens
    answer = parse_answer(_object(pieces[-1][1]))
    if first is None:
        first = pieces[-1][0] - began
    return answer, Arrivals(first, tuple(gaps))


def _tokens(raw: bytes) -> int:
    meta = _object(raw).get("meta_info")
    count = meta.get("completion_tokens") if isinstance(meta, Mapping) else None
    if type(count) is not int:
        raise EngineError(f"a piece of the stream has no count of tokens: {raw[:200]!r}")
    return count


def _object(raw: bytes) -> Mapping[str, object]:
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise EngineError(f"a piece of the stream is not JSON: {raw[:200]!r}") from error
    if not isinstance(found, Mapping):
        raise EngineError(f"a piece of the stream is not an object: {raw[:200]!r}")
    if "error" in found:
        raise EngineError(f"the engine broke off the stream: {str(found['error'])[:300]}")
    return found


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """`{"mean": ..., "p50": ..., "p90": ..., "p95": ..., "p99": ...}`, linearly interpolated; empty for none."""
    if not values:
        return {}
    ranked = sorted(values)
    found = {"mean": sum(ranked) / len(ranked)}
    for percent in PERCENTILES:
        place = (len(ranked) - 1) * percent / 100
        low = int(place)
        high = min(low + 1, len(ranked) - 1)
        found[f"p{percent}"] = ranked[low] + (ranked[high] - ranked[low]) * (place - low)
    return found
