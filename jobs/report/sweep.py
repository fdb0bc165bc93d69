"""What does a report say of a sweep? The newest one of the drafter that is reported on, as tables."""

from pathlib import Path
from typing import TYPE_CHECKING

from eagle3ops.outputs.lineage import Output, output_in, outputs, record, served
from eagle3ops.outputs.sweepfile import Sweep, SweptPoint, parse_sweep
from eagle3ops.words import human_bytes, human_seconds

if TYPE_CHECKING:
    from eagle3ops.bench.report_data import Table

USED = "sweep.txt"
"""Beside a report: the sweep that it shows, so that it is written again once there is a newer one."""


def newest_sweep(root: Path, report_inputs: Output | None) -> Output | None:
    """The newest finished sweep of the drafter and engine settings that an output was made from."""
    about = None if report_inputs is None else served(report_inputs)
    found = [made for made in outputs(root, "sweep") if about is not None and served(made) == about]
    return max(found, key=lambda made: float(made.done.get("finished") or 0.0), default=None)


def bench_output(root: Path, folder: Path) -> Output | None:
    """The finished bench in a folder of the store."""
    return output_in(root, "bench", folder.name)


def sweep_tables(made: Output | None) -> "tuple[Table, ...]":
    """The points of a sweep, the winner of each concurrency, and what failed."""
    from eagle3ops.bench.report_data import Table

    sweep = None if made is None else parse_sweep(record(made.folder / "sweep.json"))
    if sweep is None:
        return ()
    columns = (
        "point", "at once", "over baseline", "95 % interval", "tokens/s", "ms/token", "accept length", "memory",
        "state",
    )  # fmt: skip
    ranked = sorted(sweep.points, key=lambda one: (one.concurrency, -(one.speedup.value if one.speedup else 0.0)))
    tables = [Table("Points", columns, tuple(_point(one) for one in ranked), note=_note(sweep))]
    rows = tuple(
        (
            one.label,
            f"{one.speedup.value:.2f}x",
            f"{one.speedup.low:.2f} to {one.speedup.high:.2f}",
            "it is the default" if one.is_default else _over(one.over_default),
            one.launch_line,
        )
        for one in sweep.winners
    )
    if rows:
        names = ("point", "over baseline", "95 % interval", f"over the default {sweep.default}", "launch line")
        note = "Measured once more, beside the baseline and the default, on prompts that had no part in choosing it."
        if stale := [one.label for one in sweep.winners if not one.fresh]:
            note += f" Not so for {', '.join(stale)}: too few prompts were held out, which flatters it."
        tables.append(Table("Winners", names, rows, note=note))
    return tuple(tables)


def _point(one: SweptPoint) -> tuple[str, ...]:
    speedup = one.speedup
    return (
        one.setting + (" *" if one.front else ""),
        str(one.concurrency),
        "–" if speedup is None else f"{speedup.value:.2f}x",
        "–" if speedup is None else f"{speedup.low:.2f} to {speedup.high:.2f}",
        _figure(one.tokens_per_s, 1),
        _figure(None if one.token_s is None else one.token_s * 1000, 2),
        _figure(one.accept_length, 2),
        "–" if one.memory_bytes is None else f"{human_bytes(one.memory_bytes)} ({one.memory_of})",
        f"failed: {one.why}" if one.state == "failed" else f"{one.state}: {one.why}",
    )


def _note(sweep: Sweep) -> str:
    told = [
        "Each point was measured block by block in turn with a baseline on the same GPU; tokens/s and ms/token are the "
        "baseline's of the whole sweep, scaled by that ratio. * stands on the Pareto front of throughput, time to a "
        "token, accept length and memory."
    ]
    if sweep.combinations_left_out:
        told.append(f"{sweep.combinations_left_out} combinations were left out, as no engine can serve them.")
    if sweep.failures:
        told.append(f"Servers died or hung {sweep.failures} times.")
    if sweep.server_starts is not None and sweep.seconds is not None:
        told.append(f"{sweep.server_starts} servers were started; it took {human_seconds(sweep.seconds)}.")
    return " ".join(told)


def _over(ratio: object) -> str:
    value, low, high = (getattr(ratio, name, None) for name in ("value", "low", "high"))
    return "–" if value is None else f"{value:.2f}x, {low:.2f} to {high:.2f}"


def _figure(value: float | None, places: int) -> str:
    return "–" if value is None else f"{value:.{places}f}"
