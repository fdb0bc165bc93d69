"""Which loads does a benchmark consist of, and what did each server do under each? Cases, and their paired results."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from eagle3ops.bench.arrivals import percentiles
from eagle3ops.bench.load import LoadResult, measure
from eagle3ops.bench.paired import throughput
from eagle3ops.engines.client import EngineClient, Sampling

Kind = Literal["ladder", "latency", "category", "length"]
BASELINE = "baseline"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One load that every server is put under.

    Attributes:
        kind: what is told apart by it: requests in flight, arrivals of tokens, kinds of question, lengths of prompt.
        name: of the category or bucket.
        facts: further things that the record says of it.
    """

    kind: Kind
    prompts: Sequence[Sequence[int]]
    sampling: Sampling
    concurrency: int = 1
    rounds: int = 1
    name: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def answers(self) -> int:
        """Answers that count, of one server."""
        return self.rounds * len(self.prompts)


@dataclass(frozen=True, slots=True)
class Measured:
    """What the servers did under one case.

    Attributes:
        results: by label, the baseline among them.
        baselines: for every other label the baseline's result that was measured together with it.
    """

    results: dict[str, LoadResult] = field(default_factory=dict)
    baselines: dict[str, LoadResult] = field(default_factory=dict)

    def add(self, found: Mapping[str, LoadResult]) -> None:
        """Take over what was measured with all of `found` resident."""
        for label, result in found.items():
            self.results.setdefault(label, result)
            if label != BASELINE and BASELINE in found:
                self.baselines[label] = found[BASELINE]

    def append(self, label: str, found: LoadResult, setting: str) -> None:
        """Take over blocks of one server that ran alone, in turn with its counterpart, for the pair of `setting`."""
        place = self.baselines if label == BASELINE else self.results
        if setting not in place:
            place[setting] = LoadResult(found.concurrency)
        place[setting].blocks += found.blocks
        place[setting].requests += found.requests
        if label == BASELINE:
            self.results.setdefault(BASELINE, place[setting])


async def run_cases(
    cases: Sequence[Case],
    clients: Mapping[str, EngineClient],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[dict[str, LoadResult]]:
    """Every case at all of these servers, interleaved; the results in the order of the cases."""
    total = sum(case.answers for case in cases) * len(clients)
    before, found = 0, []
    for case in cases:
        base = before
        found.append(
            await measure(
                clients,
                case.prompts,
                case.sampling,
                concurrency=case.concurrency,
                rounds=case.rounds,
                stream=case.kind == "latency",
                # A prefix that is remembered from an earlier block would be a first token for nothing.
                flush=case.kind == "latency",
                progress=lambda done, _, base=base: progress(base + done, total),  # type: ignore[misc]
            )
        )
        before += case.answers * len(clients)
    return found


def case_record(case: Case, measured: Measured) -> dict[str, Any]:
    """A case as `bench.json` keeps it: its conditions, and a row for every server."""
    make = latency_row if case.kind == "latency" else throughput_row
    return {
        **({"name": case.name} if case.name else {}),
        "concurrency": case.concurrency,
        "natural_stop": not case.sampling.ignore_eos,
        "max_new_tokens": case.sampling.max_new_tokens,
        "prompts": len(case.prompts),
        "rounds": case.rounds,
        **case.facts,
        "settings": {label: make(result, measured.baselines.get(label)) for label, result in measured.results.items()},
    }


def throughput_row(result: LoadResult, baseline: LoadResult | None) -> dict[str, Any]:
    """Tokens a second with their interval, the paired ratio, and the acceptance behind it."""
    speed = result.throughput
    row: dict[str, Any] = {
        "tokens_per_s": speed.value,
        "low": speed.low,
        "high": speed.high,
        "per_request": [timed.answer.completion_tokens / timed.seconds for timed in result.requests if timed.seconds],
        "blocks": [asdict(sample) for sample in result.blocks],
        "finish": dict(Counter(timed.answer.finish_reason for timed in result.requests)),
        "tokens": sum(timed.answer.completion_tokens for timed in result.requests),
    }
    if baseline is not None:
        row["speedup"] = asdict(result.over(baseline))
    if (accept := result.accept) is not None:
        row |= {
            "accept_length": accept.accept_length,
            "accept_rate": accept.accept_rate,
            "histogram": list(accept.histogram),
            "by_position": list(accept.by_position),
        }
    return row


def latency_row(result: LoadResult, _baseline: LoadResult | None) -> dict[str, Any]:
    """Percentiles over the requests and, for the gaps between tokens, over all tokens; in seconds."""
    arrivals = [timed.arrivals for timed in result.requests if timed.arrivals is not None]
    return {
        "ttft_s": percentiles([one.first_s for one in arrivals]),
        "itl_s": percentiles([gap for one in arrivals for gap in one.gaps_s]),
        "tpot_s": percentiles([one.per_token_s for one in arrivals if one.per_token_s is not None]),
        "e2e_s": percentiles([timed.seconds for timed in result.requests]),
        "tokens_per_s_streamed": throughput(result.blocks),
    }
