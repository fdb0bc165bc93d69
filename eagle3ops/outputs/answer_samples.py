"""What did the target answer in one row? Looked up in `answers.jsonl` by place, without reading the rest again."""

import re
from array import array
from functools import lru_cache
from pathlib import Path

from pydantic import ValidationError

from eagle3ops.answers import AnswerRow
from eagle3ops.errors import Eagle3opsError
from eagle3ops.outputs.shard_samples import Sample, Survey

ANSWERS = "answers.jsonl"
SURVEY_ROWS = 4000
"""Rows that a survey of a split parses at most."""
_FRONT = re.compile(rb'\{"id":("(?:[^"\\]|\\.)*"),"split":"(train|heldout)"')


class AnswerSamples:
    """The rows of one split, as generate left them."""

    def __init__(self, path: Path, split: str, max_tokens: int | None) -> None:
        """Find where every row begins.

        Args:
            max_tokens: where extract cuts rows; None when that is not known.

        Raises:
            Eagle3opsError: the file cannot be read.
        """
        try:
            about = path.stat()
            places = _places(path, about.st_size, about.st_mtime_ns)
        except OSError as error:
            raise Eagle3opsError(
                f"{path.name} cannot be read: {error.strerror}", remedy="run the generate job"
            ) from error
        self.mark = (path, split, about.st_size, about.st_mtime_ns, max_tokens)
        """Another one means that the split has changed."""
        self._path = path
        self._places = places[split]
        self._max_tokens = max_tokens
        self.rows = len(self._places)

    def answer(self, index: int) -> AnswerRow:
        """Row `index`, from 0.

        Raises:
            Eagle3opsError: it is not an answer.
        """
        try:
            with self._path.open("rb") as file:
                file.seek(self._places[index])
                return AnswerRow.model_validate_json(file.readline())
        except (OSError, ValidationError) as error:
            raise Eagle3opsError(
                f"{self._path.name}: row {index + 1} is not an answer", remedy="remove the file and run generate again"
            ) from error

    def named(self, name: str, near: int, within: int) -> AnswerRow | None:
        """The row of that id: looked for at `near` and the next `within` rows first, then everywhere."""
        for index in [*range(near, min(self.rows, near + within + 1)), *range(self.rows)]:
            try:
                if (found := self.answer(index)).id == name:
                    return found
            except Eagle3opsError:
                continue
        return None

    def row(self, index: int) -> Sample:
        """Row `index` as extract will store it: the answer is trained on, the prompt is not.

        Raises:
            Eagle3opsError: it is not an answer.
        """
        found = self.answer(index)
        ids = (found.prompt_ids + found.output_ids)[: self._max_tokens]
        return Sample(found.id, ids, [at >= len(found.prompt_ids) for at in range(len(ids))])

    def find(self, text: str, after: int) -> int | None:
        """The next row whose id holds `text`, in small letters or capitals; after the last row from the front."""
        wanted = text.lower()
        index: int
        for index in [*range(after + 1, self.rows), *range(min(after + 1, self.rows))]:
            try:
                if wanted in self.answer(index).id.lower():
                    return index
            except Eagle3opsError:
                continue
        return None

    def survey(self) -> Survey:
        """Mask density over the split; of large ones, over rows at even distances."""
        found = Survey()
        for index in range(0, self.rows, max(1, -(-self.rows // SURVEY_ROWS))):
            try:
                mask = self.row(index).mask
            except Eagle3opsError:
                continue
            found.add(len(mask), sum(mask))
        return found


@lru_cache(maxsize=2)
def _places(path: Path, size: int, mtime_ns: int) -> "dict[str, array[int]]":
    """Where the rows of each split begin, in bytes. Size and time are there to tell a new file."""
    found: dict[str, array[int]] = {"train": array("Q"), "heldout": array("Q")}
    at = 0
    with path.open("rb") as lines:
        for line in lines:
            if front := _FRONT.match(line):
                found[front[2].decode()].append(at)
            at += len(line)
    return found
