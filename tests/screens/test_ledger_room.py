"""The ledger shows all runs, filters and sorts them, compares two, takes notes, and deletes none by mistake."""

import json
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from screen_text import shown, until
from textual.widgets import Input

from eagle3ops.runs.directory import RunDirectory
from eagle3ops.runs.events import EventLog
from eagle3ops.runs.notes import notes_of
from eagle3ops.runs.processes import identify
from eagle3ops.screens.app import ConsoleApp
from eagle3ops.screens.ledger.book import ORDERS, Book, LedgerRow, matcher, read_row
from eagle3ops.screens.ledger.lines import (
    comparison_lines,
    detail_lines,
    patch_lines,
    table_head,
    table_line,
    when_words,
)
from eagle3ops.screens.ledger.note_drafts import NoteDrafts
from eagle3ops.screens.ledger.room import Ledger
from eagle3ops.screens.widgets.glyphs import ASCII, BLOCKS
from eagle3ops.settings import resolve

EVIL = "[bold red]x[/] [@click=app.quit]y[/] \x1b]52;c;eA==\x07 \u202e"
NOW = 1796025581.0


def make(root: Path, run_id: str, speedup: float | None = None, *, alive: bool = False, **state: Any) -> RunDirectory:
    run = RunDirectory(root / "runs" / run_id)
    run.logs.mkdir(parents=True)
    (run.path / "request.json").write_text(json.dumps({"job": "pipeline", "stages": [], "cache": "", "source": "x"}))
    (run.path / "state.json").write_text(json.dumps({"status": "done", "exit_code": 0, "job": "pipeline"} | state))
    run.spec_file.write_text(f"name: x\nseed: {speedup}\n")
    if speedup is not None:
        with EventLog(run.events_file) as log:
            log.append("metric", {"name": "speedup", "value": speedup}, "bench")
            log.append("verdict", {"name": "wiring", "passed": speedup < 1.4, "reason": EVIL}, "verify")
    if alive:
        me = identify(os.getpid())
        assert me is not None
        (run.path / "supervisor.json").write_text(json.dumps(asdict(me) | {"heartbeat": time.time()}))
    return run


@pytest.fixture
def root(tmp_path: Path) -> Path:
    now = time.time()
    make(tmp_path, "20261130-044512-older-aaaa", 1.2, started=now - 9000, ended=now - 7200)
    make(tmp_path, "20261130-054512-newer-bbbb", 1.5, started=now - 900, ended=now - 600)
    make(tmp_path, "20261130-064512-going-cccc", status="running", alive=True, exit_code=None, started=now - 60)
    failed: dict[str, Any] = {"status": "failed", "exit_code": 1, "cause": EVIL}
    failed["stages"] = {"train": {"status": "failed"}}
    make(tmp_path, "20261130-034512-broken-dddd", started=now - 9900, ended=now - 9600, **failed)
    return tmp_path


@pytest.mark.parametrize("size", [(80, 24), (160, 48)])
async def test_rows_filter_order_and_comparison(root: Path, size: tuple[int, int]) -> None:
    app = ConsoleApp(str(root))
    async with app.run_test(size=size) as pilot:
        await pilot.press("9")
        text = await until(pilot, "4 runs by newest", "1.50x", "✗ FAIL", "✓ PASS", "2 h ago", "● running", "5 min 00 s")
        await until(pilot, "> going-cccc")
        assert "\x1b" not in text
        for key in "/wiring:fail":
            await pilot.press({"/": "slash", ":": "colon"}.get(key, key))
        text = await until(pilot, "1 of 4 runs", "newer-bbbb")
        assert "older-aaaa" not in text
        await pilot.press("escape")
        await until(pilot, "4 runs by newest", "older-aaaa")
        await pilot.press("s")
        await until(pilot, "4 runs by speedup")
        # The keys come faster than anything is painted.
        await pilot.press("home", "space", "down", "space")
        text = await until(pilot, "What changed", "seed", "1.2", "1.5", "+25.0%")
        assert [line.strip()[0] for line in text.splitlines() if "* " in line] == ["*", "*"]
        assert "name" not in text.split("What changed")[1]
        await pilot.press("e")
        await until(pilot, "  name")
        await pilot.press("escape")
        await until(pilot, "20261130-044512-older-aaaa")
        await pilot.press("escape")
        await until(pilot, "Overview")
        assert app.current_mode == "overview"


async def test_the_run_under_the_cursor_is_the_one_in_the_other_rooms(root: Path) -> None:
    app = ConsoleApp(str(root))
    async with app.run_test(size=(120, 30)) as pilot:
        await pilot.press("9")
        await until(pilot, "4 runs by newest", "> going-cccc")
        assert app.runs.selected == "20261130-064512-going-cccc"
        await pilot.press("down", "1")
        await pilot.pause()
        assert app.runs.selected == "20261130-054512-newer-bbbb"
        await pilot.press("9", "down", "enter")
        await pilot.pause()
        assert (app.current_mode, app.runs.selected) == ("run", "20261130-044512-older-aaaa")
        # By mouse: the line under the border and the heading, and the room in the bar.
        await pilot.press("9")
        await until(pilot, "4 runs by newest")
        await pilot.click("#ledger-runs", offset=(20, 5))
        await until(pilot, "20261130-034512-broken-dddd")
        await pilot.click("RoomBar", offset=(2, 0))
        await pilot.pause()
        assert (app.current_mode, app.runs.selected) == ("overview", "20261130-034512-broken-dddd")


async def test_a_note_that_is_given_up_is_not_lost_and_one_that_is_saved_is_shown(root: Path) -> None:
    run = "20261130-034512-broken-dddd"
    kept = NoteDrafts("local", str(root))
    async with ConsoleApp(str(root)).run_test(size=(100, 30)) as pilot:
        await pilot.press("9")
        await until(pilot, "4 runs by newest")
        await pilot.press("end", "n")
        await until(pilot, f"A note on {run}")
        await pilot.press(*"less memory")
        while kept.read(run).get("hypothesis") != "less memory":
            await pilot.pause(0.05)
        # As if the console was killed: nobody has left the form.
    async with ConsoleApp(str(root)).run_test(size=(100, 30)) as pilot:
        await pilot.press("9")
        await until(pilot, "4 runs by newest")
        await pilot.press("end", "n")
        await until(pilot, "less memory")
        await pilot.press("tab", *"half", "escape")
        await pilot.pause()
        await pilot.press("n")
        await until(pilot, "less memory", "half")
        await pilot.press("tab", "tab", *"it fits", "enter")
        await until(pilot, "hypothesis: less memory", "outcome: it fits")
        (note,) = notes_of(RunDirectory(root / "runs" / run))
        assert (note["hypothesis"], note["outcome"]) == ("less memory", "it fits")
        while kept.read(run):
            await pilot.pause(0.05)


async def test_deleting_wants_the_name_and_spares_what_runs(root: Path) -> None:
    app = ConsoleApp(str(root))
    folder = root / "runs" / "20261130-034512-broken-dddd"
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press("9")
        await until(pilot, "4 runs by newest")
        await until(pilot, "> going-cccc")
        await pilot.press("D")
        while "is running" not in str([toast.message for toast in app._notifications]):
            await pilot.pause(0.05)
        await pilot.press("end", "D")
        await until(pilot, f"Delete the run {folder.name}?", "go for good")
        await pilot.press(*"wrong", "enter")
        await pilot.pause()
        await pilot.press("escape")
        await pilot.pause()
        assert folder.is_dir()
        await pilot.press("D")
        await until(pilot, "Delete the run")
        app.screen.query_one("#name", Input).value = folder.name
        await pilot.press("enter")
        await until(pilot, "3 runs by newest")
        assert not folder.exists()


async def test_a_console_that_only_looks_has_no_such_keys(root: Path) -> None:
    app = ConsoleApp(str(root), resolved=resolve({"read_only": True}))
    async with app.run_test(size=(120, 30)) as pilot:
        await pilot.press("9")
        text = await until(pilot, "4 runs by newest", "Mark")
        assert "Delete" not in text
        assert "Note" not in text
        await pilot.press("D", "n")
        await pilot.pause()
        assert isinstance(app.screen, Ledger)
        assert "Delete" not in shown(app)


def row(run_id: str = "20261130-044512-a-b", **facts: Any) -> LedgerRow:
    found = read_row({"run_id": run_id, "status": "done"} | facts)
    assert found is not None
    return found


def test_filters() -> None:
    one = row(
        status="failed", cause="Out of memory", figures={"bench/speedup": 1.5, "bench/accept_length_served": 2.5},
        verdicts={"verify/wiring": False}, note={"outcome": "Helps"}, started=0.0, ended=7200.0, notes=2,
    )  # fmt: skip
    for words in (
        "",
        "FAILED memory",
        "speedup>1.2",
        "accept<=2.5",
        "wiring:fail",
        "helps",
        "-done",
        "took>1h",
        "notes>1",
    ):
        assert matcher(words)(one), words
    for words in ("done", "speedup>1.6", "gap>0", "-failed", "wiring:pass", "took<=1h", "speedup=1.4"):
        assert not matcher(words)(one), words


def test_a_book_learns_what_changed_and_forgets_with_the_generation() -> None:
    book = Book()
    book.take(
        {"generation": "a", "version": 2, "rows": [{"run_id": "x"}, {"run_id": "y"}, {}, 5], "total": 2, "more": True}
    )
    assert (sorted(book.rows), book.since, book.more) == (["x", "y"], 2, True)
    book.take({"generation": "a", "version": 3, "rows": [{"run_id": "x", "status": "failed"}]})
    assert (book.rows["x"].status, len(book.rows)) == ("failed", 2)
    book.take({"generation": "b", "version": 1, "rows": [{"run_id": "z"}]})
    assert list(book.rows) == ["z"]


def test_a_narrow_ledger_cuts_neither_a_stage_nor_a_status() -> None:
    names = ("fetch", "generate", "extract", "train", "serve", "verify", "bench", "report")
    one = row(status="verdict FAIL", stages=dict.fromkeys(names, "done"))
    said = ["".join(text for text, _ in line) for line in detail_lines(one, None, 60, BLOCKS)]
    assert all(any(f"✓ {name}" in line for line in said) for name in names)
    assert max(map(cell_len, said)) <= 62
    line = "".join(text for text, _ in table_line(one, 78, BLOCKS, "1 h ago", marked=False, chosen=False))
    assert "! FAIL " in line
    lost = row(status="interrupted", verdicts={"verify/wiring": False})
    for width in (58, 78, 140):
        parts = table_line(lost, width, BLOCKS, "1 h ago", marked=False, chosen=False)
        line = "".join(text for text, _ in parts)
        assert "◌ interrupted" in line
        assert line.count("…") <= 1
        assert ("✗ FAIL", "bad") in parts


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12) | st.just(EVIL),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
NAMES = st.sampled_from(
    ["run_id", "status", "exit_code", "created", "started", "ended", "cause", "stages", "figures", "verdicts", "note"]
)


async def test_patches_of_a_run_and_of_its_host(root: Path) -> None:
    with EventLog(root / "runs" / "20261130-054512-newer-bbbb" / "events.jsonl") as log:
        told = {"recipe": "sglang-toy", "standing": "applied", "site": EVIL}
        log.append("info", {"text": "x", "patch": told}, "serve")
    (root / "patches").mkdir()
    lines = [
        {"at": NOW, "event": "applied", "recipe": "sglang-toy", "site": "/venv/site", "version": "0.5.14",
         "files": [["/venv/site/sglang/model.py", "0" * 64, "1" * 64]]},
        {"at": NOW + 60, "event": "applied", "recipe": EVIL, "site": "/b", "files": []},
        {"at": NOW + 90, "event": "reverted", "recipe": EVIL, "site": "/b", "files": []},
    ]  # fmt: skip
    (root / "patches" / "journal.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    app = ConsoleApp(str(root))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("9")
        await until(pilot, "4 runs by newest")
        await pilot.press("slash", *"patch", "colon", *"sglang", "enter")
        await until(pilot, "1 of 4 runs", "newer-bbbb", "± sglang-toy applied")
        await pilot.press("p")
        text = await until(pilot, "Patches of this host's engines", "drifted", "/venv/site", "0.5.14", "model.py")
        assert "is neither the patched nor the original file" in text
        assert text.index("reverted") < text.rindex("sglang-toy")
        assert not {"\x1b", "\x07", "\u202e"} & set(text)
        await pilot.press("p")
        await until(pilot, "± sglang-toy applied")


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(NAMES, JSON),
    st.dictionaries(st.sampled_from(["runs", "sections", "x"]), JSON),
    st.integers(1, 200),
    st.text(max_size=12),
    st.booleans(),
)
def test_any_answer_gives_lines_of_the_width_without_control_characters(
    facts: Any, answer: Any, width: int, words: str, unfolded: bool
) -> None:
    glyphs = ASCII if unfolded else BLOCKS
    lines = [table_head(width, glyphs), *comparison_lines(answer, width, glyphs, unfolded=unfolded)]
    sections = [{"name": "metrics", "different": [["k", facts, answer], [words, 1, 2.5]], "equal": [[words, facts]]}]
    lines += comparison_lines({"sections": sections, "runs": [facts, answer]}, width, glyphs, unfolded=unfolded)
    book = Book()
    book.take(
        {"rows": [facts, facts | {"run_id": EVIL}], "generation": facts.get("cause"), "version": facts.get("ended")}
    )
    for order in ORDERS:
        for one in book.view(words, order):
            lines.append(table_line(one, width, glyphs, when_words(one, NOW), marked=unfolded, chosen=unfolded))
            lines += detail_lines(one, [facts] if unfolded else None, width, glyphs)
    lines += patch_lines(answer | {"standing": [facts, answer], "deeds": [facts, words, answer]}, width, glyphs)
    for line in lines:
        text = "".join(piece for piece, _ in line)
        assert text.isprintable() or not text
        if width > 100:
            assert cell_len(text) <= width + 4
