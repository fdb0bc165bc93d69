"""Does text from outside change anything in a real terminal but text? Every room, over a run that is all hostile."""

import json
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_console_terminal import Terminal

from eagle3ops.screens.rooms import ROOMS

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")

SAID = "harmless-word"
EVIL = (
    f"{SAID} \x1b]52;c;aGk=\x07\x1b]2;owned\x07\x1b]0;owned\x1b\\\x1b[2J\x1b[?25h\x9b31m\x9d2;owned\x9c"
    "[@click=app.quit]x[/] [bold red]y[/z] [/] \u202eevil\u202c \u2066iso\u2069 \u200f \0nul\r\n\x08\x0b\x0c tail"
)
NAME = "20261130-054512-x\x1b]2;owned\x07[red]\u202e-bbbb"
LINES = [
    EVIL.encode().replace(b"\n", b" "),
    b"\xff\xfe\x80 invalid \xc3( \xed\xa0\x80",
    b"y" * (1 << 20),
    b"\0" * 5000,
    b"[@click=app.quit]click[/] [bold red]x[/ unbalanced",
    "Traceback (most recent call last):\n  \x1b[31mFile\nValueError: \x1b]52;c;aGk=\x07broken\u2067".encode(),
]
BIDI = [chr(code).encode() for code in (0x202A, 0x202B, 0x202C, 0x202D, 0x202E, 0x2066, 0x2067, 0x2068, 0x2069, 0x200F)]


def hostile_run(root: Path) -> None:
    """A run whose every text is hostile."""
    run = root / "runs" / NAME
    (run / "logs").mkdir(parents=True)
    stages = ["train", EVIL.replace("\0", ""), "verify"]
    request = {"job": EVIL, "stages": stages, "cache": EVIL, "source": EVIL, "run_id": EVIL, "created": 1_796_020_000}
    (run / "request.json").write_text(json.dumps(request))
    (run / "spec.yaml").write_text("name: 'x [red]'\n")
    said = {"at": 1_796_020_000, "by": EVIL, "hypothesis": EVIL, "change": EVIL, "outcome": EVIL}
    (run / "notes.jsonl").write_text(json.dumps(said) + "\n")
    failed = {"status": "failed", "error": EVIL, "remedy": EVIL, "log": f"logs/{EVIL}", "exit_code": 1, "seconds": 3}
    state = {"status": "failed", "job": EVIL, "name": EVIL, "exit_code": 1, "cause": EVIL, "remedy": EVIL,
             "versions": {EVIL: EVIL}, "started": 1_796_020_000, "ended": 1_796_020_100,
             "stages": {name: failed | {"out": EVIL, "key": EVIL, "signal": EVIL} for name in stages}}  # fmt: skip
    (run / "state.json").write_text(json.dumps(state))
    events = [
        ("run", None, {"status": "running", "stages": stages}),
        ("stage", EVIL, {"status": EVIL, "key": EVIL}),
        ("info", "train", {"text": EVIL}),
        ("warn", "train", {"text": EVIL}),
        ("error", "train", {"message": EVIL, "remedy": EVIL, "log": f"logs/{EVIL}", "offset": 3}),
        ("progress", "train", {"done": 1, "total": 2, "unit": EVIL}),
        ("metric", "train", {"name": EVIL, "value": 1.5, "step": 3}),
        ("artifact", "train", {"path": EVIL, "note": EVIL}),
        ("process", "train", {"role": EVIL, "state": "started", "pid": 7, "argv": [EVIL, EVIL], "log": EVIL}),
        ("process", "train", {"role": EVIL, "state": "ended", "pid": 7, "code": 1, "signal": EVIL}),
        ("verdict", "verify", {"name": EVIL, "passed": False, "reason": EVIL, "remedy": EVIL, "cause": EVIL}),
        ("incident", "train", {"id": EVIL, "title": EVIL, "kind": EVIL, "severity": EVIL, "explanation": EVIL,
                               "evidence": [[EVIL, EVIL, 3]], "remedies": [[EVIL, EVIL]], "first": 1, "last": 2}),
        (EVIL, EVIL, {EVIL: EVIL}),
    ]  # fmt: skip
    (run / "events.jsonl").write_text(
        "".join(
            json.dumps({"seq": seq, "ts": 1_796_020_000 + seq, "stage": stage, "kind": kind, "data": data}) + "\n"
            for seq, (kind, stage, data) in enumerate(events, 1)
        )
    )
    for name in ("train.log", "engine\x1b]2;owned\x07[red]\u202e.log"):
        (run / "logs" / name).write_bytes(b"\n".join(LINES) + b"\nno end")


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    opened = Terminal(tmp_path)
    yield opened
    opened.tmux("kill-server", check=False)


def test_every_room_shows_hostile_text_as_text(terminal: Terminal, tmp_path: Path) -> None:
    hostile_run(terminal.root)
    (twin,) = (terminal.root / "runs").iterdir()
    shutil.copytree(twin, twin.with_name(f"{NAME[:-1]}c"))
    terminal.open(size=(120, 36))
    raw = tmp_path / "raw"
    terminal.tmux("set-option", "-g", "set-clipboard", "on")
    terminal.tmux("pipe-pane", f"cat > '{raw}'")
    title = terminal.tmux("display-message", "-p", "#{pane_title}")
    terminal.until("local: connected", SAID)
    pressed = {
        "overview": ("c", "r", "H", "Escape", "d", "Down"),
        "run": ("Tab", "m", "Tab", "Down"),
        "logs": ("m", "E", "m", "w", "Home", "PageDown", "<", "w", "l"),
        "incidents": ("Enter", "Down", "Tab"),
        "ledger": ("n", "Escape", "D", "Escape", "Space", "Down", "Space", "e"),
        "launch": ("o", "End", "Escape", "?", "Escape"),
    }
    for entry in ROOMS:
        terminal.keys(entry.key)
        time.sleep(1.0)
        for key in pressed.get(entry.name, ("Tab", "Down")):
            terminal.keys(key)
            time.sleep(0.25)
        screen = terminal.screen()
        assert f"{ROOMS[0].key}{ROOMS[0].label[:3]}" in screen.splitlines()[1], (entry.name, screen)
        assert "defect" not in screen, (entry.name, screen)
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200f\u202a-\u202e\u2066-\u2069]", screen), entry.name
        terminal.keys("Escape")
        time.sleep(0.2)
    terminal.keys("1")
    terminal.until("1Overview")
    assert terminal.tmux("display-message", "-p", "#{pane_title}") == title
    assert terminal.tmux("list-buffers") == ""
    assert terminal.tmux("display-message", "-p", "#{window_bell_flag} #{pane_dead} #{alternate_on}").split() == [
        *("0", "0", "1")
    ]
    said = re.sub(rb"\x1b\]22;[\w-]*(?:\x07|\x1b\\)", b"", raw.read_bytes())
    for harm in (b"\x1b]", b"\x07", b"\xc2\x9b", b"\xc2\x9d", b"\0", *BIDI):
        at = said.find(harm)
        assert at < 0, (harm, said[max(0, at - 200) : at + 100])
    assert SAID.encode() in said
