"""Incidents are shown with evidence and remedies, are news once, and nothing in them steers the terminal."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from screen_text import until

from eagle3ops.runs.directory import RunDirectory
from eagle3ops.runs.events import EventLog
from eagle3ops.screens.app import ConsoleApp
from eagle3ops.screens.feeds.incidents_feed import IncidentsFeed, cleaned
from eagle3ops.screens.incidents.lines import (
    Choice,
    about_lines,
    choice_line,
    choices_of,
    cut_evidence,
    timeline_head,
    timeline_line,
)
from eagle3ops.screens.incidents.room import Incidents
from eagle3ops.screens.widgets.glyphs import BLOCKS
from eagle3ops.settings import resolve
from eagle3ops.watchdog.incidents.incident import Evidence, Incident, Remedy

EVIL = "[bold red]x[/] [@click=app.quit]y[/] \x1b]52;c;eA==\x07 \u202e"
RUN = "20261130-054512-demo-bbbb"


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    made = RunDirectory(tmp_path / "runs" / RUN)
    made.logs.mkdir(parents=True)
    (made.path / "request.json").write_text(json.dumps({"job": "pipeline", "stages": [], "cache": "", "source": "x"}))
    stages = {"train": {"status": "failed"}}
    (made.path / "state.json").write_text(json.dumps({"status": "failed", "exit_code": 1, "stages": stages}))
    (made.logs / "train.log").write_text("step 1\nTraceback (most recent call last):\n  x\nValueError: it broke\n")
    with EventLog(made.events_file) as log:
        log.append("stage", {"status": "running"}, "train")
        log.append("warn", {"text": EVIL}, "train")
        log.append("stage", {"status": "failed", "error": EVIL, "remedy": "try eagle3ops doctor first"}, "train")
    return made


@pytest.mark.parametrize("size", [(80, 24), (160, 48)])
async def test_timeline_evidence_and_remedies(
    run: RunDirectory, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    did: list[tuple[Any, ...]] = []
    monkeypatch.setattr(Incidents, "command", lambda self, *words: did.append(words))
    monkeypatch.setattr(Incidents, "_copy", lambda self, text: did.append(("copy", text)))
    monkeypatch.setattr(
        ConsoleApp, "open_log", lambda self, run_id, log, offset=None: did.append((run_id, log, offset)), raising=False
    )
    app = ConsoleApp(str(run.root))
    async with app.run_test(size=size) as pilot:
        await pilot.press("5")
        text = await until(
            pilot, "1 stands, 1 over", "✗ error", "open", "train failed: [bold red]x[/]", "→ take the run"
        )
        assert "\x1b" not in text
        assert "Enter: train.log" in text or size == (80, 24)
        assert "kept" in text
        # The cursor stands on the first remedy; its evidence is above it.
        await pilot.press("enter", "enter")
        await pilot.pause()
        assert did == [("copy", f"eagle3ops doctor --root {run.root}")]
        await pilot.press("down", "enter", "home", "enter", "y")
        await pilot.pause()
        assert did[1:3] == [("resume", RUN), (RUN, "train.log", 7)]
        assert did[3][1].startswith("train: [bold red]x[/]")
        await pilot.press("end", "enter")
        await pilot.pause()
        assert did[-1] == (RUN, "train.log", 7)
        await pilot.press("escape", "f")
        await until(pilot, "those that stand")
        await pilot.press("f")
        await until(pilot, "of the selected run")
        await pilot.press("escape")
        await until(pilot, "Overview")


async def test_a_new_incident_is_told_once_and_one_that_was_there_is_not(run: RunDirectory) -> None:
    app = ConsoleApp(str(run.root))
    async with app.run_test(size=(120, 30)) as pilot:
        await pilot.press("5")
        await until(pilot, "1 stands")
        await pilot.press("9")
        with EventLog(run.events_file) as log:
            log.append("incident", {"id": "w1", "title": "a deadlock", "severity": "error"}, "train")
            app.incidents.hurry()
            while not any("deadlock" in toast.message for toast in app._notifications):
                await pilot.pause(0.05)
            await pilot.press("5")
            # It is the newest, so the cursor is on it.
            await until(pilot, "2 stand", "✗ error: a deadlock")
            log.append("incident", {"id": "w1", "title": "a deadlock", "severity": "error", "count": 2}, "train")
            await until(pilot, "(2 times)")
        told = [toast.message for toast in app._notifications if "deadlock" in toast.message]
        assert told == ["a deadlock\n5 opens Incidents."]


async def test_the_evidence_of_a_hang_is_opened_and_the_logs_are_found_again(run: RunDirectory) -> None:
    folder = run.artifacts / "incident-1"
    folder.mkdir(parents=True)
    (folder / "dossier.json").write_text('{"subject": "a hang"}\n')
    (folder / "kernel.txt").write_text(f"the kernel says {EVIL}\n")
    hang: dict[str, Any] = {"id": "w1", "kind": "stopped", "severity": "error", "title": EVIL, "folder": str(folder)}
    hang |= {"evidence": [{"what": f"state T {number}"} for number in range(10)]}
    hang["remedies"] = [{"words": f"the evidence is in {folder}", "action": "evidence"}]
    with EventLog(run.events_file) as log:
        log.append("incident", hang, "train")
    app = ConsoleApp(str(run.root), resolved=resolve({"read_only": True}))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("5")
        # What can be done is in sight, however much evidence there is.
        await until(pilot, "2 stand", "✗ error: [bold red]x[/]", "Enter: open its files")
        await pilot.press("enter", "enter")
        await until(pilot, "incident-1/dossier.json", '"subject": "a hang"', "line 1 of 1")
        await pilot.press("greater_than_sign")
        text = await until(pilot, "incident-1/kernel.txt", "the kernel says [bold red]x[/]")
        assert "\x1b" not in text
        await pilot.press("l")
        await until(pilot, "the run's logs", "dossier.json", "kernel.txt")
        await pilot.press("home", "enter")
        await until(pilot, "train.log", "ValueError: it broke")
        await pilot.press("5", "enter", "enter")
        await until(pilot, "incident-1/dossier.json", "line 1 of 1")
        await pilot.press("m")
        await until(pilot, "train.log", "ValueError: it broke")


async def test_a_console_that_only_looks_resumes_nothing(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    did: list[tuple[Any, ...]] = []
    monkeypatch.setattr(Incidents, "command", lambda self, *words: did.append(words))
    monkeypatch.setattr(Incidents, "_copy", lambda self, text: did.append(("copy", text)))
    app = ConsoleApp(str(run.root), resolved=resolve({"read_only": True}))
    async with app.run_test(size=(120, 30)) as pilot:
        await pilot.press("5")
        await until(pilot, "→ take the run", "Enter copies")
        await pilot.press("enter", "down", "enter", "r", "c")
        await pilot.pause()
        ((_, command),) = did
        assert command.startswith(f"eagle3ops runs resume {RUN}")


async def test_nothing_wrong_is_said_as_such(tmp_path: Path) -> None:
    app = ConsoleApp(str(tmp_path))
    async with app.run_test(size=(80, 24)) as pilot:
        app.feed.sample = None
        await pilot.press("5")
        await until(pilot, "0 stand")


class World:
    """A console as far as the feed needs one."""

    def __init__(self) -> None:
        self.feed: Any = type("Feed", (), {"sample": None, "stale": ""})()
        self.runs: Any = None
        self.link: Any = type("Link", (), {"name": "gpu-host"})()


def test_what_is_gone_is_over_and_the_machine_remembers_when_it_began() -> None:
    world, news = World(), list[Incident]()
    feed = IncidentsFeed(world, clock=lambda: 50.0, on_new=news.append)
    gpu = {"i": 3, "uuid": "GPU-x", "state": "lost"}
    world.feed.sample = {"t": 10.0, "boot": "b", "gpu": []}
    silent: dict[str, Any] = {
        "id": "s",
        "title": "silent",
        "kind": "silent",
        "severity": "warn",
        "first": 1.0,
        "last": 9.0,
    }
    silent |= {"remedies": [{"words": "end it", "action": "cancel", "command": "eagle3ops runs cancel x"}]}
    feed.take({"incidents": [silent, None, {"title": 5}]})
    assert news == []
    assert feed.incidents[0].remedies[0].command == "eagle3ops runs cancel --host gpu-host x"
    world.feed.sample = {"t": 20.0, "boot": "b", "gpu": [gpu]}
    feed.take({"incidents": []})
    world.feed.sample = {"t": 30.0, "boot": "b", "gpu": [gpu]}
    feed.take({"incidents": []})
    assert [one.title for one in news] == ["GPU 3: lost"]
    assert {(one.title, one.over, one.first, one.last) for one in feed.incidents} == {
        ("GPU 3: lost", False, 20.0, 30.0),
        ("silent", True, 1.0, 9.0),
    }
    world.feed.sample = {"t": 40.0, "boot": "b", "gpu": [{"i": 3, "uuid": "GPU-x", "state": "ok"}]}
    feed.take({"incidents": [silent]})
    assert {(one.title, one.over) for one in feed.incidents} == {("GPU 3: lost", True), ("silent", False)}


def test_what_the_list_has_no_room_for_stands_above_it() -> None:
    long, short = Evidence("boundary 3 instead of 2, " * 5), Evidence("short", "a.log")
    choices = [Choice(evidence=short), Choice(evidence=long), Choice(remedy=Remedy("do"))]
    assert [cut_evidence(choices, at, 60) for at in range(3)] == ["", long.what, ""]
    assert cut_evidence(choices, 0, 20) == "short"
    assert cut_evidence([Choice(evidence=long), *choices], 3, 60) == long.what
    assert cut_evidence([], 0, 60) == ""
    one = Incident(id="a", kind="failed", severity="error", title="serve failed: no room", first=1.0, last=1.0)
    said = [line[0][0] for line in about_lines(one, 60, 2.0, "serve: no room")]
    assert not any("serve: no room" in line for line in said)
    assert any("of another" in line[0][0] for line in about_lines(one, 60, 2.0, "serve: of another"))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12) | st.just(EVIL),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
PART = st.fixed_dictionaries(
    {"what": JSON, "log": JSON, "offset": JSON, "words": JSON, "action": JSON | st.just("resume"), "command": JSON}
)


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(st.sampled_from(["id", "kind", "severity", "first", "last", "run", "stage", "count"]), JSON),
    st.text(max_size=30) | st.just(EVIL),
    st.lists(PART, max_size=3),
    st.integers(1, 180),
)
def test_any_incident_gives_lines_without_control_characters(facts: Any, title: str, parts: Any, width: int) -> None:
    one = cleaned({**facts, "title": title, "evidence": parts, "remedies": parts, "explanation": title * 3})
    if one is None:
        return
    lines = [timeline_head(width, BLOCKS), timeline_line(one, width, BLOCKS, 5.0), *about_lines(one, width, 5.0)]
    lines += [choice_line(choice, width, BLOCKS, read_only=width % 2 == 0) for choice in choices_of(one)]
    for line in lines:
        text = "".join(piece for piece, _ in line)
        assert text.isprintable() or not text
