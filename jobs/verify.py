"""verify: prove that data, training, checkpoint and engine go together, before anyone benchmarks."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import Field

from eagle3ops.answers import AnswerRow, iter_answers
from eagle3ops.engines.footprint import engine_forecast, engine_refusal
from eagle3ops.errors import Eagle3opsError
from eagle3ops.jobs.extract.spec import ExtractSpec
from eagle3ops.jobs.generate import GenerateSpec
from eagle3ops.jobs.serve.job import ServeStageSpec, serve_spec, started
from eagle3ops.runs.context import Context
from eagle3ops.runs.files import read_json, write_json
from eagle3ops.runs.job import Job, Plan, PlanContext
from eagle3ops.spec.base import StageSpec
from eagle3ops.targets import read_target_info
from eagle3ops.targets.info import TargetInfo
from eagle3ops.wiring.checks import Check
from eagle3ops.wiring.sides import TRAIN_ROWS, Served, Stored, judge_all

CHATS = 12
"""Conversations that the engine renders by itself."""
SWITCHES = ("return_prompt_token_ids", "return_token_ids", None)
"""What makes an engine tell the tokens of a prompt: SGLang's word and ours, vLLM's, and none."""


class VerifySpec(StageSpec):
    """How much is compared."""

    probes: int = Field(default=3, ge=1)
    """Held-out rows whose hidden states are compared."""
    probe_tokens: int = Field(default=48, ge=4)
    """Tokens of each row that are fed to the engine."""
    min_greedy_agreement: float = Field(default=0.95, ge=0.0, le=1.0)
    """Share of stored final states that have to predict the engine's own token; a real engine reached 0.969."""
    max_error: float | None = Field(default=None, gt=0.0, lt=1.0)
    """Relative error up to which a segment counts as matched; left out, the noise measured for dtype and device."""


class Verify(Job):
    """The wiring verdict in `verdict.json`."""

    name: ClassVar[str] = "verify"
    Spec: ClassVar[type[StageSpec]] = VerifySpec
    needs: ClassVar[tuple[str, ...]] = ("fetch", "generate", "extract", "train", "serve")
    reads: ClassVar[tuple[str, ...]] = ("target", "engine", "seed")
    uses_gpu: ClassVar[bool] = True
    code: ClassVar[tuple[str, ...]] = (
        "eagle3ops.jobs.verify",
        "eagle3ops.jobs.serve",
        "eagle3ops.wiring",
        "eagle3ops.engines",
        "eagle3ops.eagle3",
    )

    def plan(self, ctx: PlanContext) -> Plan:
        """Starts one engine and loads the reference model."""
        spec = ctx.spec
        assert isinstance(spec, VerifySpec)
        return Plan(
            inputs=("features", "drafter/", "engine"),
            outputs=("verdict.json",),
            forecast=engine_forecast(ctx, rows=1, length=spec.probe_tokens, engines=2, dtype="float32"),
            refusal=engine_refusal(ctx, speculation=True, hidden_states=True),
        )

    async def run(self, ctx: Context) -> None:
        """Ask the running engine, compare everything with the reference model and with each other, and judge."""
        spec = ctx.spec
        assert isinstance(spec, VerifySpec)
        info = read_target_info(ctx.inputs["fetch"])
        checks = checkpoint_checks(ctx, info)
        answers = await asyncio.to_thread(some_answers, ctx)
        messages = {row.id: messages_of(ctx, row) for row in answers}
        served = await ask_engine(ctx, spec, answers, messages)
        judged = await asyncio.to_thread(
            judge_all,
            stored_of(ctx, info, answers, messages),
            served,
            dtype=ctx.pipeline.engine.dtype,
            device=ctx.pipeline.engine.device,
            least_agreement=spec.min_greedy_agreement,
            max_error=spec.max_error,
            tokenizer=tokenizer_of(ctx, info),
            further=checks,
        )
        passed = {"PASS": True, "FAIL": False, "UNDECIDED": None}[judged.verdict]
        data = judged.as_dict()
        outcome = {"passed": passed is True, "verdict": judged.verdict, "reason": judged.reason}
        write_json(ctx.out / "verdict.json", outcome | data)
        ctx.artifact(ctx.out / "verdict.json", note="wiring verdict with the fingerprint of every segment")
        if judged.agreement is not None:
            ctx.metric("greedy_agreement", judged.agreement)
        ctx.verdict("wiring", passed, judged.reason, data)


def some_answers(ctx: Context) -> list[AnswerRow]:
    """The held-out answers, and as many of training as are compared."""
    found: list[AnswerRow] = []
    left = TRAIN_ROWS
    for row in iter_answers(ctx.inputs["generate"] / "answers.jsonl"):
        if row.split == "heldout" or left > 0:
            left -= row.split == "train"
            found.append(row)
    return found


def messages_of(ctx: Context, row: AnswerRow) -> list[dict[str, Any]]:
    """A row's messages as generate rendered them."""
    spec = ctx.pipeline.stages["generate"]
    assert isinstance(spec, GenerateSpec)
    messages = [dict(turn) for turn in row.messages]
    if spec.system is not None and messages and messages[0].get("role") != "system":
        messages.insert(0, {"role": "system", "content": spec.system})
    return messages


def stored_of(
    ctx: Context, info: TargetInfo, answers: Sequence[AnswerRow], messages: Mapping[str, list[dict[str, Any]]]
) -> Stored:
    """What the stages before have left."""
    spec = ctx.pipeline.stages["generate"]
    assert isinstance(spec, GenerateSpec)
    return Stored(
        target=info.path,
        features=ctx.inputs["extract"],
        drafter=ctx.inputs["train"] / "drafter",
        answers=answers,
        messages=messages,
        temperature=spec.temperature,
    )


def tokenizer_of(ctx: Context, info: TargetInfo) -> Any:
    """The tokenizer of the folder that is served; None where there is none."""
    from eagle3ops.engines.tokenizer import ChatTokenizer, TokenizerError

    try:
        return ChatTokenizer(info.path, trust_remote_code=ctx.pipeline.target.trust_remote_code)
    except TokenizerError as error:
        ctx.warn(error.what)
        return None


def checkpoint_checks(ctx: Context, info: TargetInfo) -> list[Check]:
    """Whether the exported drafter is sound, and whether this engine reads it as it is meant."""
    from eagle3ops.eagle3.checkpoint import check_export
    from eagle3ops.wiring.lint.lint import ENGINES, lint

    drafter = ctx.inputs["train"] / "drafter"
    if problems := check_export(drafter, info.num_layers):
        raise Eagle3opsError(f"the exported drafter is not sound: {'; '.join(problems)}", remedy="train it again")
    engine = ctx.pipeline.engine.name
    facts = read_json(ctx.inputs["serve"] / "serve.json") or {}
    server = facts.get("server_info")
    version = server.get("version") if isinstance(server, dict) else None
    known = engine in ENGINES and (engine == "reference" or isinstance(version, str))
    between: Any = ("checkpoint", "engine")
    if not known:
        why = f"which version of {engine} serves is not known" if engine in ENGINES else f"{engine} is not known"
        return [Check(name="lint", between=between, verdict="not made", reason=why)]
    found = lint(drafter, info.path, engine, version if isinstance(version, str) else None)
    errors = [each for each in found if each.severity == "error"]
    figures = {"findings": [each.as_json() for each in found]}
    if errors:
        return [
            Check(
                name="lint", between=between, verdict="FAIL", kind=errors[0].code, figures=figures,
                reason="; ".join(f"{each.where}: {each.what}" for each in errors), fix=errors[0].fix,
            )
        ]  # fmt: skip
    # All of them are in the figures; nobody shall have to look there to see that there is something.
    rest = [f"{'not looked at' if each.severity == 'info' else 'warning'}: {each.where}: {each.what}" for each in found]
    reason = "; ".join([f"{engine} reads the checkpoint as it is meant", *rest])
    return [Check(name="lint", between=between, verdict="PASS", reason=reason, figures=figures)]


async def ask_engine(
    ctx: Context,
    spec: VerifySpec,
    answers: Sequence[AnswerRow],
    messages: Mapping[str, list[dict[str, Any]]],
) -> Served:
    """What the running engine feeds the drafter, through its public API, and how it renders conversations.

    Raises:
        Eagle3opsError: the engine returned fewer rows than tokens, for example from a prefix cache.
    """
    from eagle3ops.engines.client import Sampling
    from eagle3ops.wiring.capture import prompt_states

    stage = ctx.pipeline.stages["serve"]
    assert isinstance(stage, ServeStageSpec)
    setting = serve_spec(ctx, stage, stage.speculation, return_hidden_states=True)
    heldout = [row for row in answers if row.split == "heldout"]
    extract = ctx.pipeline.stages["extract"]
    assert isinstance(extract, ExtractSpec)
    longest = min(spec.probe_tokens, extract.max_tokens)
    texts = [(row.prompt_ids + row.output_ids)[:longest] for row in heldout[: spec.probes]]
    captured = []
    async with started(ctx, setting, "engine-verify") as client:
        for done, ids in enumerate(texts):
            answer = await client.generate(ids, Sampling(max_new_tokens=1), return_hidden_states=True)
            states = prompt_states(answer.hidden_states)
            if states.shape[0] != len(ids):
                raise Eagle3opsError(
                    f"the engine returned {states.shape[0]} hidden states for {len(ids)} prompt tokens",
                    remedy="switch the engine's prefix cache off for verification",
                )
            captured.append(states)
            ctx.progress(done + 1, len(texts), "probes")
        chats, words = await ask_chats(client, heldout[:CHATS], messages)
    name = f"engine {ctx.pipeline.engine.name}"
    return Served(name=name, texts=texts, states=captured, chats=chats, chat_words=words)


async def ask_chats(
    client: Any, rows: Sequence[AnswerRow], messages: Mapping[str, list[dict[str, Any]]]
) -> tuple[dict[str, tuple[tuple[int, ...] | None, int]], str]:
    """By row, the prompt that the engine makes of its messages; and why there is none."""
    from eagle3ops.wiring.data import chat_prompt

    found: dict[str, tuple[tuple[int, ...] | None, int]] = {}
    words = ""
    switches = list(SWITCHES)
    for row in rows:
        try:
            while True:
                raw = await _asked(client, messages[row.id], switches[0])
                prompt = chat_prompt(raw) if raw is not None else None
                if prompt is not None and (prompt[0] is not None or switches[0] is None):
                    break
                # Refused, or overlooked: this engine calls it otherwise, or does not tell.
                switches.pop(0)
            found[row.id] = prompt
        except Eagle3opsError as error:
            words = error.what
    return found, words


async def _asked(client: Any, messages: list[dict[str, Any]], switch: str | None) -> dict[str, Any] | None:
    """The answer to a chat; None where the switch is refused."""
    from eagle3ops.engines.client import EngineRefused

    if switch is None:
        answer: dict[str, Any] = await client.chat(messages)
        return answer
    try:
        answer = await client.chat(messages, **{switch: True})
    except EngineRefused:
        return None
    return answer
