"""What does an engine capture for a drafter, here and now? Started, asked, and held against the reference.

No pipeline, no training: a target, a drafter's config, and an engine. The verdict needs to know which layers training
used; without that it can only say what is captured.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle3ops.eagle3.layers import AuxLayers
from eagle3ops.engines.base import ServeSpec
from eagle3ops.engines.client import EngineError, Sampling
from eagle3ops.engines.registry import adapter
from eagle3ops.engines.serving import free_port, logged, running
from eagle3ops.errors import Eagle3opsError
from eagle3ops.wiring.capture import prompt_states
from eagle3ops.wiring.cause import Cause, Held, search
from eagle3ops.wiring.noise import limits
from eagle3ops.wiring.verdict import Outcome, judge_states

if TYPE_CHECKING:
    from torch import Tensor

    from eagle3ops.engines.reference.model import Target

PROBES, TOKENS = 3, 32
_TEXTS = (
    "The quick brown fox jumps over the lazy dog, and then it tells everybody at home what it saw on its long way.",
    "def add(a, b):\n    return a + b\n\nprint(add(2, 3))  # prints 5, as everybody who can count would have expected",
    "Once upon a time a small drafter guessed what the large model would say next, and was right more than half of it.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Which engine, for which drafter."""

    engine: str
    python: str | None
    device: str
    dtype: str
    target: Path
    drafter: Path | None
    trained: AuxLayers | None
    """The layers that training used; None where nobody says."""
    log: Path
    """Where the engine's output goes."""
    trust_remote_code: bool = False
    max_error: float | None = None
    """Relative error up to which a segment counts as matched; None takes the noise measured for dtype and device."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of it."""

    verdict: Outcome
    reason: str
    held: tuple[Held | None, ...]
    cause: Cause | None
    num_layers: int
    notes: tuple[str, ...] = ()
    """What a reader should know of how it was found, a sentence each."""

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "verdict": self.verdict,
            "reason": self.reason,
            "boundary": [None if one is None or one.normed else one.boundary for one in self.held],
            "errors": [None if one is None else one.error for one in self.held],
            "cause": None if self.cause is None else self.cause.as_dict(),
            "num_layers": self.num_layers,
            "notes": list(self.notes),
        }


async def verify(asked: Asked) -> Verdict:
    """Start the engine, capture, end it, and judge.

    Raises:
        RequestError: the engine cannot serve this, or it is not known.
        Eagle3opsError: it did not start, or answered something else than states.
    """
    import torch

    from eagle3ops.engines.reference.model import Target, pick_device

    target = await asyncio.to_thread(Target.load, asked.target, torch.float32, pick_device(asked.device))
    texts, made_up = await asyncio.to_thread(
        probe_tokens, asked.target, target.config.vocab_size, trust_remote_code=asked.trust_remote_code
    )
    captured, told = await capture(asked, texts)
    verdict = await asyncio.to_thread(judged, asked, target, texts, captured)
    return replace(verdict, notes=(*([made_up] if made_up else []), *told))


async def capture(asked: Asked, texts: Sequence[Sequence[int]]) -> "tuple[list[Tensor], tuple[str, ...]]":
    """What the engine would feed the drafter for each text, `[T, A * H]`, and what it told beside it.

    Raises:
        RequestError: the engine cannot serve this here.
        EngineError: it did not start, or answered something else than states; with the cause by its log.
    """
    try:
        return await _capture(asked, texts)
    except EngineError as error:
        raise explained(error, asked.log) from error


async def _capture(asked: Asked, texts: Sequence[Sequence[int]]) -> "tuple[list[Tensor], tuple[str, ...]]":
    engine = adapter(asked.engine)
    spec = ServeSpec(
        model=asked.target, port=free_port(), dtype=asked.dtype, device=asked.device, drafter=asked.drafter,
        max_running_requests=1, return_hidden_states=True, python=asked.python,
        trust_remote_code=asked.trust_remote_code,
    )  # fmt: skip

    found = []
    async with running(engine, spec, spawn=logged(asked.log), log=asked.log) as client:
        for ids in texts:
            answer = await client.generate(list(ids), Sampling(max_new_tokens=1), return_hidden_states=True)
            states = prompt_states(answer.hidden_states)
            if states.shape[0] != len(ids):
                raise EngineError(
                    f"the engine returned {states.shape[0]} hidden states for {len(ids)} tokens",
                    remedy="switch its prefix cache and chunked prefill off",
                )
            found.append(states)
        return found, client.notes


def explained(error: EngineError, log: Path) -> EngineError:
    """The same with the cause that the engine's log names, first; what an engine says last is rarely why it ended."""
    from eagle3ops.forensics.diagnosis import diagnose_files

    try:
        root = diagnose_files([log]).root
    except Eagle3opsError:
        # There may be no log yet.
        root = None
    if root is None:
        return error
    what = f"the engine failed: {root.text} ({root.explanation}; line {root.line_no} of {log}); {error.what}"
    return EngineError(what, remedy=root.fix)


def probe_tokens(target: Path, vocab: int, *, trust_remote_code: bool = False) -> tuple[list[list[int]], str | None]:
    """Token ids of a few texts; without a usable tokenizer the same drawn ids every time, and a word on why."""
    from eagle3ops.engines.tokenizer import ChatTokenizer, TokenizerError

    try:
        tokenizer = ChatTokenizer(target, trust_remote_code=trust_remote_code)
        found = [tokenizer.encode_chat([{"role": "user", "content": text}])[:TOKENS] for text in _TEXTS]
        if all(len(ids) >= 8 and max(ids) < vocab for ids in found):
            return found, None
        why = f"{target}: the tokenizer makes too few tokens of a sentence, or some that the model does not have"
    except TokenizerError as error:
        why = error.what
    drawn = [[(7 + 31 * at + 97 * row + at * at * (row + 3)) % vocab for at in range(TOKENS)] for row in range(PROBES)]
    return drawn, f"made-up token ids were sent instead of text: {why}"


def judged(asked: Asked, target: "Target", texts: Sequence[Sequence[int]], captured: "list[Tensor]") -> Verdict:
    """Hold what was captured against the reference.

    Raises:
        Eagle3opsError: it cannot be compared.
    """
    from eagle3ops.wiring.sides import all_boundaries

    hidden, layers = target.config.hidden_size, target.config.num_layers
    references = [all_boundaries(target, ids) for ids in texts]
    normed = [target.normed(known[-1].to(target.device)).float().cpu() for known in references]
    allowed = limits(asked.dtype, target.device.type, most=asked.max_error)
    widths = {states.shape[1] for states in captured}
    if len(widths) > 1 or not widths or min(widths) < hidden or min(widths) % hidden:
        reason = (
            f"the engine hands over {', '.join(map(str, sorted(widths))) or 'no'} numbers a token, no multiple "
            f"of the target's {hidden}"
        )
        return Verdict("FAIL", reason, (), None, layers)
    held = tuple(search(captured, references, normed, allowed.unrelated))
    told = "; ".join(
        f"segment {at} holds {'nothing that is known' if one is None else one.words(layers)}"
        for at, one in enumerate(held)
    )
    if asked.trained is None:
        return Verdict("UNDECIDED", f"{told}; whether training used these is not known here", held, None, layers)
    side, cause = judge_states(f"engine {asked.engine}", asked.trained, captured, references, normed, allowed)
    if side.passed:
        worst = max((one.error for one in held if one is not None), default=0.0)
        reason = f"{told}, as in training; the largest relative error is {worst:.1e}"
        return Verdict("PASS", reason, held, None, layers)
    if cause is None or side.verdict == "UNDECIDED":
        # What is nearest is not near enough, or two are; the search knows no more.
        decides = f"; what would decide it: {side.decides}" if side.decides else ""
        return Verdict(side.verdict, f"{side.reason}{decides}", held, None, layers)
    details = f": {cause.detail}" if cause.detail else ""
    return Verdict(side.verdict, f"{cause.words}{details}; {cause.fix}", held, cause, layers)
