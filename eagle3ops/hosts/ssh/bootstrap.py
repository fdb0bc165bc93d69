"""How is an agent started behind any login shell, and what stood in the way when it was not?

The remote command is the one word `sh`, which every shell understands alike. Its first line of standard input is a
script that looks for a Python with eagle3ops and becomes the agent. Nothing else is sent until the agent has said
hello: a shell that reads ahead would swallow it. First of all, and before each Python that it tries, the script says
so: a login shell that waits for something is told from a Python that does. What it finds out it says in one line.
"""

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import PurePosixPath

from eagle3ops.errors import RequestError

COMMAND = "sh"
ENVIRONMENT = ".local/share/eagle3ops/env"
"""Where `hosts install` puts its own environment, below the home folder."""
MINIMUM = (3, 11)
HELLO = b'{"agent":"eagle3ops"'
FAILED = b'{"eagle3ops-bootstrap":'
BEGUN = '{"eagle3ops-bootstrap":0,"trying":"'
_BEGUN = re.compile(re.escape(BEGUN) + '(?!%s)([^"\n]{0,300})')
_OURS = re.compile(re.escape(BEGUN) + r".*")
_ECHO = "[the script that was sent to sh]"
_START = 'PATH="$PATH:$HOME/.local/bin"; P='

# Exit codes of the probe: 0 good, 10 too old, 11 no eagle3ops. The working folder is no place to import from.
_PROBE = (
    "import sys; sys.path[:]=[p for p in sys.path if p]\n"
    "sys.version_info<(3,11) and sys.exit(10)\n"
    "import importlib.util as u; sys.exit(0 if u.find_spec('eagle3ops') else 11)"
)


@dataclass(frozen=True, slots=True)
class Absent:
    """Why there is no agent, in words."""

    what: str
    remedy: str
    sure: bool = False
    """It is known that eagle3ops is not there; other reasons may pass by themselves."""


def quote(text: str) -> str:
    """One word for a POSIX shell; a leading ~/ stays the home folder.

    Raises:
        RequestError: a NUL or a line break, which no quoting helps against on one line.
    """
    if any(character in text for character in "\0\n\r"):
        raise RequestError(f"{text!r}: a line break or NUL cannot be sent to a host", remedy="use a plain path")
    if text == "~":
        return '"$HOME"'
    if text.startswith("~/"):
        return '"$HOME"/' + shlex.quote(text[2:])
    return shlex.quote(text)


def script(python: str | None = None, root: str | None = None) -> bytes:
    """The line that becomes the agent, with its newline.

    Args:
        python: the only interpreter to try; None tries the usual places.
        root: passed on to the agent; None leaves it the host's usual root.
    """
    arguments = "agent" + (f" --root {quote(root)}" if root is not None else "")
    # The probe is one line of shell and several of Python: printf makes the line breaks.
    probe = shlex.quote(_PROBE.replace("\n", "\\n"))
    attempt = (
        f't() {{ p=$(command -v "$1" 2>/dev/null) && [ -x "$p" ] || return 0; b "$p"; '
        '"$p" -c "$P" </dev/null >/dev/null 2>&1; '
        f'r=$?; [ $r -eq 0 ] && exec "$p" -P -m eagle3ops {arguments}; '
        'v=$("$p" -c "import sys; print(\\"%d.%d.%d\\" % sys.version_info[:3])" </dev/null 2>/dev/null); '
        'f="$f$p ${v:-?} $r;"; }'
    )
    if python is not None:
        tries = f"t {quote(python)}"
    else:
        installed = quote("~/" + str(PurePosixPath(ENVIRONMENT) / "bin" / "python"))
        tries = (
            f"t {installed}; "
            'e=$(command -v eagle3ops 2>/dev/null) && [ -x "$e" ] && b "$e" && '
            '"$e" --version </dev/null >/dev/null 2>&1 && '
            f'exec "$e" {arguments}; '
            "for n in python3 python3.14 python3.13 python3.12 python3.11; do t $n; done"
        )
    say = 'printf \'{"eagle3ops-bootstrap":1,"found":"%s"}\\n\' "$f"'
    tell = f'b() {{ printf \'{BEGUN}%s"}}\\n\' "$1"; }}'
    line = f"{_START}$(printf {probe}); f=; {tell}; b; {attempt}; {tries}; {say}; exit 78"
    return line.encode() + b"\n"


def has_begun(output: str) -> bool:
    """Whether `sh` has begun to carry out the script; a start-up file that prints what it reads is not that."""
    return _BEGUN.search(output) is not None


def parse_tried(output: str) -> str:
    """The Python that the script tried last, from all that came; empty when it named none."""
    tried = [clean(match[1]) for match in _BEGUN.finditer(output)]
    return tried[-1] if tried else ""


def foreign(output: str) -> str:
    """What came without our own lines: the words of start-up files."""
    lines = output.split("\n")
    return "\n".join(_ECHO if _START in line else _OURS.sub("", line) for line in lines)


def parse_failure(line: bytes) -> str | None:
    """What the script found, from its line; None when the line is another one."""
    start = line.find(FAILED)  # a banner may have no line end of its own
    if start < 0 or len(line) > 1 << 16:
        return None
    try:
        said = json.loads(line[start:])
    except (ValueError, RecursionError):
        return None
    found = said.get("found") if isinstance(said, dict) else None
    return found if isinstance(found, str) else None


def explain_failure(found: str, host: str, python: str | None, way: str | None = None) -> Absent:
    """Put what the script found into words.

    Args:
        found: `PATH VERSION CODE;` for every interpreter that was tried.
        host: what a person calls the host.
        python: the interpreter that hosts.yaml names, or None.
        way: the command that logs in there, as `by_hand` gives it.
    """
    tried: dict[str, tuple[str, str]] = {}
    for item in found.split(";"):
        match = re.fullmatch(r"(.+) (\S+) (\d{1,3})", item)
        if match:
            tried.setdefault(clean(match[1]), (clean(match[2]), match[3]))
    install = f"install it: eagle3ops hosts install {host}"
    wanted = ".".join(str(part) for part in MINIMUM)
    if not tried:
        if python is not None:
            return Absent(
                f"{host}: {python}, named by hosts.yaml, is not there or not executable", "mend python: there"
            )
        return Absent(
            f"{host} has no Python", f"install Python {wanted} or later on it, then: eagle3ops hosts install {host}"
        )
    without = [path for path, (_, code) in tried.items() if code == "11"]
    if without:
        path = without[0]
        # Without a name for it, and without our own environment, another Python may have stood in for one on a
        # file system that is not mounted now.
        sure = python is not None or any(path.endswith(f"/{ENVIRONMENT}/bin/python") for path in without)
        return Absent(f"{host}: {path} ({tried[path][0]}) is there, eagle3ops is not", install, sure)
    shown = ", ".join(f"{path} ({version})" for path, (version, _) in tried.items())
    if all(code == "10" for _, code in tried.values()):
        return Absent(f"{host}: Python {wanted} or later is needed; found {shown}", f"install it there, then {install}")
    look = f"look at it: {way or f'ssh {host}'} {next(iter(tried))} -V"
    return Absent(f"{host}: no Python works there; tried {shown}", look)


def explain_exit(host: str, status: int | None, signal: str | None, words: str, way: str | None = None) -> Absent:
    """Why a login shell ended, or a `sh` or the agent did, before the agent said hello; `way` as in
    `explain_failure`."""
    said = f": {clean(words[-300:])}" if words.strip() else ""
    module = re.search(r"No module named '?([\w.]+)'?", words) or re.search(r"cannot import name '?([\w.]+)'?", words)
    if module is not None:
        return Absent(
            f"{host}: eagle3ops is there and cannot be started: {module[0]}",
            f"install it anew, with all that it needs: eagle3ops hosts install {host}",
        )
    if re.search(r"not (currently )?available|nologin|account is (locked|disabled)", words, re.IGNORECASE):
        return Absent(
            f"{host}: this account may not log in{said}", "use another user, or give this one a shell: chsh -s /bin/sh"
        )
    if status == 127:
        return Absent(f"{host}: no sh on the PATH of its login shell{said}", "mend PATH in the shell's start-up files")
    if status == 126:
        return Absent(f"{host}: its login shell may not start sh{said}", "a restricted shell needs sh on its list")
    if signal is not None:
        return Absent(f"{host}: its login shell was ended by SIG{signal}{said}", "try again; look at the host's log")
    how = f"with exit code {status}" if status is not None else "without a word"
    return Absent(
        f"{host}: its login shell ended {how} before an agent could start{said}",
        f"log in by hand and look: {way or f'ssh {host}'} sh -c true; start-up files must not exit or read "
        "standard input",
    )


def explain_waiting_shell(host: str, printed: str, errors: str, waited_s: float, way: str | None = None) -> Absent:
    """That a login shell did not come to run `sh`, and what came until then.

    Args:
        host: what a person calls it.
        printed: what came on standard output.
        errors: what came on standard error.
        waited_s: seconds.
        way: as in `explain_failure`.
    """
    return Absent(
        f"{host}: logged in, but its login shell did not come to run `sh` within {waited_s:g} s"
        + _so_far(printed, errors),
        "a start-up file there (.bashrc, .zshenv, .cshrc; .profile where it is read) waits for something or reads "
        f"standard input: {way or f'ssh {host}'} sh -c true must end by itself; what waits is for terminals only: "
        "[ -t 0 ] || return",
    )


def explain_silent_agent(host: str, printed: str, errors: str, waited_s: float, way: str | None = None) -> Absent:
    """That the script was read and no agent answered; arguments as in `explain_waiting_shell`."""
    tried, log_in = parse_tried(printed), way or f"ssh {host}"
    return Absent(
        f"{host}: logged in, its login shell ran `sh`, but no agent answered within {waited_s:g} s"
        + (f"; it was trying {tried}" if tried else "")
        + _so_far(printed, errors),
        "is a mount there dead, or the host out of memory? See whether this ends: "
        + (f"{log_in} {shlex.quote(tried)} --version" if tried else f"{log_in} df"),
    )


def _so_far(printed: str, errors: str) -> str:
    said = clean(f"{foreign(printed)} {errors}")
    return f"; so far it has printed: {said[-300:]}" if said else "; it has printed nothing"


def by_hand(host: str, user: str | None, port: int | None) -> str:
    """The command with which a person logs in to a host; what is None stands in the SSH configuration."""
    target = f"{user}@{host}" if user else host
    return " ".join(["ssh", *([] if port is None else ["-p", str(port)]), shlex.quote(target)])


def clean(text: str) -> str:
    """Words from a host for a message: one line, and nothing that could steer a terminal."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
