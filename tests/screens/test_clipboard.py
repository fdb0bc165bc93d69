"""What is copied arrives somewhere, and the words say where."""

import shutil
import subprocess
from pathlib import Path

import pytest

from eagle3ops.screens.widgets.clipboard import OSC_52_BYTES, copy


async def test_a_terminal_gets_osc_52_unless_it_would_drop_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    sent: list[str] = []
    assert "OSC 52" in await copy("a line", sent.append, {"TERM": "xterm-256color"})
    assert sent == ["a line"]
    long = "ü" * OSC_52_BYTES
    for text, environment in (
        (long, {"TERM": "xterm"}),
        ("x", {"TERM": "linux"}),
        ("y", {}),
        ("z", {"STY": "1", "TERM": "screen"}),
    ):
        where = await copy(text, sent.append, environment)
        assert where.startswith("to the file ")
        assert written(where) == text
    assert sent == ["a line"]


def written(where: str) -> str:
    path = Path(where.removeprefix("to the file "))
    assert path.stat().st_mode & 0o077 == 0
    return path.read_text("utf-8")


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
async def test_in_tmux_its_buffer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    socket = tmp_path / "tmux.sock"
    tmux = ("tmux", "-S", str(socket), "-f", "/dev/null")

    def ask(*words: str) -> str:
        return subprocess.run([*tmux, *words], capture_output=True, text=True, check=True).stdout

    ask("new-session", "-d", "sleep 600")
    try:
        sent: list[str] = []
        monkeypatch.setenv("TMUX", f"{socket},1,0")
        environment = {"TMUX": f"{socket},1,0", "TERM": "screen"}
        assert "tmux buffer" in await copy("eins\nzwei ü", sent.append, environment)
        assert ask("show-buffer") == "eins\nzwei ü"
        ask("set-option", "-g", "set-clipboard", "on")
        assert "OSC 52" in await copy("drei", sent.append, environment)
        assert sent == ["drei"]
    finally:
        ask("kill-server")


async def test_without_a_tmux_that_answers_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert written(await copy("x", lambda _: None, {"TMUX": "gone"})) == "x"
