"""What exactly is the drafter taught? One sample token by token, with what is trained on and what is masked."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle3ops.answers import AnswerRow
from eagle3ops.errors import Eagle3opsError, RequestError
from eagle3ops.outputs.answer_samples import ANSWERS, AnswerSamples
from eagle3ops.outputs.shard_samples import Sample, ShardSamples, Survey, draft_vocabulary
from eagle3ops.outputs.stages import setting, spec_of, stage_output
from eagle3ops.outputs.token_text import TokenTable, table_of
from eagle3ops.runs.directory import RunDirectory, find_run
from eagle3ops.targets.info import TargetInfo, read_target_info

if TYPE_CHECKING:
    from numpy.typing import NDArray

SPLITS = ("train", "heldout")
WINDOW = 4096
"""Tokens of a sample that are sent at once."""
PIECE = 400
"""Characters of a single token that are sent; a garbled vocabulary may hold longer ones."""

KEPT = 4
_SURVEYED: "dict[object, tuple[Survey, NDArray[Any] | None]]" = {}

Part = str | int
Spans = list[tuple[int, int]]


def tokens_of(
    root: Path, run: str, *, split: str = "train", row: int = 0, find: str | None = None, first: int = 0
) -> dict[str, Any]:
    """One sample of a run's training data.

    Args:
        row: counted from 0; beyond the last one, the last.
        find: the next row after `row` whose id holds this text.
        first: the first token that is told, for samples of more than 4096.

    Raises:
        RequestError: there is no such run or split.
    """
    if split not in SPLITS:
        raise RequestError(f"runs.tokens: split is {' or '.join(SPLITS)}, not {split[:60]!a}")
    if row < 0 or first < 0:
        raise RequestError("runs.tokens: row and first are counted from 0")
    found = find_run(root, run)
    spec = spec_of(found)
    source, samples, words = _samples(found, split, spec)
    answer: dict[str, Any] = {
        "run": found.run_id,
        "split": split,
        "source": source,
        "words": words,
        "rows": samples.rows if samples else 0,
        "row": None,
        "found": None,
        "sample": None,
        "density": None,
        "vocabulary": None,
        "tokenizer": "",
    }
    if samples is None or not samples.rows:
        return answer
    target, target_words = _target(found)
    vocabulary, answer["vocabulary"] = _vocabulary(found, target)
    row = min(row, samples.rows - 1)
    if find is not None:
        place = samples.find(find, row)
        answer["found"] = place is not None
        row = row if place is None else place
    answer["row"] = row
    table = table_of(target.path) if target else TokenTable({}, target_words)
    answer["density"] = _density(samples, vocabulary, table)
    answer["tokenizer"] = table.words
    try:
        sample = samples.row(row)
    except Eagle3opsError as error:
        return answer | {"words": error.what + (f"; {error.remedy}" if error.remedy else "")}
    told = _answer_of(found, split, sample, row, samples)
    marks = [setting(spec, "stages", "generate", name) for name in ("think_open", "think_close")]
    think = tuple(mark if isinstance(mark, str) and mark else usual for mark, usual in zip(marks, _THINK, strict=True))
    return answer | {"sample": describe(sample, told, table, vocabulary, think, first)}


_THINK = ("<think>", "</think>")


def describe(
    sample: Sample,
    told: AnswerRow | None,
    table: TokenTable,
    vocabulary: "NDArray[Any] | None",
    think: Sequence[str] = _THINK,
    first: int = 0,
) -> dict[str, Any]:
    """A sample as `runs.tokens` tells it: counts over the whole of it, texts and marks for a window from `first`."""
    total = len(sample.ids)
    first = min(first, max(0, total - 1))
    window = range(first, min(total, first + WINDOW))
    missed = _missed(sample, vocabulary)
    start = len(told.prompt_ids) if told is not None else (sample.mask.index(True) if True in sample.mask else total)
    thinking = [(a + start, b + start) for a, b in thinking_spans(sample.ids[start:], table, think)]
    whole = None if told is None else len(told.prompt_ids) + len(told.output_ids)
    return {
        "id": sample.id[:PIECE],
        "total": total,
        "first": first,
        "ids": [sample.ids[at] for at in window],
        "texts": [parts_of(table.tokens[k].data) if (k := sample.ids[at]) in table.tokens else None for at in window],
        "special": [at for at in window if (token := table.tokens.get(sample.ids[at])) and token.special],
        "trained": _clipped(spans(sample.mask), window),
        "thinking": _clipped(thinking, window),
        "missed": [at for at in missed or () if at in window],
        "prompt_tokens": start,
        "trained_tokens": sum(sample.mask),
        "missed_tokens": None if missed is None else len(missed),
        "thinking_tokens": sum(b - a for a, b in thinking),
        "finish_reason": None if told is None else told.finish_reason[:PIECE],
        "whole": whole,
    }


def spans(mask: Sequence[bool]) -> Spans:
    """Where a mask is set, as first position and the one behind the last."""
    found: Spans = []
    for at, value in enumerate(mask):
        if value and found and found[-1][1] == at:
            found[-1] = (found[-1][0], at + 1)
        elif value:
            found.append((at, at + 1))
    return found


def _clipped(found: Spans, window: range) -> Spans:
    return [(max(a, window.start), min(b, window.stop)) for a, b in found if a < window.stop and b > window.start]


def parts_of(data: bytes) -> str | list[Part]:
    """The text of a token; where its bytes are no characters by themselves, texts and bytes in turn."""
    try:
        return data.decode()[:PIECE]
    except UnicodeDecodeError:
        parts: list[Part] = []
        for character in data[:PIECE].decode(errors="surrogateescape"):
            if 0xDC80 <= ord(character) <= 0xDCFF:
                parts.append(ord(character) - 0xDC00)
            elif parts and isinstance(parts[-1], str):
                parts[-1] += character
            else:
                parts.append(character)
        return parts


def thinking_spans(ids: Sequence[int], table: TokenTable, think: Sequence[str] = _THINK) -> Spans:
    """Where an answer thinks, the marks included: by the marks' tokens, or their text where they are several.

    A closing mark without an opening one ends what the prompt has opened; an open span runs to the end.
    """
    opening, closing = table.ids_of(*think)
    if opening is not None and closing is not None:
        begins, ends = ([(at, at) for at, k in enumerate(ids) if k == mark] for mark in (opening, closing))
    else:
        begins, ends = (_places_of(mark, ids, table) for mark in think)
    found: Spans = []
    inside: int | None = None
    events = sorted([(*place, 0) for place in begins] + [(*place, 1) for place in ends])
    for first, last, kind in events:
        if kind == 0:
            inside = first if inside is None else inside
        elif inside is not None:
            found.append((inside, last + 1))
            inside = None
        elif not found:
            found.append((0, last + 1))
    if inside is not None:
        found.append((inside, len(ids)))
    return found


def _places_of(mark: str, ids: Sequence[int], table: TokenTable) -> Spans:
    """The tokens that a text begins and ends in, each time it occurs."""
    starts: list[int] = []
    owners = bytearray()
    for k in ids:
        starts.append(len(owners))
        owners += table.tokens[k].data if k in table.tokens else b"\0"
    wanted, data = mark.encode(errors="replace"), bytes(owners)
    found: Spans = []
    at = data.find(wanted)
    while at >= 0:
        found.append((bisect_right(starts, at) - 1, bisect_right(starts, at + len(wanted) - 1) - 1))
        at = data.find(wanted, at + len(wanted))
    return found


def _missed(sample: Sample, vocabulary: "NDArray[Any] | None") -> list[int] | None:
    if vocabulary is None:
        return None
    size = vocabulary.shape[0]
    return [
        at
        for at, (k, trained) in enumerate(zip(sample.ids, sample.mask, strict=True))
        if trained and not (0 <= k < size and vocabulary[k])
    ]


def _samples(
    run: RunDirectory, split: str, spec: dict[str, Any]
) -> tuple[str | None, ShardSamples | AnswerSamples | None, str]:
    """Where the samples of a split come from, and why it is not the features."""
    extracted = stage_output(run, "extract")
    words = extracted.words
    if extracted.folder is not None:
        try:
            shards = ShardSamples(extracted.folder / split)
            if shards.rows:
                return "features", shards, words
        except Eagle3opsError as error:
            words = words or error.what
    generated = stage_output(run, "generate")
    if generated.folder is None:
        return None, None, generated.words
    longest = setting(spec, "stages", "extract", "max_tokens")
    try:
        answers = AnswerSamples(generated.folder / ANSWERS, split, longest if type(longest) is int else None)
    except Eagle3opsError as error:
        return None, None, generated.words or error.what
    return "answers", answers, words


def _target(run: RunDirectory) -> tuple[TargetInfo | None, str]:
    fetched = stage_output(run, "fetch")
    if fetched.folder is None:
        return None, fetched.words
    try:
        return read_target_info(fetched.folder), ""
    except Eagle3opsError as error:
        return None, error.what


def _vocabulary(run: RunDirectory, target: TargetInfo | None) -> tuple["NDArray[Any] | None", dict[str, Any]]:
    trained = stage_output(run, "train")
    told: dict[str, Any] = {"draft": None, "target": target.vocab_size if target else None, "words": trained.words}
    if trained.folder is None or target is None or not (trained.folder / "drafter" / "model.safetensors").exists():
        return None, told | {"words": trained.words or "the drafter's weights are not there"}
    try:
        path = trained.folder / "drafter"
        about = (path / "model.safetensors").stat()
        known = _known_vocabulary(path, target.vocab_size, about.st_size, about.st_mtime_ns)
    except (OSError, Eagle3opsError) as error:
        return None, told | {"words": error.what if isinstance(error, Eagle3opsError) else str(error)}
    return known, told | {"draft": int(known.sum()), "words": ""}


@lru_cache(maxsize=2)
def _known_vocabulary(drafter: Path, vocab_size: int, size: int, mtime_ns: int) -> "NDArray[Any]":
    return draft_vocabulary(drafter, vocab_size)


def _density(
    samples: ShardSamples | AnswerSamples, vocabulary: "NDArray[Any] | None", table: TokenTable
) -> dict[str, Any]:
    """Kept for the next sample: a survey of a large split reads some ten MiB."""
    of = (samples.mark, None if vocabulary is None else (id(vocabulary), vocabulary.shape[0]))
    if of not in _SURVEYED:
        found = samples.survey() if isinstance(samples, AnswerSamples) else samples.survey(vocabulary)
        while len(_SURVEYED) >= KEPT:
            _SURVEYED.pop(next(iter(_SURVEYED)), None)
        # The vocabulary is kept too, so that no other one gets its place in memory.
        _SURVEYED[of] = found, vocabulary
    found = _SURVEYED[of][0]
    most = [[k, count, parts_of(table.tokens[k].data) if k in table.tokens else None] for k, count in found.missed_most]
    return asdict(found) | {"of_rows": samples.rows, "missed_most": most}


def _answer_of(
    run: RunDirectory, split: str, sample: Sample, row: int, samples: ShardSamples | AnswerSamples
) -> AnswerRow | None:
    """The answer that a stored row was made from; None where it is not to be found."""
    try:
        if isinstance(samples, AnswerSamples):
            return samples.answer(row)
        generated = stage_output(run, "generate")
        if generated.folder is None:
            return None
        answers = AnswerSamples(generated.folder / ANSWERS, split, None)
    except Eagle3opsError:
        return None
    found = answers.named(sample.id, row, samples.dropped)
    if found is None or (found.prompt_ids + found.output_ids)[: len(sample.ids)] != sample.ids:
        # Made from other answers: nothing that stands there is true of it.
        return None
    return found
