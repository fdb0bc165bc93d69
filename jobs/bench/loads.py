"""Which loads does a benchmark put its servers under? Made of the spec, held-out answers and question sets."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle3ops.answers import AnswerRow
from eagle3ops.errors import RequestError
from eagle3ops.jobs.bench.spec import BUNDLED, BenchSpec
from eagle3ops.runs.context import Context
from eagle3ops.targets import read_target_info

if TYPE_CHECKING:
    from eagle3ops.bench.cases import Case
    from eagle3ops.engines.client import Sampling


def cases(ctx: Context, spec: BenchSpec, rows: Sequence[AnswerRow]) -> "list[Case]":
    """All loads, the one whose throughput decides first.

    Raises:
        RequestError: the question sets hold nothing usable, or a bucket does not fit into the target's context.
    """
    return [*ladder(spec, rows), *categories(ctx, spec), *lengths(ctx, spec, rows)]


def ladder(spec: BenchSpec, rows: Sequence[AnswerRow]) -> "list[Case]":
    """Throughput at every concurrency, then arrivals; natural stop and forced length apart."""
    from eagle3ops.bench.cases import Case
    from eagle3ops.bench.load import wanted_rounds
    from eagle3ops.engines.client import Sampling

    found = []
    natural = Sampling(max_new_tokens=spec.timing_tokens, ignore_eos=not spec.natural_stop)
    forced = Sampling(max_new_tokens=spec.forced_tokens or 1, ignore_eos=True)
    for concurrency in spec.concurrency:
        # A block of a few prompts says nothing about many in flight.
        prompts = [row.prompt_ids for row in rows[: max(spec.timing_prompts, 2 * concurrency)]]
        few = [row.prompt_ids for row in rows[: max(spec.latency_prompts, concurrency)]]
        rounds = spec.timing_rounds
        if concurrency > 1:
            rounds = max(rounds, wanted_rounds(len(prompts), concurrency))
        found += [
            Case(kind="ladder", prompts=prompts, sampling=sampling, concurrency=concurrency, rounds=rounds)
            for sampling in ((natural, forced) if spec.forced_tokens else (natural,))
        ]
        if spec.latency_prompts:
            found.append(Case(kind="latency", prompts=few, sampling=natural, concurrency=concurrency))
    return found


def categories(ctx: Context, spec: BenchSpec) -> "list[Case]":
    """One case for every category of the question sets."""
    if not spec.questions:
        return []
    from eagle3ops.bench.cases import Case

    grouped: dict[str, list[list[int]]] = {}
    for category, ids in questions(ctx, spec):
        grouped.setdefault(category, []).append(ids)
    return [
        Case(
            kind="category",
            name=name,
            prompts=prompts[: spec.question_prompts],
            sampling=_natural(spec.question_tokens),
            concurrency=min(spec.question_concurrency, len(prompts)),
            facts=_sizes(prompts[: spec.question_prompts]),
        )
        for name, prompts in grouped.items()
    ]


def questions(ctx: Context, spec: BenchSpec) -> list[tuple[str, list[int]]]:
    """(category, token ids) of every question that the target can take, in the order of the sets.

    Raises:
        RequestError: none of them.
    """
    from eagle3ops.engines.tokenizer import ChatTokenizer, TokenizerError
    from eagle3ops.prompts import load_prompts
    from eagle3ops.prompts.questions import bundled_questions

    info = read_target_info(ctx.inputs["fetch"])
    tokenizer = ChatTokenizer(info.path, trust_remote_code=ctx.pipeline.target.trust_remote_code)
    found, left_out = [], 0
    most = context_length(ctx) - spec.question_tokens - MARGIN
    for name in spec.questions:
        prompts = bundled_questions() if name == BUNDLED else load_prompts(Path(name)).prompts
        for prompt in prompts:
            try:
                ids = tokenizer.encode_chat(
                    [{"role": turn["role"], "content": turn["content"]} for turn in prompt.messages]
                )
            except TokenizerError:
                left_out += 1
                continue
            if len(ids) > most:
                left_out += 1
                continue
            found.append((prompt.category, ids))
    if left_out:
        ctx.warn(f"{left_out} questions are left out: longer than the target's context, or not for its chat template")
    if not found:
        raise RequestError(
            f"stages.bench.questions: none of {left_out} questions can be put to this target",
            remedy="give shorter questions, or leave stages.bench.questions out",
        )
    return found


MARGIN = 32
"""Tokens that drafts need beyond prompt and answer."""


def context_length(ctx: Context) -> int:
    """The longest prompt and answer together that the target can take."""
    import json

    config = json.loads((read_target_info(ctx.inputs["fetch"]).path / "config.json").read_text(encoding="utf-8"))
    config = config.get("text_config", config)
    found = config.get("max_position_embeddings")
    return found if isinstance(found, int) else 2048


def lengths(ctx: Context, spec: BenchSpec, rows: Sequence[AnswerRow]) -> "list[Case]":
    """One case for every bucket of prompt lengths; prompts are padded with earlier turns to fall into it.

    Raises:
        RequestError: a bucket does not fit into the target's context.
    """
    from eagle3ops.bench.cases import Case

    found, before = [], 0
    for limit in sorted(set(spec.prompt_lengths)):
        if limit + spec.timing_tokens + MARGIN > context_length(ctx):
            raise RequestError(
                f"stages.bench.prompt_lengths: {limit} prompt tokens and {spec.timing_tokens} new ones exceed the "
                f"target's context of {context_length(ctx)}",
                remedy="lower the bucket, or stages.bench.timing_tokens",
            )
        prompts, padded = fill_bucket(rows, before, limit, spec.length_prompts)
        if prompts:
            facts = {"above": before, "up_to": limit, "padded": padded, **_sizes(prompts)}
            found.append(
                Case(
                    kind="length",
                    name=f"{before + 1} to {limit} tokens",
                    prompts=prompts,
                    sampling=_natural(spec.timing_tokens),
                    concurrency=min(spec.concurrency),
                    facts=facts,
                )
            )
        else:
            ctx.warn(f"no held-out text fills the bucket of {before + 1} to {limit} prompt tokens; it is left out")
        before = limit
    return found


def fill_bucket(rows: Sequence[AnswerRow], above: int, limit: int, count: int) -> tuple[list[list[int]], int]:
    """`count` prompts of more than `above` and at most `limit` tokens, and how many of them had to be made longer.

    A prompt that is too short is asked after other held-out conversations, prompt and answer, as a long chat would go.
    """
    fitting = [row.prompt_ids for row in rows if above < len(row.prompt_ids) <= limit]
    chosen, padded = fitting[:count], 0
    short = [index for index, row in enumerate(rows) if len(row.prompt_ids) <= above]
    for index in short:
        if len(chosen) >= count:
            break
        ids = list(rows[index].prompt_ids)
        for step in range(1, len(rows)):
            other = rows[(index + step) % len(rows)]
            turn = [*other.prompt_ids, *other.output_ids]
            if turn and len(ids) + len(turn) <= limit:
                ids = turn + ids
        if len(ids) > above:
            chosen.append(ids)
            padded += 1
    return chosen, padded


def _natural(tokens: int) -> "Sampling":
    from eagle3ops.engines.client import Sampling

    return Sampling(max_new_tokens=tokens)


def _sizes(prompts: Sequence[Sequence[int]]) -> dict[str, Any]:
    return {"prompt_tokens": sum(map(len, prompts)) / max(1, len(prompts))}
