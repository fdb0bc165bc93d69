"""What does the tool that others use say of the same servers? `sglang.bench_serving` as a child, for bench."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from eagle3ops.answers import AnswerRow
from eagle3ops.errors import Eagle3opsError
from eagle3ops.jobs.bench.spec import BenchSpec
from eagle3ops.runs.context import Context
from eagle3ops.targets import read_target_info

if TYPE_CHECKING:
    from eagle3ops.engines.base import ServeSpec

FINISH_S = 600.0


async def tool_figures(
    ctx: Context,
    spec: BenchSpec,
    servers: "Mapping[str, ServeSpec]",
    labels: Sequence[str],
    rows: Sequence[AnswerRow],
) -> dict[str, Any]:
    """Its figures at every concurrency for these running servers, by label; the reason where it does not run here."""
    if ctx.pipeline.engine.name != "sglang":
        return {"absent": f"sglang.bench_serving belongs to SGLang, the engine is {ctx.pipeline.engine.name}"}
    found: dict[str, Any] = {}
    for label in labels:
        try:
            found[label] = [await _one(ctx, spec, servers[label], label, c, rows) for c in spec.concurrency]
        except (Eagle3opsError, OSError) as error:
            ctx.warn(f"sglang.bench_serving has no figures for {label}: {error}")
            return {**found, "absent": str(error).splitlines()[0]}
    return found


async def _one(
    ctx: Context, spec: BenchSpec, server: "ServeSpec", label: str, concurrency: int, rows: Sequence[AnswerRow]
) -> dict[str, Any]:
    from eagle3ops.bench.lineup import slug
    from eagle3ops.bench.serving_tool import ToolError, ToolRun, parse_tool_line, write_dataset
    from eagle3ops.engines.client import log_tail
    from eagle3ops.engines.registry import adapter

    role = f"bench-serving-{slug(label)}-{concurrency}"
    folder = ctx.out / "field"
    folder.mkdir(exist_ok=True)
    chosen = rows[: max(spec.timing_prompts, 2 * concurrency)]
    dataset, output = folder / f"{role}-prompts.jsonl", folder / f"{role}.jsonl"
    write_dataset([str(row.messages[-1]["content"]) for row in chosen], dataset)
    output.unlink(missing_ok=True)
    run = ToolRun(
        # As the server itself was started.
        python=adapter("sglang").argv(server)[0],
        url=server.url,
        model=read_target_info(ctx.inputs["fetch"]).path,
        dataset=dataset,
        output=output,
        prompts=len(chosen),
        tokens=spec.timing_tokens,
        concurrency=concurrency,
        natural_stop=spec.natural_stop,
        seed=ctx.pipeline.seed,
    )
    async with ctx.spawn(run.argv(), role=role, env=adapter("sglang").environment(server)) as process:
        try:
            code = await asyncio.wait_for(process.wait(), FINISH_S)
        except TimeoutError as error:
            raise ToolError(f"it did not end within {FINISH_S:.0f} s") from error
    if code != 0 or not output.is_file():
        raise ToolError(f"it ended with exit code {code}; {log_tail(ctx.run_dir / 'logs' / f'{role}.log', 3)}")
    return {**parse_tool_line(output.read_text(encoding="utf-8")), "asked_concurrency": concurrency}
