"""How does a trainer read shards, and how does it know that they are whole?

Shards are memory-mapped: a row is a view into its file, and the kernel decides what stays in memory.
"""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate, pairwise
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
from eagle3ops.features.quantised import StoredRow, taught
from eagle3ops.features.writer import FeatureRow, find_problem

HASHED_AT_ONCE = 8
"""Shards that are compared with the manifest side by side: a disk reads faster than one core hashes."""


@dataclass(frozen=True, slots=True, eq=False)
class Shard:
    """Rows packed end to end; row i is tokens `offsets[i]:offsets[i + 1]`.

    Attributes:
        aux_scale, final_scale: of states in eight bits, else None.
        final_offsets: row i's final states are `final[final_offsets[i]:final_offsets[i + 1]]`; None where every token
            has one.
    """

    ids: tuple[str, ...]
    token_ids: Tensor
    loss_mask: Tensor
    aux: Tensor
    final: Tensor
    offsets: tuple[int, ...]
    aux_scale: Tensor | None = None
    final_scale: Tensor | None = None
    final_offsets: tuple[int, ...] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def row(self, index: int) -> FeatureRow | StoredRow:
        """Views of one row."""
        a, b = self.offsets[index], self.offsets[index + 1]
        ids, mask, aux = self.token_ids[a:b], self.loss_mask[a:b], self.aux[a:b]
        if self.aux_scale is None and self.final_offsets is None:
            return FeatureRow(self.ids[index], ids, mask, aux, self.final[a:b])
        c, d = (a, b) if self.final_offsets is None else (self.final_offsets[index], self.final_offsets[index + 1])
        return StoredRow(
            self.ids[index],
            ids,
            mask,
            aux,
            self.final[c:d],
            None if self.aux_scale is None else self.aux_scale[a:b],
            None if self.final_scale is None else self.final_scale[c:d],
            self.final_offsets is not None,
        )


class FeatureReader:
    """A folder of features, read only.

    Attributes:
        header: what all shards have in common.
        shards: the manifest's records by name, whichever was finished first.
    """

    def __init__(self, folder: Path) -> None:
        """Read header and manifest; raises FeatureError where there are none."""
        self.folder = folder
        try:
            self.header = FeatureHeader.parse((folder / HEADER).read_bytes(), str(folder / HEADER))
            self._manifest = parse_manifest((folder / MANIFEST).read_bytes())
        except OSError as error:
            raise FeatureError(f"{folder}: holds no features: {error}", remedy="run the extract job first") from error
        self.shards: tuple[ShardRecord, ...] = tuple(
            sorted(self._manifest.records.values(), key=lambda record: (len(record.shard), record.shard))
        )

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
        with ThreadPoolExecutor(HASHED_AT_ONCE, "verify") as pool:
            return found + [problem for problem in pool.map(self._problem, self.shards) if problem is not None]

    def _problem(self, record: ShardRecord) -> Problem | None:
        if (problem := find_problem(self.folder, record)) is not None:
            return problem
        try:
            self.open(record)
        except FeatureError as error:
            return Problem(record.shard, "unreadable", error.what)
        return None

    def open(self, record: ShardRecord) -> Shard:
        """Map one shard.

        Raises:
            FeatureError: it is missing or is not what header and manifest say; the message names it.
        """
        path, header = self.folder / record.file, self.header
        quantised, partial = header.dtype == "float8_e4m3fn", header.final_tokens == "taught"
        try:
            with safe_open(path, framework="pt") as handle:
                names = ("token_ids", "loss_mask", "aux", "final", "offsets")
                tokens, mask, aux, final, offsets = (handle.get_tensor(name) for name in names)
                scales = [handle.get_tensor(name) for name in ("aux_scale", "final_scale")] if quantised else []
                ids = json.loads((handle.metadata() or {})["ids"])
        except (OSError, SafetensorError, ValueError, KeyError) as error:
            raise FeatureError(
                f"shard {record.shard} ({path}) cannot be read: {error}", remedy="run the extract job again"
            ) from error

        def check(name: str, tensor: Tensor, shape: tuple[int, ...], kind: torch.dtype) -> None:
            if tuple(tensor.shape) != shape or tensor.dtype != kind:
                raise FeatureError(
                    f"shard {record.shard} ({path}): {name} is {tensor.dtype} {list(tensor.shape)}, "
                    f"not {kind} {list(shape)}"
                )

        check("token_ids", tokens, (record.tokens,), torch.int32)
        check("loss_mask", mask, (record.tokens,), torch.bool)
        check("offsets", offsets, (record.rows + 1,), torch.int64)
        bounds = tuple(offsets.tolist())
        rising = bounds[0] == 0 and bounds[-1] == record.tokens and bool((offsets.diff() > 0).all())
        if not rising or len(ids) != record.rows:
            raise FeatureError(f"shard {record.shard} ({path}): its rows do not add up")
        final_offsets = None
        if partial:
            counts = [int(taught(mask[a:b]).sum()) for a, b in pairwise(bounds)]
            final_offsets = (0, *accumulate(counts))
        finals = record.tokens if final_offsets is None else final_offsets[-1]
        dtype = getattr(torch, header.dtype)
        check("aux", aux, (record.tokens, header.aux_size), dtype)
        check("final", final, (finals, header.hidden_size), dtype)
        if quantised:
            check("aux_scale", scales[0], (record.tokens, len(header.aux_layers.boundary)), torch.float32)
            check("final_scale", scales[1], (finals, 1), torch.float32)
        aux_scale, final_scale = scales or (None, None)
        names_of_rows = tuple(str(i) for i in ids)
        return Shard(names_of_rows, tokens, mask, aux, final, bounds, aux_scale, final_scale, final_offsets)

    def spread(self, count: int) -> list[FeatureRow | StoredRow]:
        """`count` rows at equal distances over all shards, or all where there are fewer; raises as `rows`."""
        total = sum(record.rows for record in self.shards)
        wanted = {(2 * at + 1) * total // (2 * count) for at in range(count)} if count < total else set(range(total))
        found, first = [], 0
        for record in self.shards:
            here = sorted(place - first for place in wanted if first <= place < first + record.rows)
            if here:
                shard = self.open(record)
                found += [shard.row(index) for index in here]
            first += record.rows
        return found

    def rows(self) -> Iterator[FeatureRow | StoredRow]:
        """Every row in the order of the shards' names; raises FeatureError at a shard that cannot be read."""
        for record in self.shards:
            shard = self.open(record)
            for index in range(len(shard)):
                yield shard.row(index)
