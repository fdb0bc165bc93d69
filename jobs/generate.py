"""generate: let the target answer prompts, so that the drafter learns from what it will have to predict."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, field_validator

from eagle3ops.answers import AnswerRow, Split, UnitJournal, distinct_bigrams, write_jsonl
from eagle3ops.engines.footprint import engine_forecast, engine_notes, engine_refusal
from eagle3ops.errors import Eagle3opsError, RequestError, first_failure
from eagle3ops.locations import expanded
from eagle3ops.prompts import Prompt, bundled_prompts, load_prompts
from eagle3ops.runs.context import Context
from eagle3ops.runs.files import write_json
from eagle3ops.runs.job import Job, Plan, PlanContext
from eagle3ops.spec.base import StageSpec
from eagle3ops.spec.models import EngineSpec
from eagle3ops.targets import read_target_info

if TYPE_CHECKING:
    from eagle3ops.engines.client import Answer, EngineClient, Sampling
    from eagle3ops.engines.fleet import Fleet
    from eagle3ops.engines.tokenizer import ChatTokenizer


BUNDLED = "bundled"


class GenerateSpec(StageSpec):
    """Which prompts are answered, and how."""

    prompts: str = BUNDLED
    """`bundled`, or a file: ShareGPT-style JSON or JSONL, messages, or one `{"prompt": ...}` a line."""
    train: int = Field(default=400, ge=1)
    """Number of prompts to train on."""
    heldout: int = Field(default=96, ge=1)
    """Number of prompts kept out of training; the predicted and the served accept length are measured on them."""
    system: str | None = None
    """System message put before every conversation that has none."""
    max_new_tokens: int = Field(default=128, ge=2)
    max_prompt_tokens: int = Field(default=1024, ge=1)
    temperature: float = Field(default=0.0, ge=0.0)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    batch: int = Field(default=32, ge=1)
    """Prompts in one request; the unit that is redone after a kill."""
    concurrency: int | None = Field(default=None, ge=1)
    """Requests in flight. Left out: one for the reference engine, for others as many as keep all replicas busy. With
    more than one, a bf16 engine's batches, and so its near-ties, depend on timing."""
    retries: int = Field(default=2, ge=0)
    request_timeout_s: float = Field(default=900.0, gt=0)
    reasoning: Literal["keep", "refuse"] = "keep"
    """`keep`: thinking stays in the answer and is trained on. `refuse`: an answer that thinks goes to quarantine."""
    think_open: str = "<think>"
    think_close: str = "</think>"

    @field_validator("prompts")
    @classmethod
    def _absolute(cls, value: str) -> str:
        # The run may be started, or resumed, from another folder.
        return value if value == BUNDLED else str(expanded(value).absolute())


def in_flight(spec: GenerateSpec, engine: EngineSpec) -> int:
    """Requests, of `spec.batch` prompts each, that are under way at once."""
    if spec.concurrency is not None:
        return spec.concurrency
    if engine.name == "reference":
        return engine.replicas
    # One more than are answered at once: the next one waits where the engine finds it.
    return engine.replicas * (-(-engine.max_running_requests // spec.batch) + 1)


def most_requests(spec: GenerateSpec, engine: EngineSpec) -> int:
    """Prompts that each replica answers at once."""
    if spec.concurrency is None and engine.name != "reference":
        return engine.max_running_requests
    return max(engine.max_running_requests, spec.batch * -(-in_flight(spec, engine) // engine.replicas))


class Generate(Job):
    """Answers in `answers.jsonl`, rows that failed in `quarantine.jsonl`, counts in `summary.json`."""

    name: ClassVar[str] = "generate"
    Spec: ClassVar[type[StageSpec]] = GenerateSpec
    needs: ClassVar[tuple[str, ...]] = ("fetch",)
    reads: ClassVar[tuple[str, ...]] = ("target", "engine", "seed")
    uses_gpu: ClassVar[bool] = True
    code: ClassVar[tuple[str, ...]] = (
        "eagle3ops.jobs.generate",
        "eagle3ops.answers",
        "eagle3ops.prompts",
        "eagle3ops.engines",
    )

    @classmethod
    def files(cls, spec: StageSpec) -> list[Path]:
        """The prompts, where they are a file of one's own: an edited file is another input."""
        assert isinstance(spec, GenerateSpec)
        return [] if spec.prompts == BUNDLED else [Path(spec.prompts)]

    def plan(self, ctx: PlanContext) -> Plan:
        """An upper bound: every answer at its longest."""
        spec = ctx.spec
        assert isinstance(spec, GenerateSpec)
        if spec.prompts != BUNDLED and not Path(spec.prompts).is_file():
            raise RequestError(
                f"stages.generate.prompts: {spec.prompts}: no such file",
                remedy="give a JSON or JSONL file of prompts, or `bundled`",
            )
        rows = spec.train + spec.heldout
        if spec.prompts == BUNDLED:
            rows = min(rows, len(bundled_prompts(ctx.pipeline.seed)))
        return Plan(
            inputs=("target",),
            outputs=("answers.jsonl", "summary.json"),
            forecast=engine_forecast(
                ctx,
                rows=most_requests(spec, ctx.pipeline.engine),
                length=spec.max_new_tokens + 64,
                tokens=rows * spec.max_new_tokens,
                disk_bytes=rows * (spec.max_new_tokens + 64) * 8,
                notes=(
                    f"at most {spec.max_new_tokens} new tokens for each of {rows} prompts",
                    *engine_notes(
                        ctx,
                        speculation=False,
                        temperature=spec.temperature,
                        max_running_requests=most_requests(spec, ctx.pipeline.engine),
                    ),
                ),
            ),
            refusal=engine_refusal(ctx, speculation=False),
        )

    async def run(self, ctx: Context) -> None:
        """Answer what no earlier attempt has answered, unit by unit."""
        from eagle3ops.engines.tokenizer import ChatTokenizer

        spec = ctx.spec
        assert isinstance(spec, GenerateSpec)
        info = read_target_info(ctx.inputs["fetch"])
        tokenizer = ChatTokenizer(
            info.path,
            trust_remote_code=ctx.pipeline.target.trust_remote_code,
            think=(spec.think_open, spec.think_close),
        )
        prompts, quarantine = choose_prompts(spec, ctx.pipeline.seed)
        if len(prompts) < spec.train + spec.heldout:
            ctx.warn(f"{spec.train + spec.heldout} prompts were asked for, {spec.prompts} holds {len(prompts)}")
        items = []
        for split, prompt in prompts:
            try:
                ids = encode(tokenizer, prompt, spec)
            except ValueError as error:
                quarantine.append({"id": prompt.id, "reason": str(error)})
            else:
                items.append((split, prompt, ids))
        journal = UnitJournal(ctx.out / "units")
        units = [items[first : first + spec.batch] for first in range(0, len(items), spec.batch)]
        if any(not journal.done(number) for number in range(len(units))):
            await self._answer(ctx, spec, tokenizer, info.path, journal, units)
        rows: list[AnswerRow] = []
        for number in range(len(units)):
            answered, failed = journal.read(number)
            rows += answered
            quarantine += failed
        finish(ctx, rows, quarantine)

    async def _answer(
        self,
        ctx: Context,
        spec: GenerateSpec,
        tokenizer: "ChatTokenizer",
        model: Path,
        journal: UnitJournal,
        units: Sequence[Sequence[tuple[Split, Prompt, list[int]]]],
    ) -> None:
        from eagle3ops.engines.base import ServeSpec
        from eagle3ops.engines.client import Sampling
        from eagle3ops.engines.serving import free_port
        from eagle3ops.jobs.serve.job import started_fleet

        engine = ctx.pipeline.engine
        serve = ServeSpec.of(
            engine,
            model=model,
            port=free_port(),
            max_running_requests=most_requests(spec, engine),
            temperature=spec.temperature,
            seed=ctx.pipeline.seed,
            trust_remote_code=ctx.pipeline.target.trust_remote_code,
        )
        sampling = Sampling(
            max_new_tokens=spec.max_new_tokens,
            temperature=spec.temperature,
            top_p=spec.top_p,
            seed=ctx.pipeline.seed if spec.temperature > 0 else None,
        )
        total = sum(len(unit) for unit in units)
        answered = 0
        gate = asyncio.Semaphore(in_flight(spec, engine))
        async with started_fleet(ctx, serve, "engine-generate") as client:

            async def one(number: int) -> None:
                nonlocal answered
                unit = units[number]
                if not journal.done(number):
                    async with gate:
                        rows, failed = await answer_unit(client, unit, sampling, tokenizer, spec)
                    journal.write(number, rows, failed)
                    for row in failed:
                        ctx.warn(f"prompt {row['id']} goes to quarantine: {row['reason']}")
                answered += len(unit)
                ctx.progress(answered, total, "prompts")

            # All units in flight fail where a server dies.
            with first_failure():
                async with asyncio.TaskGroup() as group:
                    for number in range(len(units)):
                        group.create_task(one(number))


def choose_prompts(spec: GenerateSpec, seed: int) -> tuple[list[tuple[Split, Prompt]], list[dict[str, Any]]]:
    """Held-out and training prompts in the order in which they are answered, and the rows that could not be read.

    Raises:
        RequestError: held-out prompts would leave none to train on.
    """
    if spec.prompts == BUNDLED:
        prompts, broken = bundled_prompts(seed), []
    else:
        loaded = load_prompts(Path(spec.prompts))
        prompts, broken = loaded.prompts, loaded.broken
    wanted = spec.train + spec.heldout
    if len(prompts) <= spec.heldout:
        raise RequestError(
            f"stages.generate: {len(prompts)} usable prompts in {spec.prompts}, but {spec.heldout} are to be held out",
            remedy="give more prompts, or lower stages.generate.heldout",
        )
    chosen = prompts[:wanted]
    marked: list[tuple[Split, Prompt]] = [
        ("heldout" if index < spec.heldout else "train", prompt) for index, prompt in enumerate(chosen)
    ]
    return marked, [{"id": f"{row.source}:{row.line}", "reason": row.reason} for row in broken]


def encode(tokenizer: "ChatTokenizer", prompt: Prompt, spec: GenerateSpec) -> list[int]:
    """Token ids of one prompt through the chat template.

    Raises:
        ValueError: the template refuses the messages, or the prompt is too long.
    """
    messages = [{"role": turn["role"], "content": turn["content"]} for turn in prompt.messages]
    if spec.system is not None and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": spec.system})
    ids = tokenizer.encode_chat(messages)
    if len(ids) > spec.max_prompt_tokens:
        raise ValueError(f"{len(ids)} prompt tokens, more than max_prompt_tokens = {spec.max_prompt_tokens}")
    return ids


async def answer_unit(
    client: "EngineClient | Fleet",
    unit: Sequence[tuple[Split, Prompt, list[int]]],
    sampling: "Sampling",
    tokenizer: "ChatTokenizer",
    spec: GenerateSpec,
) -> tuple[list[AnswerRow], list[dict[str, Any]]]:
    """Answer one unit in a single request; where that fails, prompt by prompt, so that one bad row costs one row."""
    rows, failed = [], []
    try:
        async with asyncio.timeout(spec.request_timeout_s):
            answers = await client.generate_batch([ids for _, _, ids in unit], sampling)
        outcomes: list[Answer | str] = list(answers)
    except (Eagle3opsError, TimeoutError) as error:  # one prompt may be at fault, or the engine
        if not await client.health():
            raise Eagle3opsError(f"the engine stopped answering: {error}") from error
        outcomes = [await answer_alone(client, ids, sampling, spec) for _, _, ids in unit]
    for (split, prompt, ids), outcome in zip(unit, outcomes, strict=True):
        if isinstance(outcome, str):
            failed.append({"id": prompt.id, "reason": outcome})
            continue
        thinking = tokenizer.thinking_tokens(outcome.output_ids)
        if thinking and spec.reasoning == "refuse":
            failed.append({"id": prompt.id, "reason": f"the answer holds {thinking} thinking tokens"})
            continue
        rows.append(
            AnswerRow(
                id=prompt.id,
                split=split,
                messages=[dict(message) for message in prompt.messages],
                prompt_ids=ids,
                output_ids=outcome.output_ids,
                finish_reason=outcome.finish_reason,
                thinking_tokens=thinking,
            )
        )
    return rows, failed


async def answer_alone(
    client: "EngineClient | Fleet", ids: list[int], sampling: "Sampling", spec: GenerateSpec
) -> "Answer | str":
    """One prompt with retries; the reason as text when every attempt failed."""
    reason = ""
    for attempt in range(spec.retries + 1):
        try:
            async with asyncio.timeout(spec.request_timeout_s):
                return await client.generate(ids, sampling)
        except TimeoutError:
            reason = f"no answer within {spec.request_timeout_s:g} s"
        except Eagle3opsError as error:
            reason = error.what
        await asyncio.sleep(min(8.0, 0.5 * 2**attempt))
    return f"{reason} ({spec.retries + 1} attempts)"


def finish(ctx: Context, rows: Sequence[AnswerRow], quarantine: Sequence[dict[str, Any]]) -> None:
    """Write answers, quarantine and summary.

    Raises:
        Eagle3opsError: a split ended without a single answer.
    """
    if quarantine:
        write_jsonl(ctx.out / "quarantine.jsonl", quarantine)
        ctx.artifact(ctx.out / "quarantine.jsonl", note=f"{len(quarantine)} rows that could not be used, with reasons")
        ctx.warn(f"{len(quarantine)} rows went to quarantine.jsonl")
    counts = Counter(row.split for row in rows)
    for split in ("train", "heldout"):
        if not counts[split]:
            raise Eagle3opsError(f"generate: no {split} prompt was answered", remedy="read quarantine.jsonl")
    write_jsonl(ctx.out / "answers.jsonl", rows)
    outputs = [row.output_ids for row in rows]
    reasons = Counter(row.finish_reason for row in rows)
    summary: dict[str, Any] = {
        "rows": dict(counts),
        "splits": {split: _extent([row for row in rows if row.split == split]) for split in counts},
        "prompt_tokens": sum(len(row.prompt_ids) for row in rows),
        "tokens": sum(len(row.prompt_ids) + len(row.output_ids) for row in rows),
        "output_tokens": sum(map(len, outputs)),
        "finish_reason": dict(reasons),
        "truncated": reasons["length"] / len(rows),
        "thinking_rows": sum(1 for row in rows if row.thinking_tokens),
        "thinking_tokens": sum(row.thinking_tokens for row in rows),
        "distinct_bigrams": distinct_bigrams(outputs),
        "quarantined": len(quarantine),
    }
    write_json(ctx.out / "summary.json", summary)
    ctx.artifact(ctx.out / "answers.jsonl", note=f"{counts['train']} training and {counts['heldout']} held-out answers")
    ctx.metric("tokens", summary["output_tokens"])
    for name in ("truncated", "distinct_bigrams", "thinking_tokens"):
        ctx.metric(name, float(summary[name]))


def _extent(rows: Sequence[AnswerRow]) -> dict[str, int]:
    """Tokens of prompts and answers, for those who plan for their hidden states."""
    lengths = [len(row.prompt_ids) + len(row.output_ids) for row in rows]
    return {"tokens": sum(lengths), "longest": max(lengths)}
