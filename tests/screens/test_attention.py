"""What waits for a person is found in whatever the console knows, and said once."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from test_machine import JSON

from eagle3ops.hosts.link import LinkState
from eagle3ops.screens.feeds.incidents_feed import cleaned
from eagle3ops.screens.feeds.machine import Snapshot
from eagle3ops.screens.feeds.watching import RunDetail, RunRow, StageRow
from eagle3ops.screens.overview.attention import MOST, Matter, matters
from eagle3ops.screens.overview.lines import (
    event_lines,
    hosts_line,
    link_lines,
    matter_lines,
    no_runs_lines,
    run_lines,
    status_line,
)
from eagle3ops.screens.widgets.cells import Line
from eagle3ops.screens.widgets.glyphs import ASCII, BLOCKS
from eagle3ops.watchdog.incidents.incident import Incident
from eagle3ops.words import plain

NOW = 1.79e9


def row(name: str, status: str, ago: float = 60.0, **more: Any) -> RunRow:
    return RunRow(f"20261130-054512-{name}", name, status, NOW - ago, **more)


def detail(run: RunRow, **more: Any) -> RunDetail:
    facts: dict[str, Any] = {"path": "", "job": "pipeline", "stages": [], "verdicts": [], "tail": []}
    return RunDetail(row=run, **(facts | more))


def snapshot(**disks: dict[str, Any]) -> Snapshot:
    return Snapshot(0.0, 0.0, (), "", "", (), 0, {"disks": disks}, 0.0, late=False, gap_s=None)


def text(lines: list[Line]) -> str:
    return "\n".join("".join(part for part, _ in line) for line in lines)


def read(answer: Any) -> list[Incident]:
    """The incidents of an answer of `incidents.list`, whatever it may be."""
    listed = answer.get("incidents") if isinstance(answer, dict) else None
    cleansed = (cleaned(one) for one in (listed if isinstance(listed, list) else []))
    return [one for one in cleansed if one is not None]


def found(*rows: RunRow, **more: Any) -> list[tuple[str, str | None]]:
    answer = matters(
        rows,
        more.get("detail"),
        more.get("snapshot"),
        read(more.get("incidents")),
        more.get("drafters"),
        NOW,
    )
    return [(one.word, one.run.rpartition("-")[0].rpartition("-")[2] if one.run else None) for one in answer]


def test_a_run_that_stopped_for_a_verdict_is_not_one_to_resume() -> None:
    cause = "bench was not started: verify/wiring is FAIL, so its figures would say nothing"
    stopped = row("a-0001", "failed", exit_code=3, cause=cause)
    (matter,) = matters([stopped], None, None, [], None, NOW)
    assert (matter.word, matter.room, matter.hint) == ("FAIL", "wiring", "6 Wiring")
    assert cause in matter.text
    told = detail(stopped, verdicts=[("verify/wiring", False, "every layer is off by +1")], cause=cause)
    (matter,) = matters([stopped], told, None, [], None, NOW)
    assert matter.room == "wiring"
    assert "every layer is off by +1" in matter.text


def test_runs_that_failed_or_stopped_wait_until_one_of_the_same_name_did_better() -> None:
    broken, stopped = row("a-0001", "failed"), row("b-0001", "interrupted", 30)
    assert found(broken, stopped) == [("failed", "a"), ("interrupted", "b")]
    assert found(row("a-0002", "done", 10), broken, stopped) == [("interrupted", "b")]
    assert found(row("a-0002", "running", 10), broken) == []
    assert found(row("a-0002", "failed", 10), broken) == [("failed", "a")]
    assert found(row("a-0002", "cancelled", 10), broken) == [("failed", "a")], "a person ended it, nothing was mended"
    assert found(row("a-0001", "failed", 8 * 86400)) == []


def test_the_reason_and_the_way_on() -> None:
    refused = row("a-0001", "failed", cause="train needs 80 GiB and 12 are free", exit_code=6)
    [one] = matters([refused], None, None, [], None, NOW)
    assert (one.word, one.room) == ("refused", "run")
    assert "80 GiB" in one.text
    [open_] = matters(
        [row("a-0001", "verdict UNDECIDED", cause="verdict UNDECIDED: verify/wiring")], None, None, [], None, NOW
    )
    assert (open_.word, open_.look, open_.room) == ("UNDECIDED", "warn", "wiring")
    assert "verify/wiring" in open_.text
    bad = row("a-0001", "verdict FAIL")
    [one] = matters([bad], detail(bad, verdicts=[("bench/accept_length", False, "too short")]), None, [], None, NOW)
    assert (one.word, one.room, one.text) == ("FAIL", "bench", "a-0001: bench/accept_length: too short")
    [one] = matters([bad], None, None, [], None, NOW)
    assert one.room == "wiring"
    [one] = matters([row("a-0001", "verdict FAIL", cause="verdict FAIL: bench/equal")], None, None, [], None, NOW)
    assert (one.room, one.text) == ("bench", "a-0001: bench/equal, 1 min ago")


def test_a_run_that_holds_its_server_or_says_nothing() -> None:
    run = row("a-0001", "running")
    stages = [StageRow("serve", "running")]
    tail = [(NOW - 400, "info", "serve: serving at http://127.0.0.1:8000")]
    serving = detail(run, stages=stages, tail=tail, last_event=NOW - 400)
    [one] = matters([run], serving, None, [], None, NOW)
    assert (one.word, "127.0.0.1:8000" in one.text) == ("serving", True)
    assert found(run, detail=detail(run, last_event=NOW - 400)) == [("silent", "a")]
    assert found(run, detail=detail(run, last_event=NOW - 4)) == []


def test_a_disk_that_is_nearly_full_is_named_once() -> None:
    full = {"total": 1000, "free": 30}
    [one] = matters([], None, snapshot(a=full, b=full, c={"total": 1000, "free": 900}), [], None, NOW)
    assert (one.word, one.look) == ("disk", "bad")


def test_a_drafter_that_is_better_than_the_promoted_one() -> None:
    good = {
        "run": "20261130-054512-a-0001",
        "target": {"fingerprint": "t"},
        "speedup": {"value": 1.5, "low": 1.3},
        "verdicts": {"wiring": True},
        "promoted": None,
    }
    noise = good | {"run": "20261130-054512-b-0001", "speedup": {"value": 1.9, "low": 0.9}}
    assert found(drafters={"drafters": [good, noise]}) == [("promote?", "a")]
    assert found(drafters={"drafters": [good, good | {"promoted": "3/1/4"}]}) == []
    assert found(drafters={"drafters": [good | {"verdicts": {"wiring": False}}]}) == []


def test_incidents_that_are_open() -> None:
    one = {"id": "x", "run": "20261130-054512-a-0001", "severity": "error", "title": "killed", "last": NOW}
    answer = {"incidents": [one, one, one | {"id": "y", "over": True}]}
    assert found(incidents=answer) == [("incident", "a")]
    [waits] = matters([row("a-0001", "failed")], None, None, read(answer), None, NOW)
    assert (waits.word, waits.room) == ("failed", "incidents"), "one line for a run, which leads to why"
    assert waits.text == "a-0001, 1 min ago: killed"
    newer = [row("a-0002", "failed", 5), row("a-0001", "failed")]
    assert found(*newer, incidents=answer) == [("failed", "a")], "the older run is history"


ROWS = st.lists(
    st.builds(
        RunRow,
        st.text(max_size=30),
        st.text(max_size=12).map(plain),
        st.sampled_from(["failed", "done", "running", "interrupted", "verdict FAIL", "odd", "damaged"]),
        st.floats(0, 2e9),
        st.text(max_size=9).map(plain),
        st.none() | st.integers(-9, 300),
    ),
    max_size=5,
)
ENTRY = st.dictionaries(
    st.sampled_from(["id", "run", "severity", "title", "over", "last", "target", "speedup", "promoted", "name", "low"]),
    JSON | st.just({"value": 2.0, "low": 1.5}) | st.just("a\x1b[31m\u202e漢"),
)
ANSWER = JSON | st.fixed_dictionaries({"incidents": st.lists(ENTRY), "drafters": st.lists(ENTRY)})


@settings(max_examples=60)
@given(ROWS, ANSWER, JSON, st.integers(0, 170), st.sampled_from([BLOCKS, ASCII]))
def test_whatever_is_answered_is_shown_or_left_out(
    rows: list[RunRow], answer: Any, disks: Any, width: int, glyphs: Any
) -> None:
    host = Snapshot(0.0, 0.0, (), "", "", (), 0, {"disks": disks}, 0.0, late=False, gap_s=None)
    waiting = matters(rows, detail(rows[0], cause="c" * 40) if rows else None, host, read(answer), answer, NOW)
    assert len(waiting) <= MOST
    assert len({one.key for one in waiting}) == len(waiting)
    lines = [
        *matter_lines(waiting, width, glyphs),
        *run_lines(rows, max(24, width), glyphs, NOW, stale=False),
        hosts_line(
            "gpu", LinkState("waiting", why=str(answer)[:50]), "waiting", 9.0, ["a", "b"], max(24, width), glyphs
        ),
        *([status_line(detail(rows[0], cause="c" * 200), NOW, max(24, width), glyphs)] if rows else []),
    ]
    for line in lines:
        drawn = "".join(part for part, _ in line)
        assert cell_len(drawn) <= max(24, width)
        assert drawn.isprintable()


def test_events_are_newest_first_and_go_on_in_further_lines() -> None:
    tail = [(NOW, "info", "first"), (NOW + 1, "error", "second " * 12)]
    lines = event_lines(tail, 40, 10)
    assert "second" in text(lines[:1])
    assert lines[0][1][1] == "bad"
    assert "first" in text(lines[-1:])
    assert len(event_lines(tail, 40, 2)) == 2


def test_what_to_do_without_a_run_or_a_host() -> None:
    told = text(no_runs_lines("gpu", "/data/runs", rooted=True, width=78))
    assert "eagle3ops --job pipeline --host gpu --root /data/runs" in told
    stopped = LinkState("stopped", why="the key has changed", remedy="ask whoever runs it")
    assert "→ ask whoever runs it" in text(link_lines("gpu", stopped, 78))
    nothing: list[Matter] = []
    assert "nothing waits" in text(matter_lines(nothing, 40, BLOCKS))
