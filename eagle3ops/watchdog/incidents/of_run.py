"""Which incidents does a run's record hold? A pure function: the same record gives the same incidents."""

import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from eagle3ops.errors import ExitCode
from eagle3ops.watchdog.incidents.incident import MOST, Evidence, Incident, Remedy, from_json, incident_id, remedy_from
from eagle3ops.watchdog.incidents.record import Ended, Record
from eagle3ops.watchdog.incidents.root_evidence import cause, explained, fix_of, root_evidence
from eagle3ops.words import human_bytes, human_seconds, outcome_word, plain

SILENT_S = 120.0
"""A running stage of which neither an event nor a line of a log has come for so long is looked into."""
VERY_SILENT_S = 600.0
_RESUMABLE = ("failed", "cancelled", "interrupted", "created")
_DISK = ("no space left", "disk quota", "errno 28", "enospc", "edquot")
_MEMORY = ("out of memory", "outofmemory", "cannot allocate memory", "memoryerror", "oom")
_SIGNALS = {
    "SIGKILL": "Nobody but the kernel (out of memory) or a person (kill -9) ends a process like that.",
    "SIGSEGV": "It touched memory that is not its own: a defect of native code, or of the memory itself.",
    "SIGBUS": "Memory that was promised was not there: most often /dev/shm or the disk behind a mapped file is full.",
    "SIGABRT": "It gave itself up, as native code does after a failed check; its log says which.",
    "SIGFPE": "It divided a whole number by zero, or the like.",
    "SIGILL": "It met an instruction that this processor does not have: built for another one.",
}
_NUMBERS = {-9: "SIGKILL", -11: "SIGSEGV", -7: "SIGBUS", -6: "SIGABRT", -8: "SIGFPE", -4: "SIGILL", -2: "SIGINT"}


def incidents_of(record: Record, now: float) -> list[Incident]:
    """All incidents of one run, the newest first.

    Args:
        record: what the run recorded.
        now: seconds since 1970.
    """
    makers: tuple[Callable[[Record, float], list[Incident]], ...] = (
        _written,
        _failures,
        _interruption,
        _ending,
        _verdicts,
        _silence,
        _programs,
        _warnings,
    )
    found: dict[str, Incident] = {}
    for maker in makers:
        for incident in maker(record, now):
            # What the watchdog wrote itself says more than what is concluded here.
            found.setdefault(incident.id, incident)
    return sorted(found.values(), key=lambda one: (one.last, one.id), reverse=True)


def _written(record: Record, now: float) -> list[Incident]:
    """Those that the watchdog, or a stage, wrote down as such."""
    found = []
    for ts, stage, data in record.incidents.values():
        told = from_json(data, run=record.run, stage=stage, ts=ts)
        if told is not None:
            done = [f"the watchdog: {words}" for words in record.done.get(told.id, ())]
            evidence = (*told.evidence[: MOST - len(done)], *map(Evidence, done))
            # What hung is gone with its attempt; how that ended, or what the next one meets, is told of by itself.
            ended = [
                _number(record.stages.get(told.stage, {}).get("ts")) or 0.0,
                *(end for end, _, _ in record.endings),
            ]
            over = told.over or max(ended) > ts
            remedies = told.remedies if over else (*told.remedies, *_now(record))[:MOST]
            found.append(replace(told, over=over, evidence=evidence, remedies=remedies))
    return found


def _now(record: Record) -> tuple[Remedy, ...]:
    """What can be done about a stage that hangs."""
    end = Remedy("end the run; it can be resumed", "cancel", _command(record, "cancel"))
    return (*((end,) if record.alive else ()), Remedy("see what its processes and the GPUs do", "gpus"), *_look(record))


def _failures(record: Record, now: float) -> list[Incident]:
    found: dict[str, Incident] = {}
    for ts, stage, facts in record.failures:
        error, signal = _text(facts.get("error")), _text(facts.get("signal"))
        kind, why = _what(error, signal, facts)
        key = incident_id(record.run, stage, "failed", error)
        before = found.get(key)
        log = f"{stage}.log"
        end = record.logs.get(log)
        began = record.begun.get(stage, 0.0)
        root = root_evidence(facts.get("root"))
        hung = _hung(record, stage, began, ts)
        evidence = [root] if root is not None else []
        said = Evidence(f"{stage}: {error or 'failed'}", log, end.offset if end else None)
        if hung is None:
            evidence.append(said)
        else:
            # Of a stage that was given up the watchdog's words are all that it says itself.
            gave = kind == "given-up"
            shown = [] if gave else [said, Evidence(f"the watchdog: {hung.title}")]
            evidence += [*shown, *hung.evidence[:7], *([said] if gave else [])]
            why = f"{hung.explanation} {why}".strip()
        if root is None and end is not None and end.line and plain(end.line) not in plain(error):
            evidence.append(Evidence(f"the log says: {end.line}", log, end.offset))
        if signal or facts.get("process_exit") is not None:
            how = f"by {signal}" if signal else f"with exit code {plain(facts.get('process_exit'))}"
            evidence.append(Evidence(f"its process ended {how}"))
        if (peak := _number(facts.get("max_memory_bytes"))) is not None:
            evidence.append(Evidence(f"most memory that it used: {human_bytes(peak)}"))
        evidence += [_told(one, record) for one in record.ended_badly if one.stage == stage and began <= one.ts <= ts]
        # Taken up again, it is not known yet whether that mends it; but nobody has to do anything about it now.
        over = record.mended.get(stage, 0.0) > ts or (record.begun.get(stage, 0.0) > ts and record.alive)
        does = (*fix_of(facts.get("root")), *(hung.remedies if hung is not None else ()))
        failed = cause(facts.get("root")) or error
        # Where the evidence is says the watchdog already.
        remedy = "" if hung is not None and kind == "given-up" else _text(facts.get("remedy"))
        found[key] = Incident(
            id=key,
            kind=kind,
            severity="error",
            title=f"{stage} failed: {failed}" if failed else f"{stage} failed",
            first=before.first if before else ts,
            last=ts,
            run=record.run,
            stage=stage,
            over=over,
            count=before.count + 1 if before else 1,
            explanation=explained(facts.get("root"), why),
            evidence=tuple(evidence[:MOST]),
            remedies=(*does, *_remedies(record, remedy, kind))[:MOST],
            folder=hung.folder if hung is not None else "",
        )
    return list(found.values())


def _hung(record: Record, stage: str, began: float, ended: float) -> Incident | None:
    """What the watchdog was certain of when an attempt at a stage ended; None where it had nothing to say."""
    told = [(ts, data) for ts, of, data in record.incidents.values() if of == stage and began <= ts <= ended]
    ts, data = max(told, key=lambda one: one[0], default=(0.0, None))
    found = from_json(data, run=record.run, stage=stage, ts=ts)
    return found if found is not None and found.severity == "error" and not found.over else None


def _what(error: str, signal: str, facts: Mapping[str, Any]) -> tuple[str, str]:
    """The kind of a failure, and what it means."""
    small = error.lower()
    if any(words in small for words in _DISK):
        return "disk-full", "What the stage had finished is kept; it goes on from there once there is space again."
    if any(words in small for words in _MEMORY) and not signal:
        return "out-of-memory", "A smaller batch needs less; what the stage had finished is kept."
    if signal:
        kind = "killed" if signal == "SIGKILL" else "crashed"
        return kind, _SIGNALS.get(signal, f"{signal} ended it.") + " What it had finished is kept."
    if facts.get("exit_code") == int(ExitCode.WATCHDOG):
        return (
            "given-up",
            "It hung, and what the pipeline file allows to do about that was done. What it had finished is kept.",
        )
    if facts.get("exit_code") == int(ExitCode.REFUSED):
        return "refused", "It was not started, as it does not fit; nothing is lost."
    return "failed", "What the stage had finished is kept; the run can be taken up again once the cause is mended."


def _interruption(record: Record, now: float) -> list[Incident]:
    if not record.interruption:
        return []
    last = record.last_event or record.created
    running = sorted(stage for stage, facts in record.stages.items() if facts.get("status") == "running")
    ends = [end for stage in running if (end := record.logs.get(f"{stage}.log"))]
    evidence = [Evidence(record.interruption)]
    evidence += [Evidence(f"{end.name} ends with: {end.line}", end.name, end.offset) for end in ends if end.line]
    return [
        Incident(
            id=incident_id(record.run, "interrupted", int(last)),
            kind="interrupted",
            severity="error",
            title=f"interrupted{' in ' + ', '.join(running) if running else ''}",
            first=last,
            last=last,
            run=record.run,
            stage=running[0] if running else "",
            explanation="Nobody looks after the run any more and nothing of it goes on. What was finished is kept.",
            evidence=tuple(evidence[:MOST]),
            remedies=_remedies(record, "", "interrupted"),
        )
    ]


def _ending(record: Record, now: float) -> list[Incident]:
    """A run that failed outside of any stage: it was refused, its pipeline cannot be read, its disk is full."""
    found: dict[str, Incident] = {}
    for ts, status, facts in record.endings:
        cause = _text(facts.get("cause"))
        staged = any(cause.startswith(f"{stage}: ") for _, stage, _ in record.failures)
        # A run that stopped for a verdict has the verdict's incident.
        if status != "failed" or staged or facts.get("exit_code") == ExitCode.VERDICT_FAIL:
            continue
        kind, why = _what(cause, "", facts)
        key = incident_id(record.run, "run", "failed", cause)
        before = found.get(key)
        over = record.started > ts and (record.alive or record.status == "done")
        found[key] = Incident(
            id=key,
            kind=kind,
            severity="error",
            title=f"the run failed: {cause}" if cause else "the run failed",
            first=before.first if before else ts,
            last=ts,
            run=record.run,
            over=over,
            count=before.count + 1 if before else 1,
            explanation=why,
            evidence=(Evidence(cause or "it gave no reason", "supervisor.log"),),
            remedies=_remedies(record, _text(facts.get("remedy")), kind),
        )
    return list(found.values())


def _verdicts(record: Record, now: float) -> list[Incident]:
    found = []
    for (stage, name), (ts, passed, reason) in record.verdicts.items():
        if passed:
            continue
        room = "wiring" if name == "wiring" else "bench" if stage == "bench" else "run"
        command = "wiring" if name == "wiring" else "show"
        words = {
            "wiring": "Training and serving do not feed the drafter the same tensors: what is measured says nothing.",
            "accept_length": "The drafter is accepted less often in serving than its training foretold.",
            "equal_output": "With speculation the output is another one: no figure counts before that is mended.",
        }
        undecided = {"wiring": "Whether training and serving feed the drafter the same tensors is not proven."}
        explained = words if passed is False else undecided
        found.append(
            Incident(
                id=incident_id(record.run, stage, "verdict", name),
                kind="verdict",
                severity="error" if passed is False else "warn",
                title=f"{stage}/{name}: {outcome_word(passed)}",
                first=ts,
                last=ts,
                run=record.run,
                stage=stage,
                explanation=explained.get(name, f"A check of the run came to {outcome_word(passed)}."),
                evidence=(Evidence(reason or "no reason was given"), *_log(record, stage)),
                remedies=(Remedy("see what was compared", room, _command(record, command)), *_look(record)),
            )
        )
    return found


def _silence(record: Record, now: float) -> list[Incident]:
    if not record.alive or any(not one.over and one.stage in record.stages for one in _written(record, now)):
        return []
    spoke = max([record.last_event, *(end.modified for end in record.logs.values())], default=0.0)
    running = [stage for stage, facts in record.stages.items() if facts.get("status") == "running"]
    quiet = now - spoke
    if not running or quiet < SILENT_S:
        return []
    stage = running[-1]
    newest = max(record.logs.values(), key=lambda end: end.modified, default=None)
    evidence = [Evidence(f"the last event is {human_seconds(max(0.0, now - record.last_event))} old")]
    if newest is not None:
        age = human_seconds(max(0.0, now - newest.modified))
        evidence.append(Evidence(f"the last line of {newest.name} is {age} old", newest.name, newest.offset))
    return [
        Incident(
            id=incident_id(record.run, stage, "silent", int(spoke)),
            kind="silent",
            severity="error" if quiet >= VERY_SILENT_S else "warn",
            title=f"{stage} has said nothing for {human_seconds(quiet)}",
            first=spoke,
            last=now,
            run=record.run,
            stage=stage,
            explanation="It may load something large, wait for another process, or hang. A process that neither "
            "computes nor reads (0 % CPU, no I/O, an idle GPU) for minutes hangs.",
            evidence=tuple(evidence),
            remedies=(
                Remedy("see what its processes and the GPUs do", "gpus"),
                Remedy("read its log", "logs"),
                Remedy("end the run; it can be resumed", "cancel", _command(record, "cancel")),
            ),
        )
    ]


def _programs(record: Record, now: float) -> list[Incident]:
    """Programs that ended by a signal although their stage did not fail for it."""
    found: dict[str, Incident] = {}
    failed = {(stage, record.begun.get(stage, 0.0)) for _, stage, _ in record.failures}
    cancelled = [ts for ts, status, _ in record.endings if status == "cancelled"]
    for one in record.ended_badly:
        own = (one.stage, record.begun.get(one.stage, 0.0))
        if one.code >= 0 or (own in failed and one.ts >= own[1]):
            continue
        # What hung is ended by whoever decides about it, and that is told there.
        if any(abs(ts - one.ts) < 30.0 for ts in cancelled) or _hung(record, one.stage, one.began, one.ts):
            continue
        name = _NUMBERS.get(one.code, f"signal {-one.code}")
        why = _SIGNALS.get(name, "")
        if name == "SIGKILL":
            why = "It did not end within 10 s after SIGTERM, or the kernel (out of memory) or a person killed it."
        key = incident_id(record.run, one.stage, "died", one.role, one.pid, int(one.ts))
        found[key] = Incident(
            id=key,
            kind="died",
            severity="warn",
            title=f"{one.role} ended by {name}",
            first=one.ts,
            last=one.ts,
            run=record.run,
            stage=one.stage,
            over=not record.alive or record.mended.get(one.stage, 0.0) > one.ts,
            explanation=why,
            evidence=(_told(one, record),),
            remedies=(Remedy("read its log", "logs"), *_look(record)),
        )
    return list(found.values())


def _warnings(record: Record, now: float) -> list[Incident]:
    return [
        Incident(
            id=incident_id(record.run, stage, "warning", text),
            kind="warning",
            severity="warn",
            title=f"{stage}: {text}" if stage else text,
            first=warned.first,
            last=warned.last,
            run=record.run,
            stage=stage,
            over=not record.alive or record.mended.get(stage, 0.0) > warned.last,
            count=warned.count,
            explanation="The run said this of itself" + ("; it goes on." if record.alive else ", and went on."),
            evidence=_log(record, stage),
            remedies=_look(record),
        )
        for (stage, text), warned in record.warnings.items()
    ]


def _log(record: Record, stage: str) -> tuple[Evidence, ...]:
    """The stage's log; nothing where that is known to be empty, as there is nothing to see in it."""
    end = record.logs.get(f"{stage}.log")
    return (Evidence(f"the log of {stage}", f"{stage}.log"),) if stage and (end is None or end.size) else ()


def _told(one: Ended, record: Record) -> Evidence:
    how = f"by {_NUMBERS.get(one.code, f'signal {-one.code}')}" if one.code < 0 else f"with exit code {one.code}"
    pid = f" (pid {one.pid})" if one.pid is not None else ""
    return Evidence(f"{one.role}{pid} ended {how}", record.roles.get(one.role))


def _remedies(record: Record, words: str, kind: str) -> tuple[Remedy, ...]:
    found = [_here(record, remedy_from(words))] if words else []
    if kind == "disk-full" and not any("runs gc" in one.command for one in found):
        found.append(Remedy("delete old runs, and outputs that no run needs", command=_command(record, "gc")))
    if kind in ("killed", "out-of-memory"):
        found.append(Remedy("see how much memory the machine has left", "gpus"))
    if not record.alive and record.status in _RESUMABLE:
        found.append(Remedy("take the run up again where it stopped", "resume", _command(record, "resume")))
    return (*found, *_look(record))[:MOST]


def _here(record: Record, remedy: Remedy) -> Remedy:
    """The remedy as a console can carry it out: a log is opened, a command line means the run's own root."""
    if not remedy.command:
        return replace(remedy, action="logs") if "/logs/" in remedy.words else remedy
    whole = not record.root or "--root" in remedy.command
    return remedy if whole else replace(remedy, command=f"{remedy.command} --root {shlex.quote(record.root)}")


def _look(record: Record) -> tuple[Remedy, ...]:
    return (Remedy("see how the run stands", "run"), Remedy("read its logs", "logs"))


def _command(record: Record, verb: str) -> str:
    where = f" --root {shlex.quote(record.root)}" if record.root else ""
    return f"eagle3ops runs gc --yes{where}" if verb == "gc" else f"eagle3ops runs {verb} {record.run}{where}"


def _text(value: object) -> str:
    return value[:2000] if isinstance(value, str) else ""


def _number(value: object) -> float | None:
    sound = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e18
    return float(value) if sound else None  # type: ignore[arg-type]
