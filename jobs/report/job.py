"""report: everything a run found out, in one HTML file and one Markdown file that open without a network."""

import asyncio
import json
import platform
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import psutil

from eagle3ops.jobs.report.loads import load_tables
from eagle3ops.jobs.report.sweep import USED, bench_output, newest_sweep, sweep_tables
from eagle3ops.jobs.report.tables import alarm_tables, equality_tables, wiring_tables
from eagle3ops.outputs.lineage import output_in
from eagle3ops.runs.context import Context
from eagle3ops.runs.directory import RunDirectory
from eagle3ops.runs.job import Job, Plan, PlanContext
from eagle3ops.spec.base import StageSpec
from eagle3ops.targets import TargetInfo, read_target_info
from eagle3ops.words import outcome_of, outcome_word

if TYPE_CHECKING:
    from eagle3ops.bench.report_data import Accept, Check, Figure, ReportData, Series, StageLine, Table, Timing


class ReportSpec(StageSpec):
    """What stands above the report."""

    title: str | None = None
    """The pipeline's name is taken when left out."""


class Report(Job):
    """`report.html` and `report.md`."""

    name: ClassVar[str] = "report"
    Spec: ClassVar[type[StageSpec]] = ReportSpec
    needs: ClassVar[tuple[str, ...]] = ("fetch", "generate", "extract", "train", "serve", "verify", "bench")
    reads: ClassVar[tuple[str, ...]] = ("target", "engine", "seed")
    code: ClassVar[tuple[str, ...]] = (
        "eagle3ops.jobs.report",
        "eagle3ops.outputs.benchloads",
        "eagle3ops.outputs.values",
        "eagle3ops.bench.report",
        "eagle3ops.bench.report_data",
        "eagle3ops.bench.plots",
    )

    def plan(self, ctx: PlanContext) -> Plan:
        """Reads what the other stages left."""
        return Plan(inputs=("every stage",), outputs=("report.html", "report.md"))

    def stale(self, out: Path) -> str | None:
        """A sweep of the same drafter that has been finished since belongs into it."""
        root = out.parent.parent
        newest = newest_sweep(root, output_in(root, "report", out.name))
        shown = (out / USED).read_text(encoding="utf-8") if (out / USED).is_file() else ""
        return "a sweep of this drafter has been finished since" if newest and newest.folder.name != shown else None

    async def run(self, ctx: Context) -> None:
        """Gather and write."""
        await asyncio.to_thread(self._write, ctx)

    def _write(self, ctx: Context) -> None:
        from eagle3ops.bench.report import write_report

        spec = ctx.spec
        assert isinstance(spec, ReportSpec)
        html, markdown = write_report(gather(ctx, spec), ctx.out)
        ctx.artifact(html, note="the report; open it in a browser")
        ctx.artifact(markdown, note="the same as Markdown")


def gather(ctx: Context, spec: ReportSpec) -> "ReportData":
    """All that a report shows, from the outputs of the stages and the run's own record."""
    from eagle3ops.bench.report_data import ReportData

    run = RunDirectory(ctx.run_dir)
    summary = loaded(ctx.inputs["generate"] / "summary.json")
    prediction = loaded(ctx.inputs["train"] / "prediction.json")
    bench = loaded(ctx.inputs["bench"] / "bench.json")
    verdict = loaded(ctx.inputs["verify"] / "verdict.json")
    serve = loaded(ctx.inputs["serve"] / "serve.json")
    root = RunDirectory(ctx.run_dir).root
    swept = newest_sweep(root, bench_output(root, ctx.inputs["bench"]))
    if swept is not None:
        (ctx.out / USED).write_text(swept.folder.name, encoding="utf-8")
    losses, accuracies = curves(ctx.inputs["train"] / "metrics.jsonl")
    return ReportData(
        title=spec.title or ctx.pipeline.name,
        run=run.run_id,
        created=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        figures=headline(bench, verdict),
        checks=checks(run),
        facts=facts(ctx, read_target_info(ctx.inputs["fetch"]), summary, prediction["training"], run),
        stages=stage_lines(run),
        losses=losses,
        accuracies=accuracies,
        accept=accept(bench["accept"]),
        alarm=alarm_tables(bench["accept"]),
        timings=timings(bench["timing"]),
        sweep=sweep_tables(swept),
        loads=load_tables(bench),
        wiring=wiring_tables(verdict),
        equality=equality_tables(bench),
        launch=serve["launch_line"],
        notes=notes(ctx, bench),
    )


def loaded(path: Path) -> dict[str, Any]:
    """One of the stages' records, which the store has checked already."""
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return data


def headline(bench: dict[str, Any], verdict: dict[str, Any]) -> "tuple[Figure, ...]":
    """The numbers a reader looks for first."""
    from eagle3ops.bench.report_data import Figure

    timing, served = bench["timing"], bench["accept"]
    shown = [
        Figure("wiring", outcome_word(outcome_of(verdict)), "training and serving feed the same tensors"),
        Figure("accept length", f"{served['served']:.2f}", f"tokens per verification step at {served['setting']}"),
    ]
    if "predicted" in served:
        shown.append(Figure("predicted", f"{served['predicted']:.2f}", f"in training; gap {served['gap']:+.1%}"))
    best = timing["settings"].get(timing["recommended"], {}).get("speedup")
    if best is not None:
        interval = f"{best['low']:.2f} to {best['high']:.2f} at 95 %"
        shown.append(Figure("speed-up", f"{best['value']:.2f}x", f"{timing['recommended']}, batch 1, {interval}"))
    else:
        shown.append(Figure("speed-up", "none", "no setting was faster than the baseline beyond noise"))
    return tuple(shown)


def checks(run: RunDirectory) -> "tuple[Check, ...]":
    """The verdicts of this run, the last one of each name."""
    from eagle3ops.bench.report_data import Check

    found = {}
    for event in run.reader().read():
        if event.kind == "verdict":
            found[event.data["name"]] = Check(
                event.data["name"].replace("_", " "), outcome_of(event.data), event.data["reason"]
            )
    return tuple(found.values())


def stage_lines(run: RunDirectory) -> "tuple[StageLine, ...]":
    """How each stage went, as far as the run's record knows at this moment."""
    from eagle3ops.bench.report_data import StageLine

    return tuple(
        StageLine(
            name,
            "writing this report" if name == "report" else str(stage.get("status", "")),
            stage.get("seconds"),
            "taken over from an earlier run" if stage.get("status") == "reused" else "",
        )
        for name, stage in run.state()["stages"].items()
    )


def curves(path: Path) -> "tuple[tuple[Series, ...], tuple[Series, ...]]":
    """Loss and accuracy over the optimiser steps, one curve for each draft step of training."""
    from eagle3ops.bench.report_data import Series

    points: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for line in path.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        points[entry["name"]].append((entry["step"], entry["value"]))

    def series(kind: str) -> tuple[Series, ...]:
        prefix = f"train/{kind}_"
        names = sorted((name for name in points if name.startswith(prefix)), key=lambda name: int(name[len(prefix) :]))
        return tuple(Series(f"draft step {name[len(prefix) :]}", tuple(points[name])) for name in names)

    return series("loss"), series("cond_acc")


def accept(record: dict[str, Any]) -> "tuple[Accept, ...]":
    """Served against predicted."""
    from eagle3ops.bench.report_data import Accept

    return (
        Accept(
            setting=record["setting"],
            served=record["served"],
            served_histogram=tuple(record["histogram"]),
            predicted=record.get("predicted"),
            predicted_histogram=tuple(record.get("predicted_histogram", ())),
        ),
    )


def timings(record: dict[str, Any]) -> "tuple[Timing, ...]":
    """Every setting beside the baseline."""
    from eagle3ops.bench.report_data import Timing

    shown = []
    for label, row in record["settings"].items():
        speedup = row.get("speedup", {})
        shown.append(
            Timing(
                label=label,
                per_request=tuple(row["per_request"]),
                tokens_per_s=row["tokens_per_s"],
                speedup=speedup.get("value"),
                low=speedup.get("low"),
                high=speedup.get("high"),
                accept_length=row.get("accept_length"),
                recommended=label == record["recommended"],
            )
        )
    return tuple(shown)


def facts(
    ctx: Context, info: TargetInfo, summary: dict[str, Any], training: dict[str, Any], run: RunDirectory
) -> "tuple[Table, ...]":
    """What ran on what."""
    from eagle3ops.bench.report_data import Table

    engine = ctx.pipeline.engine
    extracted = loaded(ctx.inputs["extract"] / "heldout" / "header.json")
    target = (
        ("model", info.name),
        ("source", info.source),
        ("fingerprint", info.fingerprint[:16]),
        ("layers x hidden size", f"{info.num_layers} x {info.hidden_size}"),
        ("vocabulary", f"{info.vocab_size:,}"),
        ("engine", f"{engine.name}, {engine.dtype}, device {engine.device}"),
    )
    reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(summary["finish_reason"].items()))
    data = (
        ("answers", f"{summary['rows'].get('train', 0)} training, {summary['rows'].get('heldout', 0)} held out"),
        ("answer tokens", f"{summary['output_tokens']:,}"),
        ("ended by", reasons),
        ("thinking tokens", f"{summary['thinking_tokens']:,}"),
        ("distinct bigrams", f"{summary['distinct_bigrams']:.1%}"),
        ("rows in quarantine", str(summary["quarantined"])),
        (
            "hidden states",
            "boundaries {aux_boundaries}, {dtype}, final state {final_state}".format_map(extracted),
        ),
    )
    drafter = (
        ("optimiser steps", f"{training['steps']:,}"),
        ("trained positions", f"{training['positions']:,} (last process)"),
        ("draft vocabulary covers", f"{training['vocab_coverage']:.1%} of training text"),
        ("of held-out text", f"{training['heldout_coverage'] or 0.0:.1%}"),
        ("start", training["initial"]),
    )
    versions = tuple((name, str(version)) for name, version in run.state().get("versions", {}).items())
    memory = psutil.virtual_memory().total / 2**30
    host = (
        ("system", f"{platform.system()} {platform.release()}, {platform.machine()}"),
        ("processors", f"{psutil.cpu_count(logical=True)} logical, {memory:.0f} GiB memory"),
        ("python", platform.python_version()),
        *versions,
    )
    named = (("Target and engine", target), ("Data", data), ("Training", drafter), ("Host and versions", host))
    return tuple(Table(title, ("", ""), rows) for title, rows in named)


def notes(ctx: Context, bench: dict[str, Any]) -> tuple[str, ...]:
    """What a reader should know before quoting a number."""
    stop = "to its natural stop" if bench["timing"]["natural_stop"] else "at a forced length"
    told = [
        f"Throughput is measured at batch {bench['timing'].get('batch', 1)}, each prompt answered {stop}, by every "
        "engine in turn.",
        "Accept length counts tokens per verification step, the target's own token included.",
        "The predicted accept length is a renewal walk of the exported drafter over held-out answers.",
    ]
    if ctx.pipeline.stages["generate"].model_dump().get("prompts") == "bundled":
        told.append("The bundled prompts are alike in style: a drafter does worse on text of another kind.")
    return tuple(told)
