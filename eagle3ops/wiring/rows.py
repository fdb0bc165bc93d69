"""What did a run leave and what was its engine asked, and do both render, keep and mask the same conversations?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle3ops.answers import AnswerRow
from eagle3ops.errors import Eagle3opsError
from eagle3ops.wiring.checks import Check
from eagle3ops.wiring.data import Kept, Prompt, Rendering, check_mask, check_template, check_tokens

if TYPE_CHECKING:
    from torch import Tensor

    from eagle3ops.engines.tokenizer import ChatTokenizer
    from eagle3ops.features import FeatureRow, StoredRow

    Kind = FeatureRow | StoredRow

TRAIN_ROWS = 64
"""Training rows whose tokens, mask and template are compared; of the held-out ones all are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What the running engine was asked."""

    name: str
    texts: Sequence[Sequence[int]]
    """Token ids of each probe."""
    states: "Sequence[Tensor]"
    """Of each probe `[T, A * H]`."""
    chats: Mapping[str, tuple[tuple[int, ...] | None, int]]
    """By row: the prompt that the engine made of its messages, where it tells, and how long it was."""
    chat_words: str = ""
    """Why there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What the run's stages left."""

    target: Path
    features: Path
    """With `heldout/`, and `train/` where they are all kept."""
    drafter: Path
    answers: Sequence[AnswerRow]
    """Held-out rows, and some of training."""
    messages: Mapping[str, Sequence[Mapping[str, Any]]]
    """By row, as they were rendered: with the system message of the pipeline."""
    temperature: float = 0.0


def data_checks(
    stored: Stored, served: Served, kept: "Mapping[str, Kind]", tokenizer: "ChatTokenizer | None"
) -> list[Check]:
    """Template, tokens, loss mask."""
    found: list[Check] = []
    if tokenizer is None:
        why = "the served model's folder has no tokenizer that can be loaded"
        found.append(Check(name="template", between=("data", "engine"), verdict="not made", reason=why))
    else:
        told = [row for row in stored.answers if stored.messages.get(row.id)]
        known = {row.id: _prompt(row, stored, served, tokenizer) for row in told}
        prompts = [one for one in known.values() if one is not None]
        refused = [name for name, one in known.items() if one is None]
        decode = _decoder(tokenizer)
        found.append(check_template(prompts, tokenizer.bos_id, decode, engine=False, refused=refused))
        if served.chats:
            rendered = check_template(prompts, tokenizer.bos_id, decode, engine=True, name=served.name)
            if served.chat_words:
                rendered = replace(rendered, reason=f"{rendered.reason}; it did not answer all: {served.chat_words}")
            found.append(rendered)
        else:
            why = served.chat_words or f"{served.name} was not asked"
            found.append(Check(name="engine_template", between=("data", "engine"), verdict="not made", reason=why))
    rows = [_kept(row, kept[row.id]) for row in stored.answers if row.id in kept]
    return [*found, check_tokens(rows), check_mask(rows)]


def without_training(answers: Sequence[AnswerRow], kept: "Mapping[str, Kind]", *, there: bool) -> str:
    """Why no training row's tokens and mask were compared; empty where some were, or there is none."""
    if not there:
        return "none is kept, as they were trained while they were extracted: held-out rows alone were compared"
    rows = [row.id for row in answers if row.split == "train"]
    if not rows or any(name in kept for name in rows):
        return ""
    return f"of the first {len(rows)} training answers none is among the first {TRAIN_ROWS} rows of the features"


def _prompt(row: AnswerRow, stored: Stored, served: Served, tokenizer: "ChatTokenizer") -> Prompt | None:
    """One conversation as both sides have it; None where the template does not take its messages."""
    messages = stored.messages.get(row.id, ())
    try:
        prompted = tuple(tokenizer.encode_chat(messages))
    except Eagle3opsError:
        return None
    try:
        bare: tuple[int, ...] | None = tuple(tokenizer.encode_chat(messages, add_generation_prompt=False))
    except Eagle3opsError:
        bare = None
    ids, count = served.chats.get(row.id, (None, None))
    return Prompt(row.id, tuple(row.prompt_ids), Rendering(prompted, bare), ids, count)


def _decoder(tokenizer: "ChatTokenizer") -> Any:
    return lambda ids: tokenizer.decode(ids, skip_special_tokens=False)


def _kept(row: AnswerRow, found: "Kind") -> Kept:
    length = int(found.token_ids.numel())
    return Kept(
        row.id,
        len(row.prompt_ids),
        tuple((row.prompt_ids + row.output_ids)[:length]),
        tuple(found.token_ids.tolist()),
        tuple(found.loss_mask.tolist()),
    )
