"""What waits for a person, and where is it decided? Made from what the console knows already, without a terminal."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from eagle3ops.screens.feeds.machine import Snapshot
from eagle3ops.screens.feeds.values import mapping, number
from eagle3ops.screens.feeds.watching import RunDetail, RunRow, age
from eagle3ops.screens.widgets.cells import size
from eagle3ops.watchdog.incidents.incident import Incident
from eagle3ops.words import UNDECIDED, plain

RECENT_S = 7 * 86400.0
"""A run that ended longer ago waits for nobody."""
CONSIDERED = 50
"""Runs looked at, newest first."""
MOST = 30
NEARLY_FULL, TIGHT = 0.05, 0.10
"""Shares of a disk that is free."""
SILENT_S = 300.0
"""A running run that has said nothing for so long is worth a look."""
REFUSED = 6
"""Exit code of what was refused before it started."""
VERDICT_FAIL = 3
"""Exit code of a run in which a check came to FAIL."""
_RANK = {"bad": 0, "warn": 1, "head": 2, "plain": 3}


@dataclass(frozen=True, slots=True)
class Matter:
    """One thing that waits for a person."""

    key: str
    """Stable from one look to the next."""
    look: str
    """`bad`, `warn`, `head` (good news) or `plain`."""
    word: str
    """What it is in one word."""
    text: str
    hint: str
    """The key that goes on, and what it does."""
    room: str
    """Name of the room where it is decided."""
    run: str | None = None
    """The run that it is about."""
    ts: float = 0.0
    """When it came up, in seconds since 1970."""


def matters(
    rows: Sequence[RunRow],
    detail: RunDetail | None,
    snapshot: Snapshot | None,
    incidents: Sequence[Incident],
    drafters: object,
    now: float,
) -> list[Matter]:
    """Everything that waits, the worst first and the newest of those.

    Args:
        rows: the runs, newest first.
        detail: the selected one.
        snapshot: the last sample of the machine.
        incidents: those that stand, of runs.
        drafters: the answer of `drafters.list`, whatever it may be.
        now: seconds since 1970.
    """
    told = _incidents(incidents)
    explained: dict[str | None, str] = {one.run: one.title for one in sorted(incidents, key=_weight) if not one.over}
    of_runs = [_explained(one, explained[one.run]) if one.run in explained else one for one in _runs(rows, detail, now)]
    covered = {matter.run for matter in of_runs}
    # A run that waits stands in one line, whatever happened to it.
    covered |= _history(rows)
    rest = [matter for matter in told if matter.run is None or matter.run not in covered]
    found = [*rest, *of_runs, *_drafters(drafters), *_gpus(snapshot), *_disks(snapshot)]
    unique = {matter.key: matter for matter in reversed(found)}
    ordered = sorted(unique.values(), key=lambda one: (_RANK.get(one.look, 3), -one.ts, one.key))
    return ordered[:MOST]


def _weight(incident: Incident) -> tuple[bool, float]:
    """The last of several says best why a run failed."""
    return incident.severity == "error", incident.last


def _explained(matter: Matter, title: str) -> Matter:
    """The same, leading to what the incidents say about it."""
    if matter.room not in ("run", "logs"):
        return matter
    hint = "r resumes it, 5 why" if matter.hint.startswith("r ") else "5 Incidents"
    # An incident knows the root cause; the run itself only what its stage said.
    why = title.replace(" failed: ", ": ", 1)
    text = f"{matter.text.partition(' ago')[0]} ago: {why}" if matter.word == "failed" else matter.text
    return replace(matter, hint=hint, room="incidents", text=text)


def _runs(rows: Sequence[RunRow], detail: RunDetail | None, now: float) -> list[Matter]:
    found = []
    history = _history(rows)
    for row in rows[:CONSIDERED]:
        if row.run_id in history or now - row.since > RECENT_S:
            continue
        mine = detail if detail is not None and detail.row.run_id == row.run_id else None
        matter = _run(row, mine, now)
        if matter is not None:
            found.append(matter)
    return found


_ITS_OWN = ("running", "created", "done", "failed", "interrupted", "verdict FAIL", f"verdict {UNDECIDED}")
"""Of a run that makes older ones of its pipeline history."""


def _history(rows: Sequence[RunRow]) -> set[str | None]:
    """Runs that a newer one of the same pipeline has made history."""
    found: set[str | None] = set()
    newer: set[str] = set()
    for row in rows:
        label = _label(row)
        if label in newer:
            found.add(row.run_id)
        if row.status in _ITS_OWN:
            newer.add(label)
    return found


def _label(row: RunRow) -> str:
    """The pipeline's name: the part of the run's name before its random end."""
    return row.name.rpartition("-")[0] or row.name


def _run(row: RunRow, detail: RunDetail | None, now: float) -> Matter | None:
    ago = f"{age(max(0.0, now - row.since))} ago"
    cause = (detail.cause if detail is not None else None) or row.cause
    because = f": {cause}" if cause else ""
    if row.status == "failed" and row.exit_code == REFUSED:
        text = f"{row.name}, {ago}{because}"
        return Matter(f"run/{row.run_id}", "bad", "refused", text, "2 Run", "run", row.run_id, row.since)
    # It ended before a stage that the verdict made pointless: to resume it would end it there again.
    stopped = row.status == "failed" and row.exit_code == VERDICT_FAIL
    if row.status in ("failed", "damaged") and not stopped:
        text = f"{row.name}, {ago}{because}"
        return Matter(
            f"run/{row.run_id}", "bad", row.status, text, "r resumes it, 3 Logs", "logs", row.run_id, row.since
        )
    if row.status == "interrupted":
        # Nobody was left to write down when that was.
        text = f"{row.name}, begun {ago}{because.replace(': interrupted: ', ': ')}"
        return Matter(f"run/{row.run_id}", "warn", "interrupted", text, "r resumes it", "run", row.run_id, row.since)
    told = sorted(detail.verdicts, key=lambda one: one[1] is None) if detail is not None else []
    failed = next((one for one in told if not one[1]), None)
    judged = stopped or row.status in ("verdict FAIL", f"verdict {UNDECIDED}")
    if judged or (failed is not None and row.status == "running"):
        names = cause.removeprefix(f"{row.status}: ") if judged else ""
        open_ = row.status == f"verdict {UNDECIDED}" if judged else failed is not None and failed[1] is None
        word, look = (UNDECIDED, "warn") if open_ else ("FAIL", "bad")
        which = failed[0] if failed else names
        room, hint = ("wiring", "6 Wiring") if "wiring" in which or not which else ("bench", "8 Bench")
        said = f"{failed[0]}: {failed[2]}" if failed else f"{names or f'a verdict is {word}'}, {ago}"
        text = f"{row.name}: {said}"
        return Matter(f"run/{row.run_id}", look, word, text, hint, room, row.run_id, row.since)
    if row.status == "running" and detail is not None:
        return _running(row, detail, now)
    return None


def _running(row: RunRow, detail: RunDetail, now: float) -> Matter | None:
    serving = next((text for _, _, text in reversed(detail.tail) if "serving at " in text), "")
    if serving and any(stage.name == "serve" and stage.status == "running" for stage in detail.stages):
        where = serving.partition("serving at ")[2]
        text = f"{row.name} serves at {where} until it is cancelled"
        return Matter(f"serves/{row.run_id}", "head", "serving", text, "c ends it", "run", row.run_id, row.since)
    if detail.last_event is not None and now - detail.last_event > SILENT_S:
        text = f"{row.name} has said nothing for {age(now - detail.last_event)}"
        return Matter(f"silent/{row.run_id}", "warn", "silent", text, "3 Logs", "logs", row.run_id, detail.last_event)
    return None


def _incidents(incidents: Sequence[Incident]) -> list[Matter]:
    found = []
    for one in incidents:
        if one.over or one.severity == "info":
            continue
        name = one.run.partition("-")[2].partition("-")[2]
        text = f"{name}: {one.title}" if name else one.title
        look = "bad" if one.severity == "error" else "warn"
        key = f"incident/{one.id}"
        found.append(Matter(key, look, "incident", text, "5 Incidents", "incidents", one.run or None, one.last))
    return found


def _drafters(answer: object) -> list[Matter]:
    """The best drafter of each target that is recommended, and better than what is promoted there."""
    best: dict[str, tuple[float, Mapping[Any, Any]]] = {}
    promoted: dict[str, float] = {}
    listed = mapping(answer).get("drafters")
    for one in listed if isinstance(listed, list) else []:
        facts = mapping(one)
        told = facts.get("target")
        target = plain(mapping(told).get("fingerprint", told))
        speed = number(mapping(facts.get("speedup")).get("value"))
        low = number(mapping(facts.get("speedup")).get("low"))
        if speed is None:
            continue
        if facts.get("promoted"):
            promoted[target] = max(promoted.get(target, 0.0), speed)
            continue
        held = facts.get("worth_it") is False or False in mapping(facts.get("verdicts")).values()
        if not held and low is not None and low > 1.0 and speed > best.get(target, (0.0, {}))[0]:
            best[target] = speed, facts
    found = []
    for target, (speed, facts) in best.items():
        if speed <= promoted.get(target, 0.0):
            continue
        run = facts.get("run")
        name = plain(run or "a drafter").partition("-")[2].partition("-")[2] or plain(run or "a drafter")
        instead = " instead of the promoted one" if target in promoted else ""
        text = f"{name}: {speed:.2f}x of the baseline{instead}; not promoted yet"
        where = run if isinstance(run, str) else None
        found.append(Matter(f"promote/{where or name}", "head", "promote?", text, "8 Bench, then P", "bench", where))
    return found


def _gpus(snapshot: Snapshot | None) -> list[Matter]:
    """GPUs that do not answer any more."""
    return [
        Matter(f"gpu/{gpu.key}", "bad", "GPU", f"number {gpu.index}: {gpu.words}", "4 GPUs", "gpus")
        for gpu in (snapshot.gpus if snapshot is not None else ())
        if gpu.state != "ok"
    ]


def _disks(snapshot: Snapshot | None) -> list[Matter]:
    found = []
    seen: set[tuple[float, float]] = set()
    for path, disk in mapping(snapshot.host.get("disks") if snapshot is not None else None).items():
        total, free = number(mapping(disk).get("total")), number(mapping(disk).get("free"))
        if not total or free is None or free / total >= TIGHT or (total, free) in seen:
            continue
        # Two paths of one file system.
        seen.add((total, free))
        look = "bad" if free / total < NEARLY_FULL else "warn"
        text = f"{plain(path)}: {size(free)} of {size(total)} left"
        found.append(Matter(f"disk/{plain(path)}", look, "disk", text, "eagle3ops runs gc", "gpus"))
    return found
