"""What does SGLang's `/metrics` say, and which of it can be trusted now?

Counters count. Gauges are written when there is something to write: an idle server leaves those of its last work
standing (`num_running_reqs` said 1 for 28 s after the last request), and a stopped scheduler leaves all of them.
Histograms and counters of tokens and requests move when a request *ends*.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

_LINE = re.compile(
    r"(?P<name>[A-Za-z_:][A-Za-z0-9_:]*)(?:\{(?P<labels>(?:[^\"}]|\"(?:[^\"\\]|\\.)*\")*)\})?\s+(?P<value>\S+)(?:\s+-?\d+)?\s*$"
)
_LABEL = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=\"((?:[^\"\\]|\\.)*)\"")
_TYPE = re.compile(r"# TYPE (?P<name>\S+) (?P<kind>\w+)\s*$")
_ESCAPES = {"\\n": "\n", "\\\\": "\\", '\\"': '"'}
_MOST_LINES = 200_000
_MOST_CHARACTERS = 20_000

STALE_WHEN_IDLE = frozenset({
    "sglang:spec_accept_length", "sglang:spec_accept_rate", "sglang:gen_throughput", "sglang:num_running_reqs",
    "sglang:num_used_tokens", "sglang:token_usage", "sglang:full_token_usage", "sglang:decode_sum_seq_lens",
    "sglang:is_cuda_graph", "sglang:cache_hit_rate", "sglang:kv_used_tokens", "sglang:kv_available_tokens",
    "sglang:kv_evictable_tokens", "sglang:utilization", "sglang:fwd_occupancy", "sglang:new_token_ratio",
})  # fmt: skip
"""Gauges of the last interval in which it worked, whatever it does now."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One line."""

    name: str
    labels: Mapping[str, str]
    value: float
    kind: str
    """`counter`, `gauge`, `histogram`, `summary` or `untyped`."""

    @property
    def stale_when_idle(self) -> bool:
        """Whether it keeps the value of the last work while there is none."""
        return self.name in STALE_WHEN_IDLE


@dataclass(frozen=True, slots=True)
class Metrics:
    """All lines of one answer."""

    samples: tuple[Sample, ...]

    def total(self, name: str, **labels: str) -> float | None:
        """The sum over all ranks and modes of what can be added; None where there is no such sample."""
        found = [
            one.value
            for one in self.samples
            if one.name == name and all(one.labels.get(key) == value for key, value in labels.items())
        ]
        return sum(found) if found else None

    @property
    def verify_calls(self) -> float | None:
        """Verification steps of requests that have ended, since the start."""
        return self.total("sglang:spec_verify_calls_total")

    @property
    def forward_passes(self) -> float | None:
        """Steps of the model; it moves every second while anything is computed."""
        return self.total("sglang:cuda_graph_passes_total")

    def now(self, name: str, *, busy: bool) -> float | None:
        """A gauge, if it can be believed: one that goes stale only while the server works.

        Args:
            name: of the gauge.
            busy: whether requests are known to be under way, by `/get_load` or because one asked them.
        """
        if name in STALE_WHEN_IDLE and not busy:
            return None
        value = self.total(name)
        return None if value is None or not math.isfinite(value) else value


def parse_metrics(text: str) -> Metrics:
    """Every line of the Prometheus text format that is one; others are passed over."""
    kinds: dict[str, str] = {}
    samples = []
    for line in text.split("\n")[:_MOST_LINES]:
        if line.startswith("#"):
            if told := _TYPE.match(line[:_MOST_CHARACTERS]):
                kinds[told["name"]] = told["kind"]
            continue
        found = _LINE.match(line[:_MOST_CHARACTERS])
        value = None if found is None else _value(found["value"])
        if found is None or value is None:
            continue
        labels = {name: _unescape(text) for name, text in _LABEL.findall(found["labels"] or "")}
        samples.append(Sample(found["name"], labels, value, _kind(found["name"], kinds)))
    return Metrics(tuple(samples))


def _kind(name: str, kinds: Mapping[str, str]) -> str:
    """Counters and the parts of histograms have endings that their declaration may lack."""
    for whole in (name, *(name.removesuffix(end) for end in ("_total", "_bucket", "_sum", "_count"))):
        if whole in kinds:
            return kinds[whole]
    return "untyped"


def _value(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _unescape(text: str) -> str:
    return re.sub(r"\\[n\\\"]", lambda found: _ESCAPES[found.group()], text)
