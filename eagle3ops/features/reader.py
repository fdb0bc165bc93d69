"""How does a trainer read shards, and how does it know that they are whole?

Shards are memory-mapped: a row is a view into its file, and the kernel decides what stays in memory.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from eagle3ops.features.format import (
    HEADER,
    MANIFEST,
    FeatureError,
    FeatureHeader,
    Problem,
    ShardRecord,
    parse_manifest,
)
from eagle3ops.features.writer import FeatureRow, find_problem


@dataclass(frozen=True, slots=True, eq=False)
class Shard:
    """Rows packed end to end; row i is tokens `offsets[i]:offsets[i + 1]`."""

    ids: tuple[str, ...]
    token_ids: Tensor
    loss_mask: Tensor
    aux: Tensor
    final: Tensor
    offsets: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.ids)

    def row(self, index: int) -> FeatureRow:
        """Views of one row."""
        a, b = self.offsets[index], self.offsets[index + 1]
        return FeatureRow(self.ids[index], self.token_ids[a:b], self.loss_mask[a:b], self.aux[a:b], self.final[a:b])


class FeatureReader:
    """A folder of features, read only.

    Attributes:
        header: what all shards have in common.
        shards: the manifest's records in order of writing.
    """

    def __init__(self, folder: Path) -> None:
        """Read header and manifest; raises FeatureError where there are none."""
        self.folder = folder
        try:
            self.header = FeatureHeader.parse((folder / HEADER).read_bytes(), str(folder / HEADER))
            self._manifest = parse_manifest((folder / MANIFEST).read_bytes())
        except OSError as error:
            raise FeatureError(f"{folder}: holds no features: {error}", remedy="run the extract job first") from error
        self.shards: tuple[ShardRecord, ...] = tuple(self._manifest.records.values())

    @property
    def tokens(self) -> int:
        """Tokens over all shards."""
        return sum(record.tokens for record in self.shards)

    def verify(self) -> list[Problem]:
        """Compare every shard's bytes with the manifest; each missing, truncated or altered one is named."""
        found = [
            Problem(MANIFEST, "manifest", f"line {number} of {self.folder / MANIFEST} is damaged")
            for number in self._manifest.damaged
        ]
        if self._manifest.torn:
            found.append(Problem(MANIFEST, "manifest", f"the last line of {self.folder / MANIFEST} is torn"))
        for record in self.shards:
            problem = find_problem(self.folder, record)
            if problem is None:
                try:
                    self.open(record)
                except FeatureError as error:
                    problem = Problem(record.shard, "unreadable", error.what)
            if problem is not None:
                found.append(problem)
        return found

    def open(self, record: ShardRecord) -> Shard:
        """Map one shard.

        Raises:
            FeatureError: it is missing or is not what header and manifest say; the message names it.
        """
        path = self.folder / record.file
        try:
            with safe_open(path, framework="pt") as handle:
                names = ("token_ids", "loss_mask", "aux", "final", "offsets")
                tokens, mask, aux, final, offsets = (handle.get_tensor(name) for name in names)
                ids = json.loads((handle.metadata() or {})["ids"])
        except (OSError, SafetensorError, ValueError, KeyError) as error:
            raise FeatureError(
                f"shard {record.shard} ({path}) cannot be read: {error}", remedy="run the extract job again"
            ) from error
        dtype = getattr(torch, self.header.dtype)
        wanted = (
            (tokens, (record.tokens,), torch.int32),
            (mask, (record.tokens,), torch.bool),
            (aux, (record.tokens, self.header.aux_size), dtype),
            (final, (record.tokens, self.header.hidden_size), dtype),
            (offsets, (record.rows + 1,), torch.int64),
        )
        for name, (tensor, shape, kind) in zip(names, wanted, strict=True):
            if tuple(tensor.shape) != shape or tensor.dtype != kind:
                raise FeatureError(
                    f"shard {record.shard} ({path}): {name} is {tensor.dtype} {list(tensor.shape)}, "
                    f"not {kind} {list(shape)}"
                )
        bounds = tuple(offsets.tolist())
        rising = bounds[0] == 0 and bounds[-1] == record.tokens and bool((offsets.diff() > 0).all())
        if not rising or len(ids) != record.rows:
            raise FeatureError(f"shard {record.shard} ({path}): its rows do not add up")
        return Shard(tuple(str(i) for i in ids), tokens, mask, aux, final, bounds)

    def rows(self) -> Iterator[FeatureRow]:
        """Every row in order of writing; raises FeatureError at a shard that cannot be read."""
        for record in self.shards:
            shard = self.open(record)
            for index in range(len(shard)):
                yield shard.row(index)
