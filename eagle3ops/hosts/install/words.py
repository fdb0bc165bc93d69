"""Why did an installation fail, and what helps?"""

import re

from eagle3ops.errors import Eagle3opsError
from eagle3ops.hosts.install.survey import Interpreter

_INDEX = (
    "that host cannot reach a package index: set one up for its pip (`pip config set global.index-url URL`, or a proxy "
    "in its environment), or name a Python that has what is needed already (hosts add NAME ADDRESS --python PATH)"
)
_CAUSES: tuple[tuple[str, str, str], ...] = (
    (r"No space left on device|Disk quota exceeded", "the disk or the quota is full", "free some space there"),
    (r"Read-only file system", "the file system is read-only", "have it mounted writable"),
    (
        r"Temporary failure in name resolution|Name or service not known|NewConnectionError|ConnectTimeout"
        r"|Network is unreachable|Connection refused|ProxyError|Read timed out",
        "pip could not reach its package index",
        _INDEX,
    ),
    (r"CERTIFICATE_VERIFY_FAILED", "pip does not trust the index's certificate", "give its pip the right `cert`"),
    (r"No matching distribution found for (\S+)", "pip found no {0} that fits", _INDEX),
    (
        r"externally-managed-environment",
        "this Python refuses installations",
        "name another Python: hosts add NAME ADDRESS --python PATH",
    ),
    (r"ensurepip|No module named pip", "this Python has no pip", "Debian and Ubuntu: apt install python3-venv"),
    (r"MemoryError|Killed|signal 9", "it ran out of memory", "free some memory there, or give the container more"),
)
_KINDS = {
    "busy": ("another installation is going on there", "wait until it has ended, then do it again"),
    "damaged": (
        "the wheel arrived damaged, twice",
        "look at the disk there (`df -h`, kernel log) and at what is between here and there",
    ),
    "folder": ("something is in the way", "move it away and do it again"),
}
_STEPS = {
    "venv": "its Python could not make an environment",
    "pip": "pip failed",
    "proof": "the new environment does not start an agent",
    "other": "it failed",
}


def explain_failure(host: str, kind: str, detail: str, python: Interpreter) -> Eagle3opsError:
    """Put the last word of `remote_install` into an error for a person.

    Args:
        host: what a person calls it.
        kind: as `Stopped.kind` there.
        detail: what the failing program said last.
        python: the interpreter that was used.
    """
    kept = "; the host keeps the environment that it had"
    if kind in _KINDS:
        what, remedy = _KINDS[kind]
        return Eagle3opsError(f"{host}: {what} ({shown(detail, 300)})", remedy=remedy)
    step = _STEPS.get(kind, _STEPS["other"])
    for pattern, cause, remedy in _CAUSES:
        match = re.search(pattern, detail)
        if match is not None:
            named = cause.format(*(shown(group, 60) for group in match.groups() or ("",)))
            return Eagle3opsError(f"{host}: {step} with {python}: {named}{kept}\n{last_lines(detail)}", remedy=remedy)
    remedy = "look at what it says above; do it again when that is mended"
    return Eagle3opsError(f"{host}: {step} with {python}{kept}\n{last_lines(detail)}", remedy=remedy)


def shown(text: str, most: int) -> str:
    """Text from the host, on one line and without control characters."""
    line = " ".join("".join(character if character.isprintable() else " " for character in text).split())
    return line if len(line) <= most else f"{line[:most]}..."


def last_lines(text: str, count: int = 6) -> str:
    """The last lines that say something, indented."""
    lines = [shown(line, 200) for line in text.splitlines() if line.strip()]
    return "\n".join(f"    {line}" for line in lines[-count:])
