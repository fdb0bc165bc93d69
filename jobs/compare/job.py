"""compare: which drafter, on which engine, is better beyond noise? All of them on the same prompts, in turn."""

import json
import math
from collections.abc import Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from eagle3ops.answers import read_answers
from eagle3ops.bench.cases import BASELINE
from eagle3ops.bench.lineup import plan_context, planned, visited, visits
from eagle3ops.engines.footprint import engine_forecast, engine_refusal
from eagle3ops.errors import RequestError
from eagle3ops.jobs.compare.contenders import OURS, RUN, CompareSpec, Contender, contenders, place_of, server
from eagle3ops.jobs.serve.job import ServeStageSpec
from eagle3ops.runs.context import Context
from eagle3ops.runs.directory import RunDirectory
from eagle3ops.runs.files import write_json
from eagle3ops.runs.job import Job, Plan, PlanContext
from eagle3ops.spec.base import StageSpec

if TYPE_CHECKING:
    from eagle3ops.bench.cases import Case, Measured
    from eagle3ops.bench.report_data import Table

_PROMPT_TOKENS = 1024


class Compare(Job):
    """`compare.json`, and the same as `report.html` and `report.md`."""

    name: ClassVar[str] = "compare"
    Spec: ClassVar[type[StageSpec]] = CompareSpec
    needs: ClassVar[tuple[str, ...]] = ("fetch", "generate", "train")
    reads: ClassVar[tuple[str, ...]] = ("target", "engine", "seed", "stages.serve")
    uses_gpu: ClassVar[bool] = True
    code: ClassVar[tuple[str, ...]] = (
        "eagle3ops.jobs.compare",
        "eagle3ops.jobs.serve",
        "eagle3ops.bench",
        "eagle3ops.engines",
        "eagle3ops.eagle3",
    )

    @classmethod
    def files(cls, spec: StageSpec) -> list[Path]:
        """Config and weights of checkpoints that are folders: a changed one is another drafter."""
        assert isinstance(spec, CompareSpec)
        places = [Path(place) for place in map(place_of, spec.drafters) if place != OURS and not place.startswith(RUN)]
        wanted = (".json", ".safetensors")
        return [file for folder in places for file in sorted(folder.glob("*")) if file.suffix in wanted]

    def plan(self, ctx: PlanContext) -> Plan:
        """Everyone side by side where memory allows; what lint finds wrong with a drafter is refused here already."""
        spec, stage = ctx.spec, ctx.pipeline.stages["serve"]
        assert isinstance(spec, CompareSpec)
        assert isinstance(stage, ServeStageSpec)
        rows, length = spec.concurrency, _PROMPT_TOKENS + spec.max_new_tokens
        refusal = engine_refusal(
            ctx, speculation=True, topk=max(one.topk for one in spec.settings or [stage.speculation])
        )
        labels = [f"{number}" for number in range(len(spec.drafters) * max(1, len(spec.settings)))]
        if "fetch" in ctx.inputs and "train" in ctx.inputs:
            try:
                found = contenders(spec, stage, ctx.pipeline.engine, ctx.inputs, ctx.out.parent.parent)
                labels = [one.label for one in found if one.label != BASELINE]
            except RequestError as error:
                refusal = refusal or error
        lineup = planned(ctx, labels, rows, length)
        return Plan(
            inputs=("drafter/", "other drafters"),
            outputs=("compare.json", "report.html", "report.md"),
            forecast=engine_forecast(ctx, rows=rows, length=length, engines=lineup.most, notes=(lineup.why,)),
            refusal=refusal,
        )

    async def run(self, ctx: Context) -> None:
        """Start everyone, put them under one load in turn, hold each against each."""
        from eagle3ops.bench.cases import Case, Measured
        from eagle3ops.bench.load import wanted_rounds
        from eagle3ops.engines.client import Sampling

        spec, stage = ctx.spec, ctx.pipeline.stages["serve"]
        assert isinstance(spec, CompareSpec)
        assert isinstance(stage, ServeStageSpec)
        rows = [row for row in read_answers(ctx.inputs["generate"] / "answers.jsonl") if row.split == "heldout"]
        prompts = [row.prompt_ids for row in rows[: spec.prompts]]
        root = RunDirectory(ctx.run_dir).root
        found = contenders(spec, stage, ctx.pipeline.engine, ctx.inputs, root)
        length = max(map(len, prompts)) + spec.max_new_tokens
        servers = {one.label: server(ctx, stage, one, spec.concurrency, length) for one in found}
        engines = {one.label: one.engine.name for one in found}
        lineup = planned(plan_context(ctx), [label for label in servers if label != BASELINE], spec.concurrency, length)
        ctx.info(lineup.why)
        load = Case(
            kind="ladder",
            prompts=prompts,
            sampling=Sampling(max_new_tokens=spec.max_new_tokens, ignore_eos=not spec.natural_stop),
            concurrency=spec.concurrency,
            rounds=max(spec.rounds, wanted_rounds(len(prompts), spec.concurrency)),
        )
        measured = Measured()
        async with aclosing(visits(ctx, lineup, servers, role="engine-compare", engines=engines)) as steps:
            async for group, clients in steps:
                await visited(ctx, lineup, [load], group, clients, [measured])
        record = compared(found, load, measured, lineup.groups)
        record["lineup"] = lineup.as_json()
        write_json(ctx.out / "compare.json", record)
        self._tell(ctx, record)

    def _tell(self, ctx: Context, record: dict[str, Any]) -> None:
        from eagle3ops.bench.report import write_report
        from eagle3ops.bench.report_data import Figure, ReportData

        ctx.artifact(ctx.out / "compare.json", note="every contender, and each held against each")
        ctx.metric("best_speedup", record["settings"][record["best"]].get("speedup", {}).get("value", 1.0))
        ctx.info(record["verdict"])
        data = ReportData(
            title=f"{ctx.pipeline.name}: comparison",
            run=RunDirectory(ctx.run_dir).run_id,
            created=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            figures=(Figure("best", record["best"], record["verdict"]),),
            loads=tables(record),
            notes=("Blocks of prompts went to everyone in turn; intervals are at 95 %.",),
        )
        html, markdown = write_report(data, ctx.out)
        ctx.artifact(html, note="the comparison; open it in a browser")
        ctx.artifact(markdown, note="the same as Markdown")


def compared(
    found: Sequence[Contender], load: "Case", measured: "Measured", groups: Sequence[Sequence[str]]
) -> dict[str, Any]:
    """The record: a row for everyone, each pair that was up together, and who is best."""
    from eagle3ops.bench.cases import case_record
    from eagle3ops.bench.contest import duels

    record = case_record(load, measured)
    for one in found:
        row = record["settings"][one.label]
        row |= {"engine": one.engine.name, "drafter": None if one.drafter is None else str(one.drafter)}
        if one.drafter is not None:
            row |= size_of(one.drafter)
    pairs = []
    for group in groups:
        # A baseline that took turns, or stood in another group, is the one that this group is paired with.
        base = {BASELINE: measured.baselines[group[-1]]} if group[-1] in measured.baselines else {}
        pairs += duels(base | {label: measured.results[label] for label in group if label != BASELINE})
    drafted = [label for label in record["settings"] if label != BASELINE]
    best = max(drafted, key=lambda label: record["settings"][label]["speedup"]["value"])
    ratio = record["settings"][best]["speedup"]
    rivals = [pair for pair in pairs if best in (pair.one, pair.other) and BASELINE not in (pair.one, pair.other)]
    open_ = [
        pair.other if pair.one == best else pair.one for pair in rivals if pair.verdict == "no difference beyond noise"
    ]
    figures = f"{ratio['value']:.2f}x of the baseline ({ratio['low']:.2f} to {ratio['high']:.2f})"
    told = f"{best} is the fastest: {figures}"
    if ratio["low"] <= 1.0:
        told = f"nobody is faster than the target alone beyond noise; the best, {best}, reaches {figures}"
    if open_:
        told += f"; no difference beyond noise to {', '.join(open_)}"
    lengths = {label: row["accept_length"] for label, row in record["settings"].items() if "accept_length" in row}
    if len(lengths) > 1:
        longest = max(lengths, key=lambda label: lengths[label])
        told += f"; the longest accept length is that of {longest}, {lengths[longest]:.3f}"
    return {
        **record,
        "duels": [pair.as_json() for pair in pairs],
        "told": [pair.words for pair in pairs],
        "best": best,
        "beyond_noise": ratio["low"] > 1.0 and not open_,
        "verdict": told,
    }


def size_of(drafter: Path) -> dict[str, Any]:
    """Bytes and parameters of a checkpoint, from the headers of its files."""
    from safetensors import safe_open

    parameters = 0
    files = sorted(drafter.glob("*.safetensors"))
    for file in files:
        with safe_open(file, framework="numpy") as tensors:
            parameters += sum(math.prod(tensors.get_slice(name).get_shape()) for name in tensors.keys())  # noqa: SIM118
    config = json.loads((drafter / "config.json").read_text(encoding="utf-8"))
    return {
        "bytes": sum(file.stat().st_size for file in files),
        "parameters": parameters,
        "draft_vocab_size": config.get("draft_vocab_size"),
    }


def tables(record: dict[str, Any]) -> "tuple[Table, ...]":
    """Everyone, acceptance by position, and each held against each."""
    from eagle3ops.bench.report_data import Table

    rows, positions = [], []
    for label, row in record["settings"].items():
        ratio = row.get("speedup")
        rows.append(
            (
                label,
                f"{row['tokens_per_s']:.1f}",
                "–" if ratio is None else f"{ratio['value']:.2f}x",
                "–" if ratio is None else f"{ratio['low']:.2f} to {ratio['high']:.2f}",
                f"{row['accept_length']:.3f}" if "accept_length" in row else "–",
                f"{row['parameters'] / 1e6:.2f} M" if "parameters" in row else "–",
            )
        )
        if "by_position" in row:
            positions.append((label, " ".join(f"{rate:.3f}" for rate in row["by_position"])))
    pairs = tuple(
        (
            pair["one"],
            pair["other"],
            f"{pair['speed']['value']:.2f}x",
            f"{pair['speed']['low']:.2f} to {pair['speed']['high']:.2f}",
            "–" if pair["accept_length"] is None else f"{pair['accept_length']['value']:+.3f}",
            pair["verdict"],
        )
        for pair in record["duels"]
    )
    head = ("contender", "tokens/s", "over baseline", "95 % interval", "accept length", "parameters")
    stop = "to the natural stop" if record["natural_stop"] else f"forced to {record['max_new_tokens']} tokens"
    note = f"{record['prompts']} held-out prompts {stop}, {record['concurrency']} in flight. {record['verdict']}."
    return (
        Table("Contenders", head, tuple(rows), note=note),
        Table("Acceptance by draft position", ("contender", "given those before it"), tuple(positions)),
        Table("Each against each", ("one", "other", "speed", "95 % interval", "accept length", "verdict"), pairs),
    )
