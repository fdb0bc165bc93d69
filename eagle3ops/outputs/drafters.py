"""What did a run's benchmark find, which drafters are there, and which one is promoted? Told as plain JSON."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from eagle3ops.errors import Eagle3opsError, RequestError
from eagle3ops.outputs import promotion
from eagle3ops.outputs.benchfile import Bench, Setting
from eagle3ops.outputs.case import Case, case_in, case_of, judge
from eagle3ops.outputs.lineage import Target, output_of, outputs, record, target_of, verdicts_on
from eagle3ops.outputs.sweepfile import parse_sweep
from eagle3ops.runs.directory import RunDirectory, find_run, list_runs, runs_folder

MOST = 500
"""Drafters in one answer; of more the newest."""


def bench(root: Path, run: str) -> dict[str, Any]:
    """What the bench of a run measured, the verdicts on its drafter, and which settings may be promoted.

    `state` is `ready`, or `absent` with the reason in `why`.
    """
    found = find_run(root, run)
    case = case_of(found)
    answer: dict[str, Any] = {"run": found.run_id, "state": "absent", "target": _target(_target_of(found))}
    if isinstance(case, str):
        return answer | {"why": case, "promoted": _promoted(root, _target_of(found))}
    promoted, damaged = None, None
    if case.target is not None:
        try:
            promoted = promotion.read(root, case.target)
        except Eagle3opsError as error:
            damaged = error.what
    current = None if promoted is None else promotion.current_of(promoted)
    swept = output_of(found, "sweep")
    sweep = None if swept is None else parse_sweep(record(swept.folder / "sweep.json"))
    judged = [judge(case, setting, current) for setting in case.bench.settings if setting.speedup is not None]
    return answer | {
        "state": "ready",
        "why": case.bench.why if sweep is None else sweep.why,
        "sweep": None if sweep is None else asdict(sweep),
        "target": _target(case.target),
        "dtype": case.dtype,
        "measured": case.out.done.get("finished"),
        "bench": asdict(case.bench),
        "chosen": case.bench.chosen.label if case.bench.chosen else None,
        "verdicts": [asdict(verdict) for verdict in case.verdicts],
        "gate": {one.setting: {"refusals": list(one.refusals), "cautions": list(one.cautions)} for one in judged},
        "promoted": None if promoted is None else promoted.as_json(10),
        "promoted_damaged": damaged,
    }


def _target_of(run: RunDirectory) -> Target | None:
    return target_of(output_of(run, "fetch"))


def _target(target: Target | None) -> dict[str, str] | None:
    return None if target is None else {"name": target.name, "fingerprint": target.fingerprint}


def _promoted(root: Path, target: Target | None) -> dict[str, Any] | None:
    if target is None:
        return None
    try:
        return promotion.read(root, target).as_json(10)
    except Eagle3opsError:
        return None


def list_drafters(root: Path, target: str | None = None) -> dict[str, Any]:
    """One row for each run with a finished bench, newest first; with `target` (a fingerprint) only its drafters."""
    found, damaged = promotion.read_all(root)
    promoted = {one.target.fingerprint: one.now for one in found if one.now is not None}
    rows: list[dict[str, Any]] = []
    left_out, unreadable = 0, []
    known: dict[str, Case | str] = {}
    wiring = verdicts_on(outputs(root, "verify"))
    for run_id in reversed(list_runs(root)):
        run = RunDirectory(runs_folder(root) / run_id)
        out = output_of(run, "bench")
        if out is None:
            continue
        case = known.get(out.folder.name)
        if case is None:
            case = known[out.folder.name] = case_in(root, out, wiring)
        if isinstance(case, str):
            unreadable.append(run_id)
            continue
        if target is not None and (case.target is None or not case.target.fingerprint.startswith(target)):
            continue
        if len(rows) >= MOST:
            left_out += 1
            continue
        rows.append(_row(run, case, promoted))
    return {"drafters": rows, "left_out": left_out, "unreadable": unreadable[:20], "damaged": damaged}


def _row(run: RunDirectory, case: Case, promoted: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Speed and accept length at the best setting; `served` is about the setting that was served, often another one."""
    bench: Bench = case.bench
    chosen = bench.chosen
    baseline = next((found for found in bench.settings if found.speedup is None), None)
    now = promoted.get(case.target.fingerprint) if case.target else None
    accept = bench.accept
    return {
        "run": run.run_id,
        "target": _target(case.target),
        "dtype": case.dtype,
        "setting": chosen.label if chosen else None,
        "speedup": asdict(chosen.speedup) if chosen and chosen.speedup else None,
        "tokens_per_s": chosen.tokens_per_s if chosen else None,
        "baseline_tokens_per_s": baseline.tokens_per_s if baseline else None,
        "accept_length": chosen.accept_length if chosen else None,
        "served": None
        if accept is None
        else {
            "setting": accept.setting,
            "accept_length": accept.served,
            "predicted": accept.predicted,
            "gap": accept.gap,
        },
        "verdicts": {verdict.name: verdict.passed for verdict in case.verdicts},
        "worth_it": bench.worth_it,
        "drafter": case.out.made_from("train").get("out"),
        "measured": case.out.done.get("finished"),
        "promoted": now["setting"] if now is not None and now["run"] == run.run_id else None,
    }


def show(root: Path, target: str | None = None) -> dict[str, Any]:
    """What is promoted for each target, with its launch line and how that came about."""
    if target is not None:
        return {"promoted": [promotion.find(root, target).as_json()], "damaged": []}
    found, damaged = promotion.read_all(root)
    return {"promoted": [one.as_json() for one in found], "damaged": damaged}


def promote(
    root: Path,
    *,
    run: str,
    setting: str | None = None,
    forced: bool = False,
    reason: str | None = None,
    expected: int | None = None,
    token: str | None = None,
) -> dict[str, Any]:
    """Make a run's drafter the one that its target is served with; without `setting` at its best one.

    Raises:
        Refused: the gate says no, or somebody else decided meanwhile (`expected` is no longer the generation).
    """
    found = find_run(root, run)
    case = case_of(found)
    if isinstance(case, str):
        raise RequestError(f"{found.run_id}: {case}", remedy="a drafter is promoted on the evidence of its benchmark")
    wish = promotion.Wish(reason=reason, forced=forced, expected=expected, token=token)
    promoted, changed = promotion.promote(root, found, case, _setting(case.bench, setting), wish)
    return promoted.as_json() | {"changed": changed}


def _setting(bench: Bench, label: str | None) -> Setting:
    chosen = bench.chosen if label is None else bench.setting(label)
    if chosen is None or chosen.speedup is None:
        timed = ", ".join(found.label for found in bench.settings if found.speedup is not None)
        raise RequestError(f"no setting {label or 'at all'} was timed", remedy=f"timed were: {timed or 'none'}")
    return chosen


def rollback(
    root: Path,
    *,
    target: str | None = None,
    reason: str | None = None,
    expected: int | None = None,
    token: str | None = None,
) -> dict[str, Any]:
    """Go back to what was promoted for a target before."""
    found = promotion.find(root, target)
    wish = promotion.Wish(reason=reason, expected=expected, token=token)
    promoted, changed = promotion.rollback(root, found.target, wish)
    return promoted.as_json() | {"changed": changed}
