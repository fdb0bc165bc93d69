"""Are prompts rendered for serving as they were for the data, and does the loss fall on the answer and nothing else?

A drafter that was trained behind another template than it is served with sees prompts that it has never met. There is
no error and no wrong layer; it is only accepted less. All is compared by token ids, which is what the models read.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eagle3ops.errors import Eagle3opsError
from eagle3ops.wiring.checks import Check, counted, sample

Ids = Sequence[int]


@dataclass(frozen=True, slots=True)
class Rendering:
    """How the model's own template renders one conversation."""

    prompted: tuple[int, ...]
    """With the generation prompt: what an engine reads."""
    bare: tuple[int, ...] | None
    """Without it; None where the template does not do that."""

    @property
    def generation_prompt(self) -> tuple[int, ...]:
        """What opens the answer; empty where that is not known."""
        bare = self.bare
        if bare is None or len(bare) >= len(self.prompted) or self.prompted[: len(bare)] != bare:
            return ()
        return self.prompted[len(bare) :]


@dataclass(frozen=True, slots=True)
class Prompt:
    """One conversation as each side has it."""

    id: str
    data: tuple[int, ...]
    """Token ids with which the data was made."""
    rendering: Rendering
    """By the tokenizer and template of the folder that is served."""
    served: tuple[int, ...] | None = None
    """Token ids that the engine made of the messages; None where it does not tell."""
    served_count: int | None = None
    """How many the engine made of them."""


FAULTS = {
    "missing_bos": "put the same special tokens before every prompt on both sides: render with one chat template, and "
    "tokenise its text without adding special tokens",
    "doubled_bos": "tokenise the text of the chat template without adding special tokens: the template has its own BOS",
    "no_generation_prompt": "render with add_generation_prompt=True on both sides: it opens the assistant's turn",
    "template": "use one chat template on both sides (that of the served model's folder; --chat-template of the "
    "engine), then generate, extract and train again",
}
_WORDS = {
    "missing_bos": "{short} begins without the BOS token with which {long} begins",
    "doubled_bos": "{long} begins with two BOS tokens, {short} with one",
    "no_generation_prompt": "{short} ends without the generation prompt with which {long} ends",
}


def fault_between(one: Ids, other: Ids, bos: int | None, opening: Ids) -> tuple[str, bool] | None:
    """How two renderings of one conversation differ, in one word, and whether it is the first that lacks something.

    Args:
        bos: the tokenizer's token for a beginning; None where it has none.
        opening: the generation prompt.
    """
    one, other = tuple(one), tuple(other)
    if one == other:
        return None
    short, long = sorted((one, other), key=len)
    lacking = short == one
    if len(long) == len(short) + 1 and long[1:] == short and (bos is None or long[0] == bos):
        doubled = len(short) > 0 and long[0] == short[0]
        return ("doubled_bos" if doubled else "missing_bos"), lacking
    if opening and long == short + tuple(opening):
        return "no_generation_prompt", lacking
    return "template", lacking


def check_template(
    prompts: Sequence[Prompt],
    bos: int | None,
    decode: Callable[[Ids], str],
    *,
    engine: bool,
    name: str = "the engine",
    refused: Sequence[str] = (),
) -> Check:
    """Whether the data's prompts are what serving makes of the same messages.

    Args:
        prompts: conversations of different make, so that not all differ in the same way.
        bos: see `fault_between`.
        decode: ids -> text, special tokens shown.
        engine: compare with what the engine made of the messages; else with the served folder's template.
        name: of the engine.
        refused: conversations of the data that the served folder's template does not take.
    """
    title = "engine_template" if engine else "template"
    where = name if engine else "the served model's template"
    between: Any = ("data", "engine")
    known = [one for one in prompts if not engine or one.served is not None or one.served_count is not None]
    if not known:
        why = "no conversation could be rendered" if not engine else f"{name} does not answer chats"
        return Check(name=title, between=between, verdict="not made", reason=why)
    exact = not engine or all(one.served is not None for one in known)
    faults: list[tuple[str, bool, Prompt]] = []
    for prompt in known:
        opening = prompt.rendering.generation_prompt
        ids = prompt.served if engine else prompt.rendering.prompted
        if ids is not None:
            found = fault_between(prompt.data, ids, bos, opening)
        else:
            assert prompt.served_count is not None
            found = _by_count(prompt, bos)
        if found is not None:
            faults.append((*found, prompt))
    figures = {"conversations": len(known), "different": len(faults), "by": "ids" if exact else "counts"}
    if refused:
        figures["refused"] = len(refused)
    if refused and not faults:
        reason = (
            f"{where} does not take {len(refused)} of {counted(len(known) + len(refused), 'conversation')} of the data "
            f"({sample(refused)}), so it is not the one that the data was made with"
        )
        return Check(
            name=title, between=between, verdict="FAIL", reason=reason, kind="template", fix=FAULTS["template"],
            figures=figures,
        )  # fmt: skip
    if not faults:
        told = "tokens" if exact else "number of tokens"
        reason = f"{where} makes the same {told} of {counted(len(known), 'conversation')} as the data"
        return Check(name=title, between=between, verdict="PASS", reason=reason, figures=figures)
    (kind, lacking), count = Counter((kind, lacking) for kind, lacking, _ in faults).most_common(1)[0]
    if count < len(faults):
        # Faults of several kinds are one: another template.
        kind = "template"
    example = next(one for _, _, one in faults)
    sides = ("the data", where) if lacking else (where, "the data")
    if kind in _WORDS:
        words = _WORDS[kind].format(short=sides[0], long=sides[1])
    else:
        words = f"the data was rendered otherwise than {where} does it: {_difference(example, decode, engine=engine)}"
    told = f"{len(faults)} of {counted(len(known), 'conversation')}, such as {example.id}"
    reason = f"{words} ({told}{'' if exact else '; judged by the number of tokens alone'})"
    return Check(
        name=title, between=between, verdict="FAIL", reason=reason, kind=kind, fix=FAULTS[kind], figures=figures
    )


def _by_count(prompt: Prompt, bos: int | None) -> tuple[str, bool] | None:
    """What the number of tokens alone says; the served folder's template has been compared by ids before."""
    data, count = prompt.data, prompt.served_count
    assert count is not None
    if count == len(data):
        return None
    opening = len(prompt.rendering.generation_prompt)
    begins = bos is not None and data[:1] == (bos,)
    if count == len(data) + 1:
        return ("doubled_bos" if begins else "missing_bos"), True
    if count == len(data) - 1:
        return ("doubled_bos" if bos is not None and data[:2] == (bos, bos) else "missing_bos"), False
    if opening and abs(count - len(data)) == opening:
        return "no_generation_prompt", count > len(data)
    return "template", count > len(data)


def _difference(prompt: Prompt, decode: Callable[[Ids], str], *, engine: bool) -> str:
    """Where two renderings part, as text."""
    other = prompt.served if engine else prompt.rendering.prompted
    if other is None:
        return f"{len(prompt.data)} tokens in the data, {prompt.served_count} in the engine"
    at = next(
        (at for at, (a, b) in enumerate(zip(prompt.data, other, strict=False)) if a != b),
        min(len(prompt.data), len(other)),
    )
    around = slice(max(0, at - 2), at + 6)
    one, two = (repr(decode(list(ids[around]))) for ids in (prompt.data, other))
    return f"they part at token {at}: {one} in the data, {two} in serving"


@dataclass(frozen=True, slots=True)
class Kept:
    """One row as the shards hold it, and the answer of which it was made."""

    id: str
    prompt: int
    """Tokens of the prompt."""
    text: tuple[int, ...]
    """Prompt and answer, cut to the length of the row."""
    token_ids: tuple[int, ...]
    loss_mask: tuple[bool, ...]


NO_ROWS = "none of the answers was found in the features"


def check_tokens(rows: Sequence[Kept]) -> Check:
    """Whether the shards hold the tokens of the answers, each beside its own state."""
    between: Any = ("data", "training")
    moved: dict[int, list[str]] = {}
    for row in rows:
        if row.token_ids != row.text:
            moved.setdefault(_moved(row.token_ids, row.text), []).append(row.id)
    figures = {"rows": len(rows), "different": sum(map(len, moved.values()))}
    if not rows:
        return Check(name="tokens", between=between, verdict="not made", reason=NO_ROWS, figures=figures)
    if not moved:
        reason = f"{counted(len(rows), 'row')} of the features hold the tokens of their answers"
        return Check(name="tokens", between=between, verdict="PASS", reason=reason, figures=figures)
    shift, ids = max(moved.items(), key=lambda one: len(one[1]))
    if shift:
        which = "next" if shift > 0 else "previous"
        reason = (
            f"row t of the features holds token t {'+' if shift > 0 else '-'} 1, the {which} one: training pairs "
            "the state of row t with the token of row t + 1"
        )
        fix = "keep each token in the row of its own state: the trainer shifts them, the features do not; extract again"
        kind = "tokens_shifted"
    else:
        reason, kind = "the features hold other tokens than the answers", "other_tokens"
        fix = "extract again from these answers"
    reason += f" ({counted(len(ids), 'row')} of {len(rows)}, {sample(ids)})"
    return Check(name="tokens", between=between, verdict="FAIL", reason=reason, kind=kind, fix=fix, figures=figures)


def _moved(found: tuple[int, ...], text: tuple[int, ...]) -> int:
    """1 where row t holds token t + 1, -1 where it holds token t - 1, 0 where neither explains it."""
    if len(found) != len(text) or len(found) < 3:
        return 0
    return 1 if found[:-1] == text[1:] else -1 if found[1:] == text[:-1] else 0


_NO_SHIFT = "the mask is about the token itself: no shift belongs into it, the trainer makes its own"
_MASKS = {
    "mask_empty": (
        "the loss falls on no token at all",
        "mark the tokens of the answer; a template that does not match the data finds none",
    ),
    "mask_covers_prompt": (
        "the loss falls on the prompt too",
        "mark the tokens of the answer only: what the user wrote is nothing that the drafter has to propose",
    ),
    "mask_early": ("the loss begins one token before the answer and misses its last", _NO_SHIFT),
    "mask_late": ("the loss misses the first token of the answer", _NO_SHIFT),
    "mask_other": ("the loss falls on other tokens than the answer's", "extract again from these answers"),
}


def check_mask(rows: Sequence[Kept]) -> Check:
    """Whether the loss falls on each token of the answer, and on none of the prompt."""
    between: Any = ("data", "training")
    wrong: dict[str, list[str]] = {}
    compared = trained = total = 0
    for row in rows:
        right = tuple(at >= row.prompt for at in range(len(row.text)))
        total, trained = total + len(right), trained + sum(row.loss_mask)
        if not any(right):
            # The prompt alone fills the row.
            if any(row.loss_mask):
                wrong.setdefault("mask_covers_prompt", []).append(row.id)
            continue
        compared += 1
        if row.loss_mask != right:
            wrong.setdefault(_mask_fault(row.loss_mask, right, row.prompt), []).append(row.id)
    share = trained / total if total else 0.0
    figures = {"rows": compared, "different": sum(map(len, wrong.values())), "trained_share": share}
    if not wrong and not compared:
        why = "no row of the features reaches into its answer" if rows else NO_ROWS
        return Check(name="loss_mask", between=between, verdict="not made", reason=why, figures=figures)
    if not wrong:
        reason = (
            f"the loss falls on the answer and nothing else, {share:.0%} of the tokens of {counted(compared, 'row')}"
        )
        return Check(name="loss_mask", between=between, verdict="PASS", reason=reason, figures=figures)
    kind, ids = max(wrong.items(), key=lambda one: len(one[1]))
    words, fix = _MASKS[kind]
    reason = f"{words} ({counted(len(ids), 'row')} of {len(rows)}, {sample(ids)})"
    return Check(name="loss_mask", between=between, verdict="FAIL", reason=reason, kind=kind, fix=fix, figures=figures)


def _mask_fault(mask: Sequence[bool], right: Sequence[bool], prompt: int) -> str:
    if not any(mask):
        return "mask_empty"
    if len(mask) == len(right) and len(mask) > 1:
        if tuple(mask[:-1]) == tuple(right[1:]):
            return "mask_early" if prompt and not mask[0] else "mask_covers_prompt"
        if tuple(mask[1:]) == tuple(right[:-1]):
            return "mask_late"
    return "mask_covers_prompt" if any(mask[:prompt]) else "mask_other"


def chat_prompt(raw: object) -> tuple[tuple[int, ...] | None, int]:
    """Of an answer of `/v1/chat/completions`: the prompt's token ids, where it has them, and how many they were.

    Raises:
        Eagle3opsError: it does not say how many.
    """
    try:
        if not isinstance(raw, Mapping):
            raise TypeError(f"an object was expected, not {type(raw).__name__}")
        count = raw["usage"]["prompt_tokens"]
        if type(count) is not int or count < 0:
            raise TypeError(f"prompt_tokens is {count!r}")
        choices = raw.get("choices")
        first = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], Mapping) else {}
        # SGLang tells them with the choice, vLLM beside the choices.
        ids = first.get("prompt_token_ids") or raw.get("prompt_token_ids")
    except (KeyError, TypeError, AttributeError) as error:
        raise Eagle3opsError(
            f"the engine's answer to a chat does not say how long its prompt was: {type(error).__name__}: {error}"
        ) from error
    if isinstance(ids, list) and len(ids) == count and all(type(one) is int for one in ids):
        return tuple(ids), count
    return None, count
