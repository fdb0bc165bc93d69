"""Which tokens of a stored row are trained on? Read from the feature shards themselves, without their hidden states."""

import json
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle3ops.errors import Eagle3opsError
from eagle3ops.features.format import HEADER, MANIFEST, FeatureHeader, ShardRecord, parse_manifest

if TYPE_CHECKING:
    from numpy.typing import NDArray

BINS = 20
"""Of the histogram of mask density."""
MISSED_MOST = 16
"""Tokens that are named among those that the draft vocabulary lacks."""
SURVEY_TOKENS = 8_000_000
"""Tokens that a survey of a split reads at most; 5 bytes each."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One row: its tokens and which of them are trained on."""

    id: str
    ids: list[int]
    mask: list[bool]


@dataclass(slots=True)
class Survey:
    """How densely the rows of a split are trained on."""

    rows: int = 0
    tokens: int = 0
    trained: int = 0
    missed: int | None = None
    """Trained tokens that the draft vocabulary lacks; None where it is not known."""
    empty: int = 0
    """Rows that train nothing."""
    full: int = 0
    """Rows without a masked token."""
    missed_most: list[tuple[int, int]] = field(default_factory=list)
    """Ids of the tokens that are missed most, with how often."""
    bins: list[int] = field(default_factory=lambda: [0] * BINS)
    """Rows by their share of trained tokens, from 0 to 1."""

    def add(self, tokens: int, trained: int) -> None:
        """Count one row."""
        self.rows += 1
        self.tokens += tokens
        self.trained += trained
        self.empty += trained == 0
        self.full += trained == tokens
        self.bins[min(BINS - 1, trained * BINS // max(1, tokens))] += 1


class ShardSamples:
    """The rows of one split, from its feature shards."""

    def __init__(self, folder: Path) -> None:
        """Read the manifest.

        Raises:
            Eagle3opsError: there is none, or the header is damaged.
        """
        try:
            self.header = FeatureHeader.parse((folder / HEADER).read_bytes(), HEADER)
            data = (folder / MANIFEST).read_bytes()
            self.mark = (folder, len(data), (folder / MANIFEST).stat().st_mtime_ns)
            """Another one means that the split has changed."""
        except OSError as error:
            raise Eagle3opsError(f"{folder.name} holds no features: {error.strerror}") from error
        self._folder = folder
        self.records: tuple[ShardRecord, ...] = tuple(parse_manifest(data).records.values())
        self._ends = list(accumulate(record.rows for record in self.records))
        self.rows = self._ends[-1] if self._ends else 0
        self.tokens = sum(record.tokens for record in self.records)
        self.dropped = sum(len(record.dropped) for record in self.records)

    def row(self, index: int) -> Sample:
        """Row `index`, from 0.

        Raises:
            Eagle3opsError: its shard cannot be read; it is named.
        """
        at = bisect_right(self._ends, index)
        record = self.records[at]
        within = index - (self._ends[at] - record.rows)
        with _Opened(self._folder, record) as shard:
            a, b = shard.bounds[within], shard.bounds[within + 1]
            return Sample(
                shard.ids[within], shard.part("token_ids", a, b).tolist(), shard.part("loss_mask", a, b).tolist()
            )

    def find(self, text: str, after: int) -> int | None:
        """The next row whose id holds `text`, in small letters or capitals; after the last row from the front."""
        wanted, first = text.lower(), None
        for index, name in self._names():
            if wanted in name.lower():
                if index > after:
                    return index
                first = index if first is None else first
        return first

    def _names(self) -> Iterator[tuple[int, str]]:
        start = 0
        for record in self.records:
            try:
                with _Opened(self._folder, record) as shard:
                    yield from enumerate(shard.ids, start)
            except Eagle3opsError:
                # One that cannot be read is told of when it is looked at.
                pass
            start += record.rows

    def survey(self, vocabulary: "NDArray[Any] | None") -> Survey:
        """Mask density over the split; of large ones, over shards at even distances.

        Args:
            vocabulary: bool `[V]`, which tokens the drafter can propose.
        """
        import numpy as np

        found = Survey(missed=None if vocabulary is None else 0)
        step = max(1, -(-self.tokens // SURVEY_TOKENS))
        counts = np.zeros(0 if vocabulary is None else vocabulary.shape[0], dtype=np.int64)
        for record in self.records[::step]:
            try:
                with _Opened(self._folder, record) as shard:
                    mask = shard.part("loss_mask", 0, record.tokens)
                    trained = np.add.reduceat(mask.astype(np.int64), shard.bounds[:-1]).tolist() if shard.ids else []
                    for tokens, count in zip(np.diff(shard.bounds).tolist(), trained, strict=True):
                        found.add(tokens, count)
                    if vocabulary is not None and found.missed is not None:
                        ids = shard.part("token_ids", 0, record.tokens)[mask]
                        known = (ids >= 0) & (ids < vocabulary.shape[0])
                        lacking = ids[known][~vocabulary[ids[known]]]
                        found.missed += int(ids.shape[0] - known.sum() + lacking.shape[0])
                        counts += np.bincount(lacking, minlength=counts.shape[0])
            except Eagle3opsError:
                continue
        most = np.argsort(-counts, kind="stable")[:MISSED_MOST].tolist()
        found.missed_most = [(k, int(counts[k])) for k in most if counts[k]]
        return found


class _Opened:
    """One shard, mapped: only what is asked for is read."""

    def __init__(self, folder: Path, record: ShardRecord) -> None:
        self._path = folder / record.file
        self._record = record
        self._handle: Any = None
        self.ids: Sequence[str] = ()
        self.bounds: list[int] = []

    def __enter__(self) -> "_Opened":
        try:
            from safetensors import SafetensorError, safe_open
        except ImportError as error:
            raise Eagle3opsError(
                f"the shards cannot be read: {error}", remedy="pip install 'eagle3ops[train]' on the host"
            ) from error
        try:
            handle: Any = safe_open(self._path, framework="np")
            self._handle = handle
            self.bounds = handle.get_tensor("offsets").tolist()
            names = json.loads((handle.metadata() or {})["ids"])
            lengths = {name: handle.get_slice(name).get_shape() for name in ("token_ids", "loss_mask")}
        except (OSError, SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise Eagle3opsError(
                f"shard {self._record.shard} ({self._path}) cannot be read: {error}",
                remedy="run the extract job again; shards that verify are kept",
            ) from error
        record, bounds = self._record, self.bounds
        rising = bounds[:1] == [0] and bounds[-1:] == [record.tokens] and all(a < b for a, b in pairwise(bounds))
        sound = isinstance(names, list) and len(names) == record.rows == len(bounds) - 1
        if not (rising and sound and all(shape == [record.tokens] for shape in lengths.values())):
            raise Eagle3opsError(
                f"shard {record.shard} ({self._path}): its rows do not add up", remedy="run the extract job again"
            )
        self.ids = [str(name) for name in names]
        return self

    def __exit__(self, *_: object) -> None:
        self._handle = None

    def part(self, name: str, first: int, last: int) -> "NDArray[Any]":
        """Tokens `first` to `last - 1` of a tensor."""
        found: NDArray[Any] = self._handle.get_slice(name)[first:last]
        return found


def draft_vocabulary(drafter: Path, vocab_size: int) -> "NDArray[Any]":
    """Which tokens a drafter can propose, bool `[vocab_size]`.

    Raises:
        Eagle3opsError: its weights cannot be read, or name tokens that do not exist.
    """
    try:
        import numpy as np
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise Eagle3opsError(f"the drafter cannot be read: {error}", remedy="pip install 'eagle3ops[train]'") from error
    path = drafter / "model.safetensors"
    try:
        with safe_open(path, framework="np") as handle:
            offsets = handle.get_tensor("d2t") if "d2t" in set(handle.keys()) else None
    except (OSError, SafetensorError, ValueError, TypeError) as error:
        raise Eagle3opsError(f"{path}: the draft vocabulary cannot be read: {error}") from error
    if offsets is None:
        # A drafter without a map proposes every token.
        return np.ones(vocab_size, dtype=bool)
    if offsets.ndim != 1 or offsets.dtype.kind not in "iu":
        raise Eagle3opsError(f"{path}: d2t is no list of whole numbers")
    ids = np.arange(offsets.shape[0]) + offsets
    if ids.size and (int(ids.min()) < 0 or int(ids.max()) >= vocab_size):
        raise Eagle3opsError(f"{path}: d2t names tokens that the target does not have")
    known = np.zeros(vocab_size, dtype=bool)
    known[ids] = True
    return known
