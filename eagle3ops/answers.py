"""What did the target answer? The rows that generate writes and extract, verify and bench read.

`answers.jsonl` keeps the token ids of prompt and answer as the engine used them, so nothing is ever re-tokenised: text
that is tokenised again can split differently, and then the drafter would learn tokens that the target never produced.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, ValidationError

from eagle3ops.errors import Eagle3opsError
from eagle3ops.runs.files import write_atomic

Split = Literal["train", "heldout"]


class AnswerRow(BaseModel):
    """One prompt with the target's answer to it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    split: Split
    messages: list[dict[str, Any]]
    prompt_ids: list[NonNegativeInt] = Field(min_length=1)
    output_ids: list[NonNegativeInt]
    """The stop token is part of it where there was one."""
    finish_reason: str
    thinking_tokens: NonNegativeInt = 0


def read_answers(path: Path) -> list[AnswerRow]:
    """Read `answers.jsonl`.

    Raises:
        Eagle3opsError: the file is missing, empty, or a line is not a row; the line is named.
    """
    rows = list(iter_answers(path))
    if not rows:
        raise Eagle3opsError(f"{path}: holds no answers", remedy="see quarantine.jsonl beside it for the reasons")
    return rows


def iter_answers(path: Path) -> Iterator[AnswerRow]:
    """The rows of `answers.jsonl` one by one, where not all of them need to be in memory.

    Raises:
        Eagle3opsError: the file is missing, or a line is not a row; the line is named.
    """
    try:
        yield from _rows(path)
    except OSError as error:
        raise Eagle3opsError(f"{path}: cannot be read: {error.strerror}", remedy="run the generate job") from error


def _rows(path: Path) -> Iterator[AnswerRow]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                yield AnswerRow.model_validate_json(line)
            except ValidationError as error:
                problem = error.errors()[0]
                where = ".".join(str(part) for part in problem["loc"])
                raise Eagle3opsError(
                    f"{path}:{number}: not an answer: {where + ': ' if where else ''}{problem['msg']}",
                    remedy="the file was changed or torn; remove it and run the generate job again",
                ) from error


class UnitJournal:
    """Answers in units, each a file that appears whole or not at all, so that a kill redoes at most one unit."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        for torn in folder.glob(".*.tmp"):
            torn.unlink()

    def _path(self, unit: int) -> Path:
        return self._folder / f"{unit:06d}.jsonl"

    def done(self, unit: int) -> bool:
        """The unit was written whole."""
        return self._path(unit).exists()

    def write(self, unit: int, rows: Sequence[AnswerRow], quarantined: Sequence[dict[str, Any]]) -> None:
        """Keep a finished unit: answers, and the rows that failed with their reasons."""
        lines = [row.model_dump_json() for row in rows] + [json.dumps({"quarantined": q}) for q in quarantined]
        write_atomic(self._path(unit), "".join(f"{line}\n" for line in lines))

    def read(self, unit: int) -> tuple[list[AnswerRow], list[dict[str, Any]]]:
        """Answers and quarantined rows of one unit."""
        rows, quarantined = [], []
        for line in self._path(unit).read_text(encoding="utf-8").splitlines():
            data = json.loads(line)
            if "quarantined" in data:
                quarantined.append(data["quarantined"])
            else:
                rows.append(AnswerRow.model_validate(data))
        return rows, quarantined


def write_jsonl(path: Path, items: Iterable[AnswerRow | dict[str, Any]]) -> None:
    """Write one JSON object a line, atomically."""
    texts = (item.model_dump_json() if isinstance(item, AnswerRow) else json.dumps(item) for item in items)
    write_atomic(path, "".join(f"{text}\n" for text in texts))


def distinct_bigrams(outputs: Iterable[Sequence[int]]) -> float:
    """Distinct token pairs over all token pairs: near 0 means degenerate, looping text, which flatters drafters."""
    pairs: list[tuple[int, int]] = []
    for ids in outputs:
        pairs.extend(pairwise(ids))
    return len(set(pairs)) / len(pairs) if pairs else 0.0
