"""Why did a build fail? The first error of the compilers, or the compiler that the kernel ended for want of memory."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from eagle3ops.errors import Eagle3opsError
from eagle3ops.forensics.of_run import diagnose_run
from eagle3ops.runs.directory import RunDirectory
from eagle3ops.words import plain

_COMPILERS = r"(cc1plus|cc1|cicc|cudafe\+\+|ptxas|nvlink|fatbinary|lto1|ld|collect2|clang\S*)"
_KILLED = (
    re.compile(rf"Killed signal terminated program {_COMPILERS}"),
    re.compile(rf"nvcc error\s*:\s*'{_COMPILERS}' died due to signal 9"),
    re.compile(rf"\b{_COMPILERS}\b.{{0,80}}\bKilled\b"),
)
_TAIL = 32 << 20


@dataclass(frozen=True, slots=True)
class Killed:
    """A compiler that was ended from outside."""

    program: str
    line: int
    text: str


def killed_compiler(lines: Iterable[str]) -> Killed | None:
    """The first compiler that SIGKILL ended, by what its caller prints."""
    for number, line in enumerate(lines, 1):
        for pattern in _KILLED:
            if (found := pattern.search(line)) is not None:
                return Killed(found[1], number, plain(line).strip()[:500])
    return None


def failure(run_dir: Path, log: str, begin: int, *, code: int | None, jobs: int, oom_kills: int) -> Eagle3opsError:
    """What to tell about a build that ended with `code`.

    Args:
        run_dir: of the run.
        log: name of the log below its `logs/`.
        begin: the byte at which this build begins in it.
        code: how it ended.
        jobs: compile jobs at once.
        oom_kills: processes of this control group that the kernel ended meanwhile for want of memory.
    """
    run = RunDirectory(run_dir)
    path = run.logs / log
    killed = killed_compiler(_lines(path, begin))
    if killed is not None or oom_kills > 0:
        who = killed.program if killed is not None else "a process of the build"
        proof = f" (the kernel counts {oom_kills} such in this control group)" if oom_kills > 0 else ""
        said = f": {killed.text}" if killed is not None else ""
        less = max(1, jobs // 2)
        remedy = (
            f"resume with fewer compile jobs at once (there were {jobs}): --set stages.build.jobs={less}; what is "
            "compiled is kept"
            if jobs > 1
            else "one compile job alone takes more memory than there is: a machine with more, or add swap"
        )
        return Eagle3opsError(f"out of memory: {who} was killed{proof}{said}", remedy=remedy)
    found = diagnose_run(run, {log: begin})
    root = found.root
    if root is None:
        last = next((line for line in reversed(_lines(path, begin)) if line.strip()), "")
        how = f"signal {-code}" if code is not None and code < 0 else f"exit {code}"
        return Eagle3opsError(f"the build failed ({how}): {plain(last).strip()[:500]}", remedy=f"its log is {path}")
    return Eagle3opsError(
        f"the build failed at line {root.line_no} of {root.file}: {plain(root.text).strip()[:800]}",
        remedy=f"{root.fix} The log is {path}",
    )


def _lines(path: Path, begin: int) -> list[str]:
    try:
        with path.open("rb") as file:
            file.seek(begin)
            return file.read(_TAIL).decode("utf-8", "replace").splitlines()
    except OSError:
        return []
