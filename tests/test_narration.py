"""What is said of a run's events where there are no bars, and is each thing said once?"""

import sys
from typing import Any

import pytest

from eagle3ops.commands.story import Ending, Story
from eagle3ops.narration import Lines, lines
from eagle3ops.runs.events import Event

INCIDENT = {
    "title": "stage use: stopped in serving, for 11 s",
    "explanation": "A signal stopped it.",
    "remedies": [{"words": "`kill -CONT PID`"}, {"words": "the evidence is in /x/incident-1"}],
}


@pytest.mark.parametrize(
    ("kind", "data", "told"),
    [
        (
            "incident",
            INCIDENT,
            ["use: watchdog: stopped in serving, for 11 s", "    A signal stopped it.", "    -> `kill -CONT PID`"],
        ),
        ("incident", INCIDENT | {"again": True}, []),
        ("incident", {"remedies": [7, {"words": None}], "explanation": None}, ["use: watchdog: "]),
        (
            "remedy",
            {"step": "notify", "why": "no more is allowed", "evidence": "/x/incident-1"},
            ["use: watchdog: nothing is done: no more is allowed", "    the evidence is in /x/incident-1"],
        ),
        ("stage", {"status": "running", "attempt": 2}, ["use: running, attempt 2"]),
        ("run", {"status": "failed", "cause": "use: said once, at the end"}, ["run: failed"]),
        ("progress", {"done": 1}, []),
    ],
)
def test_lines(kind: str, data: dict[str, Any], told: list[str]) -> None:
    assert lines(Event(1, 1000.0, "use" if kind != "run" else None, kind, data)) == told


def test_the_tail_of_a_log_is_told_once_at_the_end_and_line_by_line(capsys: pytest.CaptureFixture[str]) -> None:
    cause = "the server ended; the last lines of /x/engine.log:\n    Traceback\n      File \x1b[31m\n    EOFError"
    data = {"status": "failed", "seconds": 31.0, "error": cause}
    assert lines(Event(1, 0.0, "serve", "stage", data)) == [
        "serve: failed after 31 s: the server ended; the last lines of /x/engine.log"
    ]
    story = Story(Lines(sys.stderr), lambda verb: f"eagle3ops runs {verb} x")
    assert story.conclude(Ending(1, f"serve: {cause}"), "run-1", "/runs/run-1", {}) == 1
    assert capsys.readouterr().err.splitlines() == [
        "run-1: serve: the server ended; the last lines of /x/engine.log:",
        "    Traceback",
        "      File [31m",
        "    EOFError",
        "run run-1 in /runs/run-1",
        "  take it up again: eagle3ops runs resume x",
    ]
