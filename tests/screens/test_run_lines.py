"""Are a run's figures kept in bounded memory, and drawn, with all else of it, whatever a host says?"""

import math
import shlex
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from eagle3ops.runs.events import Event
from eagle3ops.screens.feeds.machine import read_sample
from eagle3ops.screens.feeds.series import POINTS, SERIES, Series, SeriesBook, unit_of
from eagle3ops.screens.feeds.watching import RunDetail, RunRow, RunWatch, StageRow
from eagle3ops.screens.run.details import figures_of, metric_line, metric_plot, process_detail
from eagle3ops.screens.run.findings import artifact_detail, artifact_line, verdict_detail, verdict_line
from eagle3ops.screens.run.parts import (
    command_lines,
    live_of,
    read_artifacts,
    read_environment,
    read_processes,
    reproducing,
)
from eagle3ops.screens.run.plot import Curve, Scale, figure, plot, ticks
from eagle3ops.screens.run.tables import process_line, process_widths, run_lines, stage_detail, stage_line
from eagle3ops.screens.widgets.cells import Line
from eagle3ops.screens.widgets.glyphs import ASCII, BLOCKS, Glyphs

TEXT = st.text(max_size=12) | st.sampled_from(["\x1b]52;c;aGk=\x07", "[@click=app.quit]x[/]", "\u202eabc\n\tü漢"])
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | TEXT
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4), max_leaves=8
)
SIZES = st.integers(1, 200)


def check(lines: list[Line], width: int, *, exact: bool = False) -> str:
    """No line is longer than there is room, and none steers the terminal; returns the text."""
    told = ["".join(text for text, _ in line) for line in lines]
    for text in told:
        assert text.isprintable() or text == ""
        assert cell_len(text) <= width or not exact
    return "\n".join(told)


def event(kind: str, data: Any, seq: int = 1, stage: str | None = "train", ts: float = 1e9) -> Event:
    return Event(seq, ts, stage, kind, data)


def test_a_series_of_any_length_is_bounded_and_keeps_its_mean() -> None:
    series = Series()
    for step in range(100_000):
        series.add(step, float(step), step)
    points = series.points()
    assert POINTS // 2 <= len(points) <= 2 * POINTS
    assert points[0][0] == 0
    assert [x for x, _ in points] == sorted(x for x, _ in points)
    assert abs(sum(y or 0.0 for _, y in points) / len(points) - 50_000) < 500
    assert (series.last, series.low, series.high, series.taken) == (99_999.0, 0.0, 99_999.0, 100_000)


def test_a_stage_that_is_taken_up_again_goes_on_where_it_was() -> None:
    series = Series()
    for step in [*range(10), *range(5, 8)]:
        series.add(step, float(step), 0.0)
    assert [x for x, _ in series.points()] == list(range(8))


def test_figures_are_gathered_by_name_and_nan_is_counted() -> None:
    book = SeriesBook()
    for step in range(3):
        for number, value in ((0, 2.0), (10, "NaN"), (2, float("inf"))):
            book.take(event("metric", {"name": f"train/loss_{number}", "value": value, "step": step}))
    group = book.groups["train", "loss"]
    assert list(group.members) == ["0", "2", "10"]
    assert (group.members["10"].bad, group.members["10"].last, group.across) == (3, None, "step")
    assert figures_of([group], "train")[1:] == [("loss 2", "NaN"), ("loss 10", "NaN")]
    text = check(metric_plot(group, 0, 78, 12, BLOCKS, log=False, read="read 1 s ago"), 78)
    assert "6 values no number" in text


def test_progress_becomes_a_rate_and_one_that_begins_anew_none() -> None:
    book = SeriesBook()
    for at, done in ((0.0, 0), (2.0, 100), (3.0, 0), (5.0, 10)):
        book.take(event("progress", {"done": done, "total": 500, "unit": "tokens"}, ts=1e9 + at))
    assert book.groups["train", "tokens/s"].members[""].points() == [(0.0, 50.0), (3.0, 5.0)]


def test_a_program_with_no_end_of_names_is_bounded() -> None:
    book = SeriesBook()
    for number in range(SERIES + 5):
        book.take(event("metric", {"name": f"x{number}y", "value": 1.0}))
    assert (len(book.groups), book.left_out) == (SERIES, 5)


@given(st.lists(st.tuples(st.sampled_from(["metric", "progress", "verdict", "process", "stage"]), JSON), max_size=12))
def test_any_events_make_a_watch(events: list[tuple[str, Any]]) -> None:
    watch = RunWatch("r")
    for seq, (kind, data) in enumerate(events):
        watch.take(event(kind, data if isinstance(data, dict) else {"name": data, "value": data, "done": data}, seq))
    for group in watch.series.groups.values():
        check([metric_line(group, 60, BLOCKS)], 60)
        check(metric_plot(group, 0, 60, 10, ASCII, log=True, read=""), 60)


VALUES = st.none() | st.floats(-1e299, 1e299) | st.floats(-10, 10) | st.just(0.0)
UNITS = st.sampled_from(["", "share", "bytes", "s", "x"])
CURVES = st.lists(
    st.lists(st.tuples(st.floats(0, 1e9) | st.floats(-1e299, 1e299), VALUES), max_size=30).map(
        lambda points: sorted(points, key=lambda point: point[0])
    ),
    max_size=4,
)


@settings(max_examples=80)
@given(
    CURVES, SIZES, st.integers(0, 40), st.booleans(), st.sampled_from(["", "share", "bytes", "s", "x"]), st.booleans()
)
def test_any_curves_are_drawn_within_their_room(
    points: list[Any], width: int, height: int, log: bool, unit: str, ascii: bool
) -> None:
    glyphs = ASCII if ascii else BLOCKS
    curves = [Curve(str(number), curve) for number, curve in enumerate(points)]
    lines = plot(curves, width, height, glyphs, unit=unit, log=log)
    text = check(lines, width, exact=True)
    assert len(lines) <= max(1, height)
    assert text.isascii() or not ascii


def test_a_rising_line_is_drawn_from_below_to_above() -> None:
    lines = plot([Curve("0", [(float(x), float(x)) for x in range(50)])], 40, 10, ASCII)
    text = ["".join(part for part, _ in line) for line in lines]
    assert text[0].rstrip().endswith("0 0")
    assert text[-2].index("0", text[-2].index("|")) < text[0].index("0", text[0].index("|"))
    assert text[-1].split() == ["0", "step", "49"]


@given(st.floats(-1e299, 1e299), st.floats(-1e299, 1e299), st.integers(1, 20), st.booleans())
def test_ticks_are_few_and_within_the_scale(one: float, other: float, count: int, log: bool) -> None:
    scale = Scale(min(one, other), max(one, other), log and min(one, other) > 0)
    found = ticks(scale, count)
    assert 1 <= len(found) <= max(2, count)
    assert all(math.isfinite(tick) for tick in found)


@given(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(["", "share", "bytes", "s", "x", "%", "nats"]))
def test_a_figure_is_short(value: float, unit: str) -> None:
    assert len(figure(value, unit)) <= 14
    assert len(figure(value, unit, whole=True)) <= 14


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("loss", "nats"),
        ("cond_acc", "share"),
        ("accept_length_served", "tokens"),
        ("hidden_states_bytes", "bytes"),
        ("ready_s", "s"),
        ("speedup", "x"),
        ("lr", ""),
        ("tokens/s", "tokens/s"),
    ],
)
def test_units(name: str, unit: str) -> None:
    assert unit_of(name) == unit


@settings(max_examples=60)
@given(
    st.dictionaries(st.sampled_from(["processes", "left_out"]), JSON) | st.just({}), st.lists(JSON, max_size=3), SIZES
)
def test_any_answer_about_processes(answer: dict[str, Any], rows: list[Any], width: int) -> None:
    names = ["event", "stage", "role", "rank", "pid", "argv", "log", "offset", "started", "ended", "state", "code"]
    made = [dict(zip(names, row, strict=False)) if isinstance(row, list) else row for row in rows]
    for one in ({"processes": made}, answer):
        entries, _ = read_processes(one)
        for entry in entries:
            check([process_line(entry, None, 1e9, process_widths(width, entries), BLOCKS)], width)
            check(process_detail(entry, None, None, "none", width, everything=True), width)


@settings(max_examples=60)
@given(JSON, SIZES)
def test_any_answer_about_environments_artifacts_and_verdicts(answer: Any, width: int) -> None:
    row = {"path": "/a", "inside": answer, "note": answer, "bytes": answer, "stage": answer, "why": answer}
    artifacts, _ = read_artifacts({"artifacts": [row, answer]})
    for artifact in artifacts:
        check([artifact_line(artifact, width, BLOCKS)], width)
        check(artifact_detail(artifact, width), width)
    environment = read_environment({"variables": answer, "changed": answer, "removed": answer, "compared": True})
    (entry,), _ = read_processes({"processes": [{"role": "x", "argv": ["a"]}]})
    check(process_detail(entry, None, environment, "", width, everything=True), width)
    check([verdict_line("stage/name", True, "why", width, BLOCKS)], width)
    check(verdict_detail("stage/name", False, "why", {"deep": answer}, width), width)


def test_a_stage_tells_its_attempt_and_when_it_failed_the_root_cause() -> None:
    root = {"file": "engine.log", "line_no": 8, "text": "out of\x1b memory", "explanation": "full", "fix": "less"}
    again = StageRow("use", "running", facts={"attempt": 2, "root": root})
    told = check(stage_detail(again, None, [], 78, BLOCKS), 78)
    assert "attempt    2: the watchdog" in told
    assert "out of" not in told, "that was the attempt before"
    told = check(stage_detail(StageRow("use", "failed", facts={"root": root}), None, [], 78, BLOCKS), 78)
    assert "cause      engine.log:8" in told
    assert "meaning    full" in told
    assert "fix        less" in told
    watch = RunWatch("20261130-044512-older-aaaa")
    watch.take(event("stage", {"status": "failed", "error": "exit code 1", "root": root}, stage="use"))
    (_, _, text), *_ = watch.detail({}).tail
    assert text.startswith("use: failed: exit code 1; cause: engine.log:8  out of")


@settings(max_examples=60)
@given(st.dictionaries(TEXT, JSON | st.dictionaries(TEXT, JSON), max_size=3), SIZES, st.sampled_from([ASCII, BLOCKS]))
def test_any_state_of_a_run(stages: dict[str, Any], width: int, glyphs: Glyphs) -> None:
    facts = {"status": "running", "usage": stages, "error": "x", "seconds": 1, "started": 5, "cpu_seconds": 2}
    odd = dict(zip(("file", "line_no", "text", "explanation", "fix"), stages.values(), strict=False))
    failed = {"status": "failed", "root": odd, "attempt": next(iter(stages.values()), None)}
    state = {"stages": {**stages, "train": facts, "use": failed}}
    detail = RunWatch("20261130-044512-older-aaaa").detail({"state": state, "status": "running"})
    check(run_lines(detail, 1e9, width), width)
    for stage in detail.stages:
        check([stage_line(stage, None, 1e9, width, glyphs)], width)
        check(stage_detail(stage, live_of(None, "r"), [("loss", "1")], width, glyphs), width)


@given(st.lists(st.text(max_size=8), min_size=1, max_size=8), st.integers(5, 80))
def test_a_command_over_several_lines_is_the_same_command(argv: list[str], width: int) -> None:
    assert shlex.split("\n".join(command_lines(argv, width)).replace("\\\n", " ")) == argv


def test_a_command_that_can_be_repeated_leaves_secrets_out() -> None:
    (entry,), _ = read_processes({"processes": [{"role": "x", "argv": ["serve", "a b"]}]})
    answer = {"variables": {}, "changed": {"A": ["1 2", None], "B_TOKEN": ["[redacted]", None]}, "removed": {"C": "x"}}
    assert reproducing(entry, read_environment(answer)) == "env -u C A='1 2' serve 'a b'"
    assert reproducing(entry, None) == "serve 'a b'"


def test_what_the_machine_says_is_told_of_the_run_it_belongs_to() -> None:
    procs = [
        {"pid": 7, "run": "/root/runs/r", "cpu": 50.0, "rss": 100, "state": "R"},
        {"pid": 8, "run": "/root/runs/r/", "cpu": 25.0, "state": "S"},
        {"pid": 9, "run": "/root/runs/other", "cpu": 99.0},
    ]
    live = live_of(read_sample({"t": 1.0, "mono": 1.0, "procs": procs}), "r")
    assert (sorted(live.by_pid), live.cpu, live.rss, live.gpu_memory) == ([7, 8], 75.0, 100.0, None)


def test_ranks_stand_together_in_order_below_what_runs() -> None:
    def row(role: str, rank: str | None, started: float, state: str = "running") -> dict[str, Any]:
        return {"role": role, "rank": rank, "started": started, "state": state, "stage": "train", "event": 1}

    ranks = [row("train", str(rank), 10.0 + rank / 100) for rank in (10, 0, 2)]
    listed = [row("old", None, 1.0, "ended"), row("supervisor", None, 2.0), *ranks, row("late", None, 20.0)]
    entries, _ = read_processes({"processes": listed})
    told = [entry.role + entry.rank for entry in entries]
    assert told == ["late", "train0", "train2", "train10", "supervisor", "old"]


@pytest.mark.parametrize("width", [74, 110, 156])
def test_the_time_left_is_never_taken_for_the_time_taken(width: int) -> None:
    stage = StageRow("train", "running", done=18, total=12_000, unit="steps", rate=11.5, read=1e9)
    told = check([stage_line(stage, None, 1e9, width, BLOCKS)], width)
    assert "min left" in told or "17 min 22 s left" in told
    # What is counted is done, and yet it runs: how long that takes nobody knows.
    stage.done, stage.facts = 12_000, {"started": 1e9 - 90}
    assert stage.left is None
    assert "for 2 min" in check([stage_line(stage, None, 1e9, width, BLOCKS)], width)


def test_a_word_is_not_said_twice() -> None:
    row = RunRow("r", "r", "interrupted", 1e9, "interrupted: its supervisor was killed")
    detail = RunDetail(row, "", "", [], [("verify/wiring", False, "x"), ("bench/y", True, "")], [], row.cause)
    told = check(run_lines(detail, 1e9, 100), 100)
    assert told.count("interrupted") == 1
    assert "1 of 2 verdicts FAIL" in told
