"""How does a report show the further loads of a benchmark? Ladder, arrivals, categories, lengths, the field's tool."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from eagle3ops.outputs.benchloads import Load, LoadRow, parse_loads

if TYPE_CHECKING:
    from eagle3ops.bench.report_data import Table

_TITLES = {
    "ladder": "Throughput by requests in flight",
    "latency": "Arrivals of tokens, streamed",
    "categories": "By kind of question",
    "lengths": "By length of the prompt",
    "bench_serving": "sglang.bench_serving at the same servers",
}
_NOTES = {
    "ladder": "Blocks of prompts go to every server in turn; intervals are bootstrapped over the blocks. Answers that "
    "end by themselves and answers of a forced length are not comparable: text after its end is unusual.",
    "latency": "Tokens that come in one piece share the wait for it. Streaming costs throughput, so none is told here.",
    "lengths": "Prompts that are too short for a bucket stand after other held-out conversations.",
    "bench_serving": "It streams, counts the whole run from the first request to the last, and is not paired with a "
    "baseline.",
}


def load_tables(bench: dict[str, Any]) -> "tuple[Table, ...]":
    """One table for each kind of load that was measured; none for a file of before there were any."""
    loads = parse_loads(bench)
    return tuple(table for kind in _TITLES if (table := _table(kind, [one for one in loads if one.kind == kind])))


def _table(kind: str, loads: Sequence[Load]) -> "Table | None":
    from eagle3ops.bench.report_data import Table

    if not loads:
        return None
    head, cells = _LATENCY if kind == "latency" else _TOOL if kind == "bench_serving" else _SPEED
    rows = tuple((load.words, row.label, *cells(row)) for load in loads for row in load.rows)
    return Table(_TITLES[kind], ("load", "setting", *head), rows, note=_NOTES.get(kind, ""))


def _speed(row: LoadRow) -> tuple[str, ...]:
    ratio = interval = "–"
    if row.speedup is not None and row.speedup_low is not None and row.speedup_high is not None:
        ratio, interval = f"{row.speedup:.2f}x", f"{row.speedup_low:.2f} to {row.speedup_high:.2f}"
    return _figure(row.tokens_per_s, ".1f"), ratio, interval, _figure(row.accept_length, ".2f")


def _latency(row: LoadRow) -> tuple[str, ...]:
    return tuple(milliseconds(value) for value in (row.ttft_p50, row.ttft_p99, row.itl_p50, row.itl_p99))


def _tool(row: LoadRow) -> tuple[str, ...]:
    return _figure(row.tokens_per_s, ".1f"), *_latency(row), _figure(row.accept_length, ".2f")


_Cells = Callable[[LoadRow], tuple[str, ...]]
_ARRIVALS = ("first token, median", "99 %", "between tokens, median", "99 %")
_SPEED: tuple[tuple[str, ...], _Cells] = (("tokens/s", "over baseline", "95 % interval", "accept length"), _speed)
_LATENCY: tuple[tuple[str, ...], _Cells] = (_ARRIVALS, _latency)
_TOOL: tuple[tuple[str, ...], _Cells] = (("tokens/s", *_ARRIVALS, "accept length, its average"), _tool)


def milliseconds(value: float | None) -> str:
    """`12.3 ms`."""
    return "–" if value is None else f"{value * 1000:.1f} ms"


def _figure(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)
