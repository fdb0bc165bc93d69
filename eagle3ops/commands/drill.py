"""What does `eagle3ops drill` print?"""

import json as jsonlib
import tempfile
from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from eagle3ops.commands.output import table, write
from eagle3ops.errors import ExitCode, RequestError
from eagle3ops.words import human_seconds, plain


def drill(args: Namespace, *, json: bool) -> int:
    """`eagle3ops drill NAME... | --list`.

    Raises:
        RequestError: there is no such drill, or a number is out of range.
        Skipped: a single drill that cannot be held here.
    """
    from eagle3ops.drills.catalogue import DRILLS, find
    from eagle3ops.drills.drill import Skipped
    from eagle3ops.drills.score import Outcome, skipped

    if args.drill_list:
        return _list(json=json)
    if not args.names:
        raise RequestError("which drill?", remedy="eagle3ops drill --list shows them")
    if not 0.001 <= args.deadline_scale <= 100:
        raise RequestError("--deadline-scale has to be between 0.001 and 100")
    if args.drill_for is not None and not 0 < args.drill_for <= 7 * 86400:
        raise RequestError("--for has to be between 0 and 604800 seconds")
    chosen = []
    for name in args.names:
        groups = {
            "healthy": [one for one in DRILLS if one.healthy],
            "faults": [one for one in DRILLS if not one.healthy],
        }
        chosen += groups.get(name) or [find(name)]
    from eagle3ops.drills.rehearsal import rehearse

    folder = Path(args.keep) if args.keep else Path(tempfile.mkdtemp(prefix="eagle3ops-drill-"))
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    possible = [one for one in chosen if one.healthy and one.reason() is None]
    each_s = (args.drill_for or 600.0) / max(1, len(possible))
    outcomes: list[Outcome] = []
    for one in chosen:
        try:
            own = Path(tempfile.mkdtemp(prefix=f"{one.name}-", dir=folder))
            if not json:
                write(f"{one.name}: {one.what}")
            outcome = rehearse(
                one, own, scale=args.deadline_scale, for_s=each_s, on_change=None if json else _tell_reading
            )
        except Skipped as reason:
            if len(chosen) == 1:
                raise
            outcome = skipped(one, reason.what)
        outcomes.append(outcome)
        write(jsonlib.dumps(outcome.as_json()) if json else _words(outcome))
    if len(outcomes) > 1:
        _sum(outcomes, json=json)
    held = [one for one in outcomes if not one.skipped]
    return ExitCode.DONE if held and all(one.right for one in held) else ExitCode.FAILED


def _tell_reading(after_s: float | None, reading: Any) -> None:
    when = "before" if after_s is None or after_s < 0 else f"{after_s:5.0f} s"
    title = "" if reading.standing.value == "healthy" else plain(reading.title)[:110]
    write(f"  {when}  {reading.standing.value:9}  {reading.state:12}  {title}".rstrip())


def _words(outcome: Any) -> str:
    lines = [("ok    " if outcome.right else "      " if outcome.skipped else "WRONG ") + plain(outcome.words)]
    lines += [f"  found: {plain(finding)[:200]}" for finding in outcome.findings[:5]]
    lines += [f"  the guard says: {plain(trouble)[:200]}" for trouble in outcome.troubles]
    if outcome.evidence:
        lines.append(f"  evidence: {outcome.evidence}")
    return "\n".join(lines)


def _sum(outcomes: Iterable[Any], *, json: bool) -> None:
    held = [one for one in outcomes if not one.skipped]
    faults = [one for one in held if not one.healthy]
    well = [one for one in held if one.healthy]
    total = {
        "type": "summary",
        "faults": len(faults),
        "rightly_named": sum(one.right for one in faults),
        "healthy_s": round(sum(one.watched_s for one in well), 1),
        "false_alarms": sum(one.false_alarms for one in held),
        "suspicions": sum(one.suspicions for one in well),
        "skipped": [one.name for one in outcomes if one.skipped],
    }
    if json:
        write(jsonlib.dumps(total))
        return
    words = []
    if faults:
        words.append(f"{total['rightly_named']} of {len(faults)} faults rightly named")
    if well:
        words.append(f"{total['false_alarms']} false alarms in {human_seconds(sum(one.watched_s for one in well))}")
    if total["skipped"]:
        words.append("skipped: " + ", ".join(one.name for one in outcomes if one.skipped))
    write("; ".join(words))


def _list(*, json: bool) -> int:
    from eagle3ops.drills.catalogue import DRILLS

    rows = [(one, one.reason()) for one in DRILLS]
    if json:
        for one, reason in rows:
            write(
                jsonlib.dumps(
                    {
                        "type": "drill",
                        "name": one.name,
                        "what": one.what,
                        "healthy": one.healthy,
                        "phase": one.phase,
                        "expected": sorted(one.expect),
                        "skipped": reason,
                    }
                )
            )
        return ExitCode.DONE
    table(
        ("drill", "phase", "should be said", "what"),
        [(one.name, one.phase, "nothing" if one.healthy else one.expected, one.what) for one, _ in rows],
    )
    for one, reason in rows:
        if reason is not None:
            write(f"{one.name} is skipped here: {reason}")
    return ExitCode.DONE
