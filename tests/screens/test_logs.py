"""The logs of a run: opened at the end, followed, filtered, searched, wrapped, copied; by key and by mouse."""

import json
import os
import shutil
import time
from dataclasses import asdict
from pathlib import Path

import pytest
from screen_text import shown, until
from textual.events import MouseScrollUp
from textual.pilot import Pilot
from textual.widgets import Input

from eagle3ops.runs.processes import identify
from eagle3ops.screens.app import ConsoleApp
from eagle3ops.screens.logs import room as logs_screen
from eagle3ops.screens.logs.room import Logs
from eagle3ops.screens.logs.source import Line
from eagle3ops.screens.logs.view import LogView

RUN = "20261130-054512-demo-bbbb"
HOSTILE = (
    b"\x1b]52;c;aGk=\x07osc \x1b[2Jcsi\n[@click=app.quit]click[/] [bold red]x[/ unbalanced\n"
    b"bidi \xe2\x80\xaeliave\xe2\x80\xac end\nnul \0 and \xff\xfe\n" + b"y" * (1 << 20) + b"\nno end"
)


def log_lines(first: int, last: int) -> str:
    """A second a line, every hundredth an error, every tenth a warning."""
    return "".join(
        f"[2026-11-30 04:{n // 60 % 60:02d}:{n % 60:02d}] "
        f"{'ERROR' if n % 100 == 0 else 'WARNING' if n % 10 == 0 else 'INFO'} step {n}.\n"
        for n in range(first, last)
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The logs of a run that goes on."""
    run = tmp_path / "runs" / RUN
    (run / "logs").mkdir(parents=True)
    (run / "request.json").write_text(json.dumps({"job": "pipeline", "stages": [], "cache": "", "source": "x"}))
    (run / "state.json").write_text(json.dumps({"status": "running", "job": "pipeline"}))
    me = identify(os.getpid())
    assert me is not None
    (run / "supervisor.json").write_text(json.dumps(asdict(me) | {"heartbeat": time.time()}))
    (run / "logs" / "supervisor.log").write_text("")
    (run / "logs" / "engine-serve.log").write_bytes(HOSTILE)
    (run / "logs" / "train.log").write_text(log_lines(1, 3001))
    os.utime(run / "logs" / "engine-serve.log", (0, 0))
    return run / "logs"


def console(folder: Path) -> ConsoleApp:
    return ConsoleApp(str(folder.parents[2]))


def view_line(pilot: "Pilot[int]", row: int) -> Line | None:
    return pilot.app.screen.query_one(LogView).rows.get(row)


async def opened(pilot: "Pilot[int]") -> LogView:
    """The screen, with the log of the training at its end."""
    await until(pilot, "demo-bbbb")
    await pilot.press("o")
    await until(pilot, "step 3000.", "line 3,000 of 3,000", "▶ following")
    return pilot.app.screen.query_one(LogView)


@pytest.mark.parametrize("size", [(80, 24), (160, 48)])
async def test_it_opens_at_the_end_of_the_newest_log(folder: Path, size: tuple[int, int]) -> None:
    async with console(folder).run_test(size=size) as pilot:
        await opened(pilot)
        text = shown(pilot.app)
        assert "> 3000 E [2026-11-30 04:50:00] ERROR step 3000." in text
        assert "W [2026-11-30 04:49:50] WARNING step 2990." in text
        assert ("engine-serve " in text) is (size[0] == 160)
        await pilot.press("l")
        await until(pilot, "engine-serve", "1.0 MiB", "supervisor", "0 B")
        await pilot.press("l", "escape")
        await until(pilot, "r Resume")
        assert not isinstance(pilot.app.screen, Logs)


async def test_following_and_its_pause(folder: Path) -> None:
    async with console(folder).run_test(size=(100, 24), notifications=True) as pilot:
        view = await opened(pilot)
        with (folder / "train.log").open("a") as file:
            file.write(log_lines(3001, 3051) + "torn")
        await until(pilot, "step 3050.", "torn", "line 3,051 of 3,051", "▶ following")
        await pilot.press("up")
        await until(pilot, "■ paused, 1 below")
        with (folder / "train.log").open("a") as file:
            file.write(" no more\n" + log_lines(3051, 4051))
        await until(pilot, "line 3,050 of 4,051", "■ paused, 1,001 below", "torn no more")
        await pilot.press("f")
        await until(pilot, "step 4050.", "▶ following", "byte")
        view.post_message(MouseScrollUp(view, 5, 5, 0, -1, 0, shift=False, meta=False, ctrl=False))
        await until(pilot, "■ paused")
        await pilot.press("end")
        await until(pilot, "▶ following", "line 4,051")
        (folder / "train.log").write_text("begun anew\n")
        await until(pilot, "begun anew", "line 1 of 1")


async def test_moving(folder: Path) -> None:
    async with console(folder).run_test(size=(100, 24), notifications=True) as pilot:
        view = await opened(pilot)
        await pilot.press("home")
        await until(pilot, "] INFO step 1.", "line 1 of 3,000", "byte 0 of")
        await pilot.press("pagedown", "pagedown", "j", "k", "ctrl+d", "ctrl+u", "pageup", "pageup", "g")
        await until(pilot, "line 1 of 3,000")
        for typed, words in (("1500", "line 1,500 of"), ("-20", "line 2,981 of"), ("50%", "line 1,501 of")):
            await pilot.press("colon", *typed.replace("-", "").replace("%", ""))
            pilot.app.screen.query_one(Input).value = typed
            await pilot.press("enter")
            await until(pilot, words, f"step {words[5:10].replace(',', '')}.")
        await pilot.click(LogView, offset=(20, 3))
        await until(pilot, f"line {view.top + 3:,} of")
        await pilot.press("colon", "x", "enter")
        await until(pilot, "A place is a line number")


async def test_a_filter_as_one_types(folder: Path) -> None:
    async with console(folder).run_test(size=(100, 24), notifications=True) as pilot:
        await opened(pilot)
        await pilot.press("ampersand", *"step 29.5")
        await until(pilot, "filter step 29.5: 10 lines", "2905 ", "2995 ", "line 2,995 of 3,000", "▶ following")
        await pilot.press("enter", "home", "y")
        await until(pilot, "line 2,905 of", "1 line")
        with (folder / "train.log").open("a") as file:
            file.write("step 29x5\nstep 1\n")
        await until(pilot, "step 29.5: 11 lines")
        await pilot.press("colon", *"2931", "enter")
        await until(pilot, "line 2,935 of")
        # What was typed stands there again; without it, all lines are shown, the cursor where it was.
        await pilot.press("ampersand")
        assert pilot.app.screen.query_one(Input).value == "step 29.5"
        # What would be typed is no key: neither / nor ?, but F1.
        keys = (await until(pilot, "F1 Help")).splitlines()[-1]
        assert "Find" not in keys
        pilot.app.screen.query_one(Input).value = ""
        await pilot.press("enter")
        text = await until(pilot, "step 2934.", "line 2,935 of 3,002")
        assert "filter" not in text.splitlines()[-2]
        await pilot.press("ampersand", *"!INFO", "enter")
        await until(pilot, "filter !INFO: 302 lines")
        await pilot.press("e")
        await until(pilot, "filter !INFO and warnings and errors: 300 lines")
        await pilot.press("e")
        await until(pilot, "errors only: 30 lines")
        await pilot.press("e", "ampersand")
        pilot.app.screen.query_one(Input).value = "(("
        await until(pilot, "not a regular expression")


async def test_a_filter_with_more_matches_than_are_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eagle3ops.screens.logs.source.TEXTS", 100)
    monkeypatch.setattr("eagle3ops.screens.logs.source.KEPT_TEXTS", 700)
    (folder / "train.log").write_text(log_lines(1, 20_001))
    async with console(folder).run_test(size=(100, 24), notifications=True) as pilot:
        await until(pilot, "demo-bbbb")
        await pilot.press("o")
        await until(pilot, "step 20000.")
        await pilot.press("ampersand", *"!99", "enter")
        await until(pilot, "step 20000.", "!99: 19,440 lines", "19898 ")
        await pilot.press("home")
        await until(pilot, "] INFO step 1.")
        await pilot.press("colon", *"50%", "enter")
        await until(pilot, "paused, 9,719 below", "line 10,0")
        assert view_line(pilot, 9720) is not None


async def test_searching(folder: Path) -> None:
    async with console(folder).run_test(size=(100, 24), notifications=True) as pilot:
        view = await opened(pilot)
        await pilot.press("n")
        await until(pilot, "Nothing is searched for")
        await pilot.press("home", "slash", *"error step 1.00", "enter")
        await until(pilot, "/error step 1.00: 1 of 10", "line 1,000 of", "ERROR step 1000.")
        await pilot.press("n")
        await until(pilot, ": 2 of 10", "line 1,100 of")
        assert view.found[1099] == ((22, 37),)
        await pilot.press("N", "N")
        await until(pilot, ": 10 of 10", "line 1,900 of", "went on from the other end")
        await pilot.press("e")
        await until(pilot, "warnings and errors: 300", "/error step 1.00: 10")
        await pilot.press("n")
        await until(pilot, "warnings and errors: 300", ": 1 of 10", "line 1,000 of", "step 990.", "step 1010.")
        await pilot.press("slash")
        assert pilot.app.screen.query_one(Input).value == "error step 1.00"
        pilot.app.screen.query_one(Input).value = "never"
        await pilot.press("enter")
        await until(pilot, "No line matches")


async def test_hostile_lines_are_text(folder: Path) -> None:
    async with console(folder).run_test(size=(100, 30), notifications=True) as pilot:
        view = await opened(pilot)
        await pilot.press("less_than_sign")
        words = (
            "]52;c;aGk=osc [2Jcsi",
            "[@click=app.quit]click[/] [bold red]x[/ unbalanced",
            "bidi liave end",
            "no end",
        )
        for size in ((100, 30), (80, 24)):
            await pilot.resize_terminal(*size)
            text = await until(pilot, *words, "line 6 of 6", "nul  and \ufffd\ufffd")
            assert not set(text) & set("\x1b\x07\0\u202e\u202c")
        await pilot.press("w")
        await until(pilot, "yyyy", "wrapped", "no end", "> ")
        await pilot.press("home")
        await until(pilot, *words[:3])
        assert view.follow is False
        await pilot.press("w", "right", "right", "left", "t")
        await until(pilot, "begin with no time")
        await pilot.click(LogView, offset=(20, 2))
        assert isinstance(pilot.app.screen, Logs)


async def test_times_can_be_left_out(folder: Path) -> None:
    async with console(folder).run_test(size=(100, 24), notifications=True) as pilot:
        await opened(pilot)
        await pilot.press("t")
        text = await until(pilot, "no times", "> 3000 E ERROR step 3000.")
        assert "[2026" not in text
        await pilot.press("t")
        await until(pilot, "> 3000 E [2026")


async def test_copying_selected_lines(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[str] = []

    async def copy(text: str, _send: object) -> str:
        copied.append(text)
        return "to a test"

    monkeypatch.setattr(logs_screen, "copy", copy)
    async with console(folder).run_test(size=(100, 24), notifications=True) as pilot:
        await opened(pilot)
        await pilot.press("y")
        await until(pilot, "1 line, to a test")
        await pilot.press("v", "up", "up")
        await until(pilot, "3 selected")
        await pilot.press("shift+up", "y")
        await until(pilot, "4 lines, to a test")
        await pilot.press("v", "home")
        await until(pilot, "2,997 selected")
        await pilot.press("y")
        await until(pilot, "2,997 lines, to a test")
        await pilot.press("less_than_sign")
        await until(pilot, "no end")
        await pilot.press("v", "home", "y")
        await until(pilot, "6 lines, to a test")
    assert copied[0] == log_lines(3000, 3001)[:-1]
    assert copied[1] == log_lines(2997, 3001)[:-1]
    assert copied[2] == log_lines(1, 2998)[:-1]
    assert not set(copied[3]) & set("\x1b\0\x07\u202e")


async def test_a_dropped_line_looks_stale(folder: Path) -> None:
    async with console(folder).run_test(size=(100, 24), notifications=True) as pilot:
        await opened(pilot)
        app = pilot.app
        assert isinstance(app, ConsoleApp)
        await app.link.close()
        await until(pilot, "! closed", "read at", "step 3000.")
        assert app.screen.query_one("#log-body").has_class("stale")


@pytest.fixture
def no_logs(folder: Path) -> Path:
    """The same run before anything has written a log."""
    shutil.rmtree(folder)
    folder.mkdir()
    return folder


async def test_the_palette_and_a_run_without_logs(no_logs: Path) -> None:
    folder = no_logs
    async with console(folder).run_test(size=(80, 24)) as pilot:
        await until(pilot, "demo-bbbb")
        overview = pilot.app.screen
        assert "Logs (key 3)" in {command.title for command in pilot.app.get_system_commands(overview)}
        await pilot.press("o")
        await until(pilot, "This run has no logs yet.")
        titles = {command.title for command in pilot.app.get_system_commands(pilot.app.screen)}
        assert {"Follow", "Filter", "Copy", "Back"} <= titles
        await pilot.press(
            "y", "n", "e", "e", "e", "w", "t", "f", "right_square_bracket", "end", "pageup", "v", "escape"
        )
        (folder / "late.log").write_text("at last\n")
        await until(pilot, "at last", "line 1 of 1")
