"""What was the first cause? From the findings of all logs: one root, or a hang, or that nothing failed.

In order: a fact of the kernel, compiler, loader or driver; the first exception; a watchdog or a wait without end; a
process that a signal ended; what only follows from something else is a root of last resort.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from eagle3ops.errors import RequestError
from eagle3ops.forensics.clocks import ahead
from eagle3ops.forensics.findings import Finding
from eagle3ops.forensics.fingerprint import fingerprint
from eagle3ops.forensics.lines import Line
from eagle3ops.forensics.outcome import GOES_ON, settle
from eagle3ops.forensics.records import Reader
from eagle3ops.forensics.signatures import SILENT, Kind
from eagle3ops.forensics.sources import open_file, read_log, rotated
from eagle3ops.runs.redact import redact
from eagle3ops.words import plain

STRONG = 88
"""From this weight on a line states a fact, and is believed before an exception that stands earlier."""
TOGETHER = 8
"""Facts of nearly the same weight: the earliest counts."""
SHOWN = 1000
"""Characters of a line that are shown."""
DISCOUNTED = 20
"""So many discounted lines are listed, the weightiest first; of the others the number is said."""


@dataclass(frozen=True, slots=True)
class Root:
    """The line that says why."""

    file: str
    offset: int
    line_no: int
    text: str
    category: str
    confidence: float
    explanation: str
    fix: str
    source: str
    """Where the facts come from: an issue (`owner/project#N`), a file of the engine, or `standard`."""
    fingerprint: str
    """The same for the same failure of another run, rank, host and time."""


@dataclass(frozen=True, slots=True)
class Discounted:
    """A line that looks like a cause and is none."""

    file: str
    offset: int
    line_no: int
    text: str
    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What the logs say: `failure`, `hang`, `no_failure`, or `unknown` where there is nothing to read."""

    verdict: str
    root: Root | None
    suspect_ranks: list[int | str]
    discounted: list[Discounted]
    notes: list[str] = field(default_factory=list)
    """What was not read, and clocks that were found to be wrong."""

    def plain(self) -> dict[str, Any]:
        """The same as JSON knows it."""
        return asdict(self)


@dataclass(slots=True)
class _Candidate:
    finding: Finding
    name: str
    log: Reader
    number: int
    """Of the log, in the order in which they were named."""
    time: float | None


def diagnose_files(paths: Sequence[str | Path]) -> Diagnosis:
    """The one cause in log files; RequestError where one cannot be read."""
    names = [str(path) for path in paths]
    readers: list[tuple[str, Reader]] = []
    notes: list[str] = []
    for parts in rotated(names):
        reader = Reader()
        for path in parts:
            try:
                with open_file(path) as stream:
                    notes += [f"{path}: {words}" for words in read_log(stream, path, reader)]
            except OSError as error:
                raise RequestError(
                    f"{plain(path)}: cannot be read: {error.strerror or error}", remedy="name log files that exist"
                ) from error
        readers.append((parts[-1], reader))
    return judge(readers, notes=notes)


def judge(logs: Sequence[tuple[str, Reader]], *, going_on: bool = False, notes: Sequence[str] = ()) -> Diagnosis:
    """The cause in logs that have been read; `going_on` says that they may still grow, so that silence is no hang.

    `notes` go into the answer before what is noted here.
    """
    told = list(notes)
    clocks = ahead([log.moments.known for _, log in logs])
    told += [
        f"{name}: its clock is {abs(apart):.0f} s {'ahead of' if apart > 0 else 'behind'} that of the others, by what "
        "they did together; what was first is told by the corrected times"
        for (name, _), apart in zip(logs, clocks, strict=True)
        if apart
    ]
    for _, log in logs:
        settle(log)
    candidates = [
        _Candidate(
            found, log.name(found.line, name), log, number, None if found.time is None else found.time - clocks[number]
        )
        for number, (name, log) in enumerate(logs)
        for found in log.findings
    ]
    root = _choose(candidates, several=len(logs) > 1 and all(c.time is not None for c in candidates))
    discounted = _discounted(candidates, root)
    if root is not None:
        return Diagnosis(
            _verdict(root, candidates), _root(root, candidates), _suspects(root, candidates, logs), discounted, told
        )
    silent = None if going_on else _silent(logs)
    if silent is not None:
        name, log = silent
        line = log.course.phase
        assert line is not None
        return Diagnosis("hang", _place(log.name(line, name), line, SILENT, 0.5, ()), [], discounted, told)
    # Stacks alone tell where processes stood, not whether they should have stood there.
    went = any(log.course.lines and not log.course.stacks for _, log in logs)
    verdict = "no_failure" if went or any(log.course.progress for _, log in logs) else "unknown"
    return Diagnosis(verdict, None, [], discounted, told)


def _shown(line: Line) -> str:
    """The line without what must not leave the machine."""
    return redact(line.text)[:SHOWN]


def _order(candidate: _Candidate, several: bool) -> tuple[float, int, tuple[int, int]]:
    time = candidate.time if several and candidate.time is not None else 0.0
    return time, candidate.number, candidate.finding.line.place


def _choose(candidates: Sequence[_Candidate], several: bool) -> _Candidate | None:
    live = [candidate for candidate in candidates if not candidate.finding.mild]
    if not live:
        return None
    usable = [
        candidate for candidate in candidates if not candidate.finding.mild or candidate.finding.weight >= STRONG - 12
    ]
    ordered = sorted(usable, key=lambda candidate: _order(candidate, several))
    strong = [c for c in ordered if c.finding.kind.role == "root" and c.finding.weight >= STRONG]
    if strong:
        top = max(c.finding.weight for c in strong)
        return _heaviest(next(c for c in strong if c.finding.weight >= top - TOGETHER), strong)
    live.sort(key=lambda candidate: _order(candidate, several))
    waits = [c for c in live if c.finding.kind.role in ("hang", "timeout") and c.finding.weight >= 68]
    thrown = [c for c in live if c.finding.kind.role in ("root", "exception") and c.finding.weight >= 60]
    waited = next((c for c in waits if c.finding.kind.category == "hang_stale_lock"), waits[0] if waits else None)
    if thrown:
        top = max(c.finding.weight for c in thrown)
        first = _heaviest(next(c for c in thrown if c.finding.weight >= top - TOGETHER), thrown)
        # An exception that no table knows, after a wait that ended: the wait is why.
        if waited is None or first.finding.weight >= 75 or _order(first, several) < _order(waited, several):
            return first
    if waited is not None:
        return waited
    for roles, least in ((("signal",), 60), (("timeout", "signal", "hang"), 50), (("root", "exception", "error"), 35)):
        found = [c for c in live if c.finding.kind.role in roles and c.finding.weight >= least]
        if found:
            heavy = max(c.finding.weight for c in found)
            return next(c for c in found if c.finding.weight >= heavy - TOGETHER)
    # Something ended, and why is not said here.
    ends = [c for c in live if c.finding.kind.role == "consequence" and _ends(c)]
    return ends[0] if ends else None


def _ends(candidate: _Candidate) -> bool:
    """Does what follows from a trouble end a process, as far as the log tells?"""
    finding, course = candidate.finding, candidate.log.course
    loud = bool(finding.trace) or finding.line.level in ("ERROR", "FATAL")
    return loud and course.progress - finding.progress < GOES_ON and course.finished is None


def _heaviest(chosen: _Candidate, candidates: Sequence[_Candidate]) -> _Candidate:
    """Of one traceback and its message the line that says most."""
    if not chosen.finding.trace:
        return chosen
    same = [c for c in candidates if c.log is chosen.log and c.finding.trace == chosen.finding.trace]
    return max(same, key=lambda c: c.finding.weight, default=chosen)


def _verdict(root: _Candidate, candidates: Sequence[_Candidate]) -> str:
    kind = root.finding.kind
    if kind.category == "nccl_timeout":
        # Ranks that abort because of a wait have failed; those that only give up waiting show where it hangs.
        aborted = any(
            c.finding.kind.role == "signal" and c.finding.weight <= 61 and not c.finding.mild for c in candidates
        )
        return "failure" if aborted else "hang"
    return "hang" if kind.role == "hang" else "failure"


def _root(root: _Candidate, candidates: Sequence[_Candidate]) -> Root:
    finding = root.finding
    base = {"root": 0.6, "exception": 0.5, "hang": 0.55, "timeout": 0.5, "signal": 0.45}.get(finding.kind.role, 0.3)
    followed = any(
        c.finding.kind.role == "consequence" and c.finding.line.place > finding.line.place for c in candidates
    )
    confidence = base + max(0.0, finding.weight - 60) / 120 + (0.08 if followed else 0.0)
    return _place(root.name, finding.line, finding.kind, min(0.99, max(0.1, confidence)), finding.frames)


def _place(name: str, line: Line, kind: Kind, confidence: float, frames: tuple[str, ...]) -> Root:
    return Root(
        file=name,
        offset=line.offset,
        line_no=line.number,
        text=_shown(line),
        category=kind.category,
        confidence=round(confidence, 2),
        explanation=kind.explanation,
        fix=kind.fix,
        source=kind.source,
        fingerprint=fingerprint(line.body, kind.category, frames),
    )


def _suspects(
    root: _Candidate, candidates: Sequence[_Candidate], logs: Sequence[tuple[str, Reader]]
) -> list[int | str]:
    """Of a wait the ranks that did not report it; of a failure those that reported its cause."""
    category = root.finding.kind.category
    same = {
        c.finding.rank
        for c in candidates
        if c.finding.rank is not None
        and c.finding.kind.category == category
        and c.finding.weight >= root.finding.weight - TOGETHER
    }
    if root.finding.kind.role not in ("timeout", "hang"):
        return [*sorted(same)[:1024]]
    if odd := _odd_stacks(logs):
        return [*odd]
    known: set[int] = set().union(*(log.course.ranks for _, log in logs))
    world = max((log.course.world for _, log in logs), default=0)
    if world > 1:
        known |= set(range(min(world, 65536)))
    return [*sorted(known - same)[:1024]] if same else []


def _odd_stacks(logs: Sequence[tuple[str, Reader]]) -> list[int | str]:
    """Of processes whose stacks were dumped, those that stand elsewhere than most."""
    stacks = {label: stack for _, log in logs for label, stack in log.course.stacks.items()}
    if len(stacks) < 3:
        return []
    alike: dict[tuple[str, ...], list[str]] = {}
    for label, stack in stacks.items():
        alike.setdefault(stack, []).append(label)
    most = max(alike.values(), key=len)
    if len(most) * 2 <= len(stacks):
        return []
    common = set.intersection(*(set(label.split()) for label in stacks))
    odd = [" ".join(part for part in label.split() if part not in common) for label in stacks if label not in most]
    return [int(label[2:]) if label.startswith("TP") and label[2:].isdigit() else label for label in odd][:1024]


def _silent(logs: Sequence[tuple[str, Reader]]) -> tuple[str, Reader] | None:
    """A log that ends in the middle of a start."""
    for name, log in logs:
        course = log.course
        over = course.ready is not None or course.finished is not None or course.working >= GOES_ON
        if course.phase is not None and not over:
            return name, log
    return None


def _discounted(candidates: Sequence[_Candidate], root: _Candidate | None) -> list[Discounted]:
    """What looks like a cause and is none, alike lines counted together."""
    groups: dict[tuple[str, str], tuple[_Candidate, int]] = {}
    for candidate in candidates:
        finding = candidate.finding
        if root is not None and finding.line is root.finding.line:
            continue
        key = finding.kind.category, _reason(finding, root)
        first, count = groups.get(key, (candidate, 0))
        groups[key] = first, count + 1
    ranked = sorted(groups.items(), key=lambda item: -item[1][0].finding.weight)[:DISCOUNTED]
    return [
        Discounted(c.name, c.finding.line.offset, c.finding.line.number, _shown(c.finding.line), reason, count)
        for (_, reason), (c, count) in ranked
    ]


def _reason(finding: Finding, root: _Candidate | None) -> str:
    if finding.why:
        return finding.why
    if root is None:
        return "nothing ended because of it"
    if finding.kind.category == root.finding.kind.category:
        return "the same, said again or by another rank"
    if finding.kind.role == "consequence":
        return "follows from what failed before"
    if finding.kind.role in ("timeout", "hang"):
        return "others waited for what had failed"
    if finding.kind.role == "signal":
        return "how the process ended, not why"
    return "comes after the cause, or says less about it"
