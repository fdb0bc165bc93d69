"""Do the hidden states fit their quota, and if not, how do extract and train take turns?

The survey is made of the answers alone (lengths, token ids), so every process that takes part comes to the same plan.
"""

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle3ops.answers import AnswerRow, iter_answers
from eagle3ops.eagle3.space import FOLDER_BYTES, SHARD_BYTES, bytes_per_token, row_bytes, split_bytes
from eagle3ops.errors import Eagle3opsError, RequestError
from eagle3ops.runs.files import read_json
from eagle3ops.runs.job import PlanContext
from eagle3ops.words import human_bytes

if TYPE_CHECKING:
    from eagle3ops.eagle3.train_config import TrainConfig
    from eagle3ops.eagle3.training_turns import Text
    from eagle3ops.eagle3.turns import Turn
    from eagle3ops.jobs.extract.spec import ExtractSpec

QUOTA_FILE = "quota.json"
"""In extract's output where the training rows do not fit: what was decided, and on which figures."""

QUOTA_KEY = "stages.extract.quota"

SHARED_MEMORY = Path("/dev/shm")
"""Where hidden states lie that are not to be on the disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Upper bounds in bytes.

    Attributes:
        heldout: of the held-out split; train: of the training split, were it whole on disk.
        tokens: of all rows, cut at `max_tokens`.
    """

    heldout: int
    train: int
    tokens: int

    @property
    def total(self) -> int:
        """Of both splits."""
        return self.heldout + self.train


def numbered_id(index: int, row_id: str) -> str:
    """Id of a row in a turn's shards: ids of answers need not be unique, places are."""
    return f"{index}:{row_id}"


def place_of(numbered: str) -> int:
    """The index in a `numbered_id`."""
    return int(numbered.partition(":")[0])


def row_tokens(row: AnswerRow, spec: "ExtractSpec") -> list[int]:
    """The token ids of a row whose states are kept."""
    return (row.prompt_ids + row.output_ids)[: spec.max_tokens]


def trained_rows(path: Path, spec: "ExtractSpec") -> Iterator[tuple[int, AnswerRow]]:
    """Index and row of every training row that trains something, in the order of the answers."""
    index = 0
    for row in iter_answers(path):
        # The first two tokens are never predicted, and a row may be cut before its answer begins.
        if row.split == "train" and len(row_tokens(row, spec)) > max(2, len(row.prompt_ids)):
            yield index, row
            index += 1


def per_token(spec: "ExtractSpec", hidden_size: int) -> int:
    """Bytes of one token on disk."""
    layers = 3 if spec.aux_layers is None else len(spec.aux_layers.ids)
    width, scale = {"bfloat16": (2, 0), "float32": (4, 0), "fp8": (1, 4)}[spec.dtype]
    return bytes_per_token(hidden_size, layers, width, scale)


def measure(path: Path, spec: "ExtractSpec", hidden_size: int) -> Sizes:
    """What the hidden states of all answers would take."""
    width = per_token(spec, hidden_size)
    sizes: dict[str, list[int]] = {"heldout": [], "train": []}
    tokens = 0
    for number, row in enumerate(iter_answers(path)):
        length = len(row_tokens(row, spec))
        sizes[row.split].append(row_bytes(length, numbered_id(number, row.id), width))
        tokens += length
    split = {name: split_bytes(rows, spec.rows_per_shard) for name, rows in sizes.items()}
    return Sizes(heldout=split["heldout"], train=split["train"], tokens=tokens)


def heldout_bytes(extracted: Path) -> int:
    """Upper bound of the held-out split, as extract put it down.

    Raises:
        Eagle3opsError: the file is damaged.
    """
    found = read_json(extracted / QUOTA_FILE) or {}
    if not isinstance(size := found.get("heldout_bytes"), int):
        raise Eagle3opsError(f"{extracted / QUOTA_FILE}: is damaged", remedy="run the extract job again")
    return size


@dataclass(frozen=True, slots=True, eq=False)
class Survey:
    """All that is known before the first turn."""

    text: "Text"
    turns: "list[Turn]"


def survey(
    path: Path, spec: "ExtractSpec", config: "TrainConfig", *, hidden_size: int, vocab_size: int, heldout: int
) -> Survey:
    """Plan the turns.

    Args:
        path: of `answers.jsonl`.
        spec: with a quota.
        heldout: upper bound of the held-out split's bytes, which stay.

    Raises:
        RequestError: the quota is too small for the rows of one step; the smallest that works is named.
        Eagle3opsError: the answers cannot be read, or are of another target.
    """
    from eagle3ops.eagle3.training_turns import TextBuilder
    from eagle3ops.eagle3.turns import Space, TooSmall, plan_turns

    assert spec.quota is not None
    builder = TextBuilder(vocab_size, config.ttt_steps)
    width, sizes = per_token(spec, hidden_size), []
    for index, row in trained_rows(path, spec):
        ids = row_tokens(row, spec)
        builder.add(ids, len(row.prompt_ids))
        sizes.append(row_bytes(len(ids), numbered_id(index, row.id), width))
    text = builder.text()
    if not sizes:
        raise RequestError(
            "no training row holds a token that the target wrote within max_tokens: there is nothing to train on",
            remedy="raise stages.extract.max_tokens",
        )
    space = Space(
        capacity=spec.quota - heldout - FOLDER_BYTES,
        rows=sizes,
        shard=SHARD_BYTES,
        rows_per_shard=spec.rows_per_shard,
    )
    try:
        return Survey(text, plan_turns(text.lengths, space, config))
    except TooSmall as error:
        raise too_small(spec.quota, heldout, error.needed + FOLDER_BYTES) from error


def check_memory(needed: int, place: Path = SHARED_MEMORY) -> None:
    """Raise RequestError unless so many bytes of shared memory are free."""
    try:
        free = shutil.disk_usage(place).free
    except OSError as error:
        raise RequestError(f"stages.extract.place: memory: {place}: {error.strerror}", remedy="say disk") from error
    if free < needed:
        raise RequestError(
            f"stages.extract.quota: {human_bytes(needed)} of shared memory are wanted, {human_bytes(free)} are free in "
            f"{place}",
            remedy="lower the quota, or give the container more (--shm-size)",
        )


def too_small(quota: int, heldout: int, step: int) -> RequestError:
    """The error for a quota in which not even one step can be trained."""
    needed = heldout + step
    return RequestError(
        f"{QUOTA_KEY}: {human_bytes(quota)} ({quota} bytes) are too small: the held-out rows stay on disk with "
        f"{human_bytes(heldout)}, and the rows of the largest training step take {human_bytes(step)}",
        remedy=f"the smallest quota that works is {needed} bytes ({human_bytes(needed)}); a lower "
        "stages.train.tokens_per_step, stages.extract.max_tokens or stages.generate.heldout needs less",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What a plan can say before the answers are read, None where it is not known yet.

    Attributes:
        heldout, train: bytes of the splits.
        epochs: of training; turns: about so many an epoch, 0 where everything fits.
        prefilled: tokens that the target reads in all, over all epochs.
    """

    heldout: int
    train: int
    epochs: int
    turns: int
    prefilled: int

    @property
    def disk(self) -> int:
        """Of both splits, were they whole."""
        return self.heldout + self.train


def outlook(ctx: PlanContext, spec: "ExtractSpec", tokens: int | None) -> Outlook | None:
    """Forecast of the turns; None as long as tokens or hidden size are unknown, or where there is no quota.

    Raises:
        RequestError: the answers are there and the quota is too small for them.
    """
    hidden = ctx.target_hidden_size()
    if spec.quota is None or tokens is None or hidden is None:
        return None
    train, generate = ctx.pipeline.stages["train"].model_dump(), ctx.pipeline.stages["generate"].model_dump()
    splits = _splits(ctx)
    if splits is not None:
        heldout_tokens, longest = splits["heldout"]["tokens"], splits["train"]["longest"]
    else:
        heldout_tokens = tokens * generate["heldout"] // (generate["heldout"] + generate["train"])
        longest = 0
    width = per_token(spec, hidden)
    heldout, rest = heldout_tokens * width, (tokens - heldout_tokens) * width
    step = max(int(train["tokens_per_step"]), min(longest, spec.max_tokens)) * width
    # A step is filled up to `tokens_per_step`, but a corpus may be smaller than one step.
    step = min(step, rest)
    epochs = int(train["epochs"])
    in_memory = spec.place == "memory"
    if heldout + rest <= spec.quota and not in_memory:
        return Outlook(heldout=heldout, train=rest, epochs=epochs, turns=0, prefilled=tokens)
    if splits is not None and spec.quota < heldout + min(longest, spec.max_tokens) * width:
        raise too_small(spec.quota, _generous(heldout), _generous(step))
    # In memory all of them may fit in one part; it then serves every epoch.
    turns = 1 if heldout + rest <= spec.quota else -(-rest // max(1, spec.quota - heldout - step // 2))
    return Outlook(
        heldout=heldout,
        train=rest,
        epochs=epochs,
        turns=turns,
        prefilled=heldout_tokens + (tokens - heldout_tokens) * (epochs if turns > 1 else 1),
    )


def _generous(size: int) -> int:
    """With room for what a plan does not know: ids and headers."""
    return size + size // 20 + (64 << 10)


def _splits(ctx: PlanContext) -> dict[str, Any] | None:
    """What generate counted, once it is done."""
    if "generate" not in ctx.inputs:
        return None
    summary = json.loads((ctx.inputs["generate"] / "summary.json").read_text(encoding="utf-8"))
    splits: dict[str, Any] = summary["splits"]
    return splits
