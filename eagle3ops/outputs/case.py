"""What speaks for a drafter, and what against it? Its benchmark, the verdicts, and whether they are about one thing."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eagle3ops.outputs.benchfile import Bench, Setting, Speedup, parse_bench
from eagle3ops.outputs.lineage import (
    Output,
    Served,
    Target,
    changed_since,
    input_of,
    output_of,
    outputs,
    record,
    served,
    stage_status,
    target_of,
    verdicts_on,
)
from eagle3ops.outputs.sweepfile import as_bench, parse_sweep
from eagle3ops.outputs.values import mapping, number, text
from eagle3ops.runs.directory import RunDirectory
from eagle3ops.words import UNDECIDED

WORDS = {
    "": "this run has no bench stage",
    "waiting": "the bench stage has not run yet",
    "running": "the bench stage is running; its figures come when it is done",
    "failed": "the bench stage has failed; its log says why",
    "cancelled": "the run was cancelled before the bench stage was done",
}

LEAST_PAIRS, FEW_PAIRS = 4, 10
"""Pairs below which an interval is no proof, and below which a person is told how few there were. The interval of two
pairs is the two of them: that both lie above 1 by chance happens to one setting in four."""

MADE_WHEN_NEEDED = ("wiring_again", "output_diversity")
"""Verdicts of a bench that are no gap where they are absent: one is made on an alarm, the other is newer than some."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One check on a drafter."""

    name: str
    stage: str
    passed: bool | None
    """None: it was not made, or is UNDECIDED; the reason says which."""
    reason: str


@dataclass(frozen=True, slots=True)
class Case:
    """A drafter with everything that was found out about it."""

    out: Output
    """Of the bench."""
    bench: Bench
    target: Target | None
    drafter: Path | None
    """Folder of the exported drafter; None when it is gone."""
    identity: str
    """Of the training's output that was benchmarked: another drafter has another one."""
    dtype: str
    """In which the engine served it."""
    verdicts: tuple[Verdict, ...]
    doubts: tuple[str, ...]
    """What has been made again since it was benchmarked, or was not served as it is exported."""
    launch: Mapping[str, str] = field(default_factory=dict)
    """Launch lines of settings that say more than steps, topk and draft tokens."""
    default: str = ""
    """The setting that `over_default` compares with."""
    over_default: Mapping[str, Speedup] = field(default_factory=dict)
    """Settings that were measured side by side with the default, and how much faster they are."""
    flattered: str = ""
    """The setting whose last measurement was on prompts that had chosen it."""

    def verdict(self, name: str) -> Verdict | None:
        """The verdict of that name."""
        return next((found for found in self.verdicts if found.name == name), None)


def case_of(run: RunDirectory) -> Case | str:
    """The case of a run's drafter, or in words why there is none."""
    bench = output_of(run, "bench")
    if bench is None:
        swept = output_of(run, "sweep")
        if swept is not None:
            return swept_case(run.root, swept)
        status, _ = stage_status(run, "bench")
        if status in ("done", "reused"):
            return "the output of the bench stage is gone: its done.json cannot be read"
        if status == "running" and not run.alive():
            return "the run was interrupted before the bench stage was done"
        return WORDS.get(status, f"the bench stage is {status[:40]}")
    return case_in(run.root, bench, verdicts_on(outputs(run.root, "verify")))


def case_in(root: Path, out: Output, wiring: Mapping[Served, Output]) -> Case | str:
    """The case that a finished bench makes.

    Args:
        root: the folder of runs and stage outputs.
        out: of the bench.
        wiring: outputs of verify, by what they are about.
    """
    file = out.folder / "bench.json"
    if not file.is_file():
        return f"{file} is missing"
    bench = parse_bench(record(file))
    if bench is None:
        return f"{file} cannot be read: torn, or of another version"
    train = input_of(root, out, "train")
    serve = input_of(root, out, "serve")
    drafter = train.folder / "drafter" if train is not None and (train.folder / "drafter").is_dir() else None
    facts = mapping(record(serve.folder / "serve.json")) if serve is not None else {}
    about = served(out)
    return Case(
        out=out,
        bench=bench,
        target=target_of(input_of(root, out, "fetch")),
        drafter=drafter,
        identity=text(out.made_from("train").get("identity")),
        dtype=text(mapping(facts.get("server_info")).get("dtype"), 20),
        verdicts=tuple(_verdicts(out, bench, wiring.get(about) if about else None)),
        doubts=tuple(_doubts(root, out, facts)),
    )


def swept_case(root: Path, out: Output) -> Case | str:
    """The case that a finished sweep makes; equal output is what a benchmark of the same drafter has proven."""
    sweep = parse_sweep(record(out.folder / "sweep.json"))
    if sweep is None:
        return f"{out.folder / 'sweep.json'} cannot be read: torn, or of another version"
    about = served(out)
    alike = [one for one in outputs(root, "bench") if about is not None and served(one) == about]
    benched = max(alike, key=lambda one: number(one.done.get("finished")) or 0.0, default=None)
    wiring = verdicts_on(outputs(root, "verify"))
    found = case_in(root, benched, wiring) if benched is not None else None
    bench = as_bench(sweep, found.bench if isinstance(found, Case) else None)
    train, serve = input_of(root, out, "train"), input_of(root, out, "serve")
    facts = mapping(record(serve.folder / "serve.json")) if serve is not None else {}
    won = sweep.winner
    return Case(
        out=out,
        bench=bench,
        target=target_of(input_of(root, out, "fetch")),
        drafter=train.folder / "drafter" if train is not None and (train.folder / "drafter").is_dir() else None,
        identity=text(out.made_from("train").get("identity")),
        dtype=text(mapping(facts.get("server_info")).get("dtype"), 20),
        verdicts=tuple(_verdicts(benched or out, bench, wiring.get(about) if about else None)),
        doubts=tuple(_doubts(root, out, facts)),
        launch={point.setting: point.launch_line for point in sweep.points if point.concurrency == sweep.decisive},
        default=sweep.default,
        over_default={won.setting: won.over_default} if won is not None and won.over_default is not None else {},
        flattered=won.setting if won is not None and not won.fresh else "",
    )


def _doubts(root: Path, out: Output, facts: Mapping[str, Any]) -> Iterable[str]:
    for stage in ("fetch", "train", "serve"):
        if changed_since(root, out, stage):
            yield f"{stage} has been made again since it was benchmarked, with another outcome"
    if mapping(facts.get("server_info")).get("aux_layers") is not None:
        yield "it was served with aux layers set by hand (stages.serve.aux_layers), not with those of its config"


def _verdicts(out: Output, bench: Bench, verify: Output | None) -> Iterable[Verdict]:
    """Wiring first, then those of the bench; each of them stands there, made or not."""
    known: Mapping[str, tuple[bool | None, str]] = {} if verify is None else verify.verdicts()
    wiring = _told(known.get("wiring"))
    why = "no verify stage has looked at this drafter with these engine settings"
    yield Verdict("wiring", "verify", *(wiring or (None, why)))
    told = out.verdicts()
    absent = {
        "equal_output": "not measured: equality_prompts is 0, or the engine is not the reference engine",
        "accept_length": f"no prediction for {bench.served or 'this setting'} to hold it against",
        "divergence": "not measured: divergence_prompts is 0",
    }
    for name, reason in absent.items():
        yield Verdict(name, "bench", *(_told(told.get(name)) or (None, reason)))
    for name in MADE_WHEN_NEEDED:
        if (outcome := _told(told.get(name))) is not None:
            yield Verdict(name, "bench", *outcome)


def _told(outcome: tuple[bool | None, str] | None) -> tuple[bool | None, str] | None:
    """An outcome whose reason says by itself that it is undecided."""
    if outcome is None or outcome[0] is not None:
        return outcome
    return None, f"{UNDECIDED}: {outcome[1]}"


@dataclass(frozen=True, slots=True)
class Judgement:
    """May a setting of a drafter be promoted?"""

    setting: str
    refusals: tuple[str, ...]
    """Each is reason enough against it; empty when it may."""
    cautions: tuple[str, ...]
    """What should be known all the same."""


def judge(case: Case, setting: Setting, current: "Current | None") -> Judgement:
    """Hold a setting against the gate: better beyond noise, with no FAIL, wiring and equality proven."""
    refusals, cautions = [], []
    speedup = setting.speedup
    pairs = None if speedup is None else speedup.pairs
    if speedup is None:
        refusals.append(f"{setting.label} was not timed against the baseline")
    elif speedup.low <= 1.0:
        refusals.append(f"not faster beyond noise: {setting.label} reaches {speedup.words}")
    elif pairs is not None and pairs < LEAST_PAIRS:
        refusals.append(
            f"only {pairs} pairs of {setting.label} were timed ({speedup.words}): of fewer than {LEAST_PAIRS} "
            "an interval knows too little of noise"
        )
    # Another engine than ours is not asked for equal output, but held to the margins where it differs.
    other = case.bench.engine not in ("", "reference")
    near_ties = other and any(one.name == "divergence" and one.passed is True for one in case.verdicts)
    for verdict in case.verdicts:
        if verdict.passed is False:
            refusals.append(f"{verdict.name} is FAIL: {verdict.reason}")
        elif verdict.name == "equal_output" and verdict.passed is None and near_ties:
            cautions.append("output was compared in the served dtype only, where every difference is a near-tie")
        elif verdict.passed is None and verdict.name in ("wiring", "equal_output"):
            refusals.append(f"{verdict.name} is not proven: {verdict.reason}")
        elif verdict.passed is None:
            cautions.append(f"{verdict.name}: {verdict.reason}")
    refusals += case.doubts
    if current is not None and current.speedup is not None and speedup is not None:
        same = current.dtype == case.dtype
        if same and speedup.high < current.speedup.low:
            refusals.append(f"slower than what is promoted now ({current.words}), and beyond noise")
        elif speedup.value < current.speedup.value:
            cautions.append(f"what is promoted now reached {current.words}")
    beside = case.over_default.get(setting.label)
    promoted = current is not None and (current.identity, current.setting) == (case.identity, case.default)
    if promoted and beside is not None and beside.low <= 1.0:
        interval = f"{beside.value:.2f}x of it, {beside.low:.2f} to {beside.high:.2f}, measured side by side"
        refusals.append(f"not faster than what is promoted now, {case.default}, beyond noise: {interval}")
    if case.bench.served and setting.label != case.bench.served:
        cautions.append(f"accept length and equality were measured at {case.bench.served}, not at {setting.label}")
    if setting.label == case.flattered:
        cautions.append("its final was on prompts that chose it, as too few were held out: that flatters it")
    if speedup is not None and pairs is not None and pairs < FEW_PAIRS and (speedup.low <= 1.0 or pairs >= LEAST_PAIRS):
        # Fewer of one that is faster are a refusal already.
        cautions.append(f"only {pairs} pairs were timed")
    return Judgement(setting.label, tuple(refusals), tuple(cautions))


@dataclass(frozen=True, slots=True)
class Current:
    """What is promoted now, as far as the gate is concerned."""

    setting: str
    dtype: str
    speedup: Speedup | None
    identity: str = ""
    """Of the drafter."""

    @property
    def words(self) -> str:
        """`3/1/4, 1.34x of the baseline, ...`."""
        return self.setting + (f", {self.speedup.words}" if self.speedup else "")
