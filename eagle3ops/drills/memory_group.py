"""May we have a control group of our own with little memory, and how is it made?"""

import contextlib
import os
import secrets
from pathlib import Path

LIMIT_BYTES = 48 * 2**20
PREFIX = "eagle3ops-drill-"


def parent() -> tuple[Path, int] | None:
    """The folder below which one could be made, and the version of the control groups; None where there is none."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        mounts = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return None
    own = {controllers: path for _, controllers, path in (line.split(":", 2) for line in lines if line.count(":") > 1)}
    for mount in mounts:
        _, point, kind, options, *_ = mount.split()
        if kind == "cgroup" and "memory" in options.split(","):
            path = next((path for names, path in own.items() if "memory" in names.split(",")), "/")
            below = Path(point + path)
            return (below if below.is_dir() else Path(point)), 1
    for mount in mounts:
        _, point, kind, *_ = mount.split()
        if kind == "cgroup2":
            # Beside ours, not below: a group with processes of its own hands no controller on.
            below = Path(point + own.get("", "/"))
            return (below.parent if below != Path(point) and below.is_dir() else Path(point)), 2
    return None


def make(name: str) -> Path:
    """A group with `LIMIT_BYTES` of memory.

    Raises:
        OSError: it is not permitted here; the text says what.
    """
    found = parent()
    if found is None:
        raise OSError("no control groups with a memory controller are mounted here")
    above, version = found
    with contextlib.suppress(OSError):
        for old in above.glob(PREFIX + "*"):
            # One that a killed drill left; it cannot be removed while a process is in it.
            with contextlib.suppress(OSError):
                old.rmdir()
    group = above / f"{PREFIX}{name[:40]}-{secrets.token_hex(4)}"
    group.mkdir()
    try:
        if version == 1:
            (group / "memory.limit_in_bytes").write_text(str(LIMIT_BYTES))
            with contextlib.suppress(OSError):
                (group / "memory.memsw.limit_in_bytes").write_text(str(LIMIT_BYTES))
        else:
            (group / "memory.max").write_text(str(LIMIT_BYTES))
            with contextlib.suppress(OSError):
                (group / "memory.swap.max").write_text("0")
    except OSError:
        group.rmdir()
        raise
    return group


def join(group: Path) -> None:
    """Put this process into it."""
    (group / "cgroup.procs").write_text(str(os.getpid()))


def reason_against() -> str | None:
    """Why none can be made here, or None."""
    try:
        group = make("probe")
    except OSError as error:
        return f"no control group with a limit can be made here: {error}"
    with contextlib.suppress(OSError):
        group.rmdir()
    return None
