"""What is said of a run's events where there are no bars, and is each thing said once?"""

from typing import Any

import pytest

from eagle3ops.narration import lines
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
