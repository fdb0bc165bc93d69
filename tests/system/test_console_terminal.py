"""Does a real terminal get what it can show, and is it itself again however the console ends? Driven under tmux."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")

CONSOLE = f"{shlex.quote(sys.executable)} -m eagle3ops --root {{root}}"
COLOUR = re.compile(r"\x1b\[(?:[0-9;:]*[;:])?(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])(?:[;:][0-9;:]*)?m")
CRASHING = """\
import os, sys
from eagle3ops.screens import app
class Breaks(app.ConsoleApp):
    def on_key(self, event):
        if event.key == os.environ["BREAK_ON"]:
            secret = "token=hf_" + "A1b2C3d4E5f6G7h8"
            raise RuntimeError("broken with " + secret)
sys.exit(app.run(Breaks(sys.argv[1])))
"""


LEADING = """\
import pathlib, sys
from eagle3ops.screens import app
pathlib.Path(sys.argv[2]).write_text(str(app.main(sys.argv[1], "local")))
"""


class Terminal:
    """One tmux server with one shell in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "root"
        self.socket = folder / "tmux"
        self.exit_file = folder / "exit"

    def tmux(self, *words: str, check: bool = True) -> str:
        done = subprocess.run(
            ["tmux", "-S", str(self.socket), "-f", "/dev/null", *words], capture_output=True, text=True, check=check
        )
        return done.stdout

    def open(
        self, command: str | None = None, size: tuple[int, int] = (80, 24), *, alone: bool = False, **environment: str
    ) -> None:
        """A shell that runs the console, writes down its exit code, and stays; or a command without a shell."""
        command = command or CONSOLE.format(root=shlex.quote(str(self.root)))
        known = {
            "EAGLE3OPS_CONFIG": str(self.folder / "config"),
            "EAGLE3OPS_STATE": str(self.folder / "state"),
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "NO_COLOR": "",
        }
        options = [part for name, value in (known | environment).items() for part in ("-e", f"{name}={value}")]
        unset = "" if "NO_COLOR" in environment else "unset NO_COLOR; "
        script = f"trap '' HUP; {unset}(trap - HUP; exec {command}); echo $? > {shlex.quote(str(self.exit_file))}"
        shell = f"{script}; echo back in the shell; stty -a; sleep 600"
        if alone:
            shell = f"exec {command}"
        self.tmux("new-session", "-d", "-x", str(size[0]), "-y", str(size[1]), *options, "sh", "-c", shell)

    def screen(self, *options: str) -> str:
        return self.tmux("capture-pane", "-p", *options)

    def until(self, *words: str) -> str:
        text = ""
        for _ in range(600):
            text = self.screen()
            if all(word in text for word in words):
                return text
            time.sleep(0.1)
        raise AssertionError(f"{[word for word in words if word not in text]} did not appear in:\n{text}")

    def until_gone(self, words: str) -> None:
        for _ in range(600):
            if words not in self.screen():
                return
            time.sleep(0.1)
        raise AssertionError(f"{words} stayed")

    def keys(self, *keys: str) -> None:
        self.tmux("send-keys", *keys)

    def exit_code(self) -> int:
        for _ in range(600):
            if self.exit_file.exists() and self.exit_file.read_text().strip():
                return int(self.exit_file.read_text())
            time.sleep(0.1)
        raise AssertionError("the console did not end")

    def console_pid(self) -> int:
        shell = int(self.tmux("display-message", "-p", "#{pane_pid}"))
        children = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(shell)], capture_output=True, text=True, check=True
        )
        return int(children.stdout.split()[0])

    def itself_again(self) -> str:
        """The alternate screen left, the mouse off, the shell's lines echoed."""
        text = self.until("back in the shell")
        flags = self.tmux("display-message", "-p", "#{alternate_on} #{mouse_any_flag} #{mouse_sgr_flag} #{cursor_flag}")
        assert flags.split() == ["0", "0", "0", "1"]
        settings = self.until("-parenb" if "-parenb" in text else "speed")
        assert re.search(r"(?<![-\w])echo\b", settings)
        assert re.search(r"(?<![-\w])icanon\b", settings)
        return text


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    opened = Terminal(tmp_path)
    yield opened
    opened.tmux("kill-server", check=False)


@pytest.mark.parametrize("size", [(80, 24), (160, 48)])
def test_opened_resized_and_quit(terminal: Terminal, size: tuple[int, int]) -> None:
    terminal.open(size=size)
    terminal.until("No runs in", "local: connected", "q Quit")
    for width, height in ((60, 15), (20, 6), (200, 60), size):
        terminal.tmux("resize-window", "-x", str(width), "-y", str(height))
        # tmux tells a program of its size up to 250 ms late, and of none where it is the old one again by then; but it
        # has thrown away what did not fit meanwhile.
        time.sleep(0.5)
    terminal.until("No runs in", "local: connected", "q Quit")
    terminal.keys("?")
    terminal.until("Keys", "runs.cancel")
    terminal.keys("close")
    terminal.until("everywhere", "Close the console")
    terminal.keys("Escape")
    # A key that follows Escape at once would be taken for one with Alt.
    terminal.until_gone("Close the console")
    terminal.keys("q")
    assert terminal.exit_code() == 0
    terminal.itself_again()


def test_sigterm_restores_the_terminal(terminal: Terminal) -> None:
    terminal.open()
    terminal.until("local: connected")
    subprocess.run(["kill", "-TERM", str(terminal.console_pid())], check=True)
    assert terminal.exit_code() == 143
    terminal.itself_again()


def test_sighup_restores_the_terminal(terminal: Terminal) -> None:
    terminal.open()
    terminal.until("local: connected")
    subprocess.run(["kill", "-HUP", str(terminal.console_pid())], check=True)
    assert terminal.exit_code() == 129
    terminal.itself_again()


def test_a_terminal_that_goes_away_ends_the_console(terminal: Terminal) -> None:
    script = terminal.folder / "leads.py"
    script.write_text(LEADING)
    terminal.open(shlex.join([sys.executable, str(script), str(terminal.root), str(terminal.exit_file)]), alone=True)
    terminal.until("local: connected")
    pid = int(terminal.tmux("display-message", "-p", "#{pane_pid}"))
    terminal.tmux("kill-session")
    assert terminal.exit_code() == 129
    for _ in range(100):
        if not Path(f"/proc/{pid}").exists():
            break
        time.sleep(0.1)
    assert not Path(f"/proc/{pid}").exists()


def test_a_crash_is_reported_on_the_restored_screen(terminal: Terminal) -> None:
    script = terminal.folder / "breaks.py"
    script.write_text(CRASHING)
    terminal.open(shlex.join([sys.executable, str(script), str(terminal.root)]), size=(160, 24), BREAK_ON="x")
    terminal.until("local: connected")
    terminal.keys("a", "x")
    assert terminal.exit_code() == 1
    text = terminal.itself_again() + terminal.screen("-S", "-50")
    assert "the console broke: RuntimeError: broken with token=[redacted]" in text
    assert "the report is in" in text
    (report,) = (terminal.folder / "state" / "crashes").iterdir()
    written = report.read_text()
    for words in ("RuntimeError", "last keys: a x", "local: connected", "size: "):
        assert words in written, written
    assert "A1b2C3" not in text + written


def test_ascii_and_no_color(terminal: Terminal) -> None:
    terminal.open(CONSOLE.format(root=shlex.quote(str(terminal.root))) + " --ascii --read-only", NO_COLOR="1")
    terminal.until("read-only, local: connected")
    drawn = terminal.screen("-e")
    assert terminal.screen().isascii()
    assert not COLOUR.findall(drawn)
    terminal.keys("C-p")
    terminal.until("Search for commands")
    terminal.keys("reconn")
    text = terminal.until("Try the line to the host now")
    assert text.isascii()
    assert "Cancel" not in text
    assert not COLOUR.findall(terminal.screen("-e"))


def test_sixteen_colours(terminal: Terminal) -> None:
    terminal.open(TEXTUAL_COLOR_SYSTEM="standard")
    terminal.until("local: connected")
    drawn = terminal.screen("-e")
    assert COLOUR.findall(drawn)
    assert not re.findall(r"\x1b\[[0-9;:]*[34]8[;:][25]", drawn)


@pytest.mark.parametrize("term", ["dumb", "unknown"])
def test_a_terminal_that_cannot_is_refused(terminal: Terminal, term: str) -> None:
    terminal.open(f"env TERM={term} " + CONSOLE.format(root=shlex.quote(str(terminal.root))), size=(160, 24))
    assert terminal.exit_code() == 2
    terminal.until("TERM is", term, "eagle3ops --job NAME")


def test_without_a_terminal_nothing_but_words(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "eagle3ops"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert "\x1b" not in done.stderr
    assert "needs a terminal" in done.stderr
