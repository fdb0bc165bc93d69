"""How do extracted hidden states become shards that survive a kill at any moment?

A shard is written under a temporary name, synced, renamed, and only then entered into the manifest, which is synced
too. A shard without a manifest line, or whose bytes differ from its line, does not count as done.
"""

import json
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from torch import Tensor

from eagle3ops.eagle3.durable import TMP_SUFFIX, sha256_of, write_bytes_durably, write_durably
from eagle3ops.features.format import (
    HEADER,
    MANIFEST,
    QUARANTINE,
    SHARD_SUFFIX,
    BadRow,
    FeatureError,
    FeatureHeader,
    Manifest,
    NoSoundRow,
    Problem,
    ShardRecord,
    check_name,
    parse_manifest,
    render_record,
)
from eagle3ops.features.pieces import parts
from eagle3ops.features.quantised import QuantisedRow, quantise, taught
from eagle3ops.features.shard_file import write_tensors
from eagle3ops.runs.files import sync_folder


@dataclass(frozen=True, slots=True, eq=False)
class FeatureRow:
    """One conversation with its hidden states.

    Attributes:
        id: of the answer it was made from.
        token_ids: int32 `[T]`.
        loss_mask: bool `[T]`, True where the *token itself* was written by the target.
        aux: `[T, A*H]`, the aux boundaries side by side.
        final: `[T, H]`, the last boundary, before the target's final norm.
    """

    id: str
    token_ids: Tensor
    loss_mask: Tensor
    aux: Tensor
    final: Tensor


Row = FeatureRow | QuantisedRow


def _judged(row: Row) -> tuple[Tensor, Tensor]:
    """Of aux and final, what tells whether they are sound."""
    # In eight bits the scale tells: it is not finite where a number was not, and 0 where all were.
    return (row.aux_scale, row.final_scale) if isinstance(row, QuantisedRow) else (row.aux, row.final)


def all_sound(rows: Sequence[Row]) -> bool:
    """Whether no row needs a closer look by `scan`, at a small part of its cost."""
    for states in zip(*(_judged(row) for row in rows), strict=True):
        for part in parts(states):
            # The sum of squares is much the fastest pass over bfloat16. It may overflow, or vanish, where no number
            # is wrong; `scan` tells then. Of NaN both comparisons are false.
            length = torch.linalg.vector_norm(part, 2, -1)
            if not bool(((length > 0) & (length < float("inf"))).all()):
                return False
    return True


def scan(row: Row) -> str | None:
    """Why a row must not be trained on: NaN, infinity or all-zero states; None where it is sound."""
    for name, states in zip(("aux", "final"), _judged(row), strict=True):
        # NaN and infinity are found in the largest, so one pass tells everything.
        largest = states.abs().amax(-1)
        if not bool(torch.isfinite(largest).all()):
            at = int((~torch.isfinite(largest)).nonzero()[0])
            kind = "NaN" if bool(torch.isnan(states[at]).any()) else "infinity"
            return f"{kind} in {name} at token {at}"
        zero = largest == 0
        if bool(zero.any()):
            return f"{name} is all zeros at token {int(zero.nonzero()[0])}"
    return None


def find_problem(folder: Path, record: ShardRecord) -> Problem | None:
    """Compare a shard's bytes with its manifest line."""
    path = folder / record.file
    try:
        size = path.stat().st_size
        if size != record.bytes:
            return Problem(record.shard, "truncated", f"{path} has {size} bytes, the manifest says {record.bytes}")
        if sha256_of(path) != record.sha256:
            return Problem(record.shard, "checksum", f"{path} has other bytes than were written")
    except FileNotFoundError:
        return Problem(record.shard, "missing", f"{path} is in the manifest but not on disk")
    except OSError as error:
        return Problem(record.shard, "unreadable", f"{path}: {error}")
    return None


class FeatureWriter:
    """Writes shards into one folder; opened again after a kill, it goes on where the last sound shard ended.

    Attributes:
        problems: what `verified` found and moved to the quarantine, by name.
    """

    def __init__(self, folder: Path, header: FeatureHeader, *, keep_damaged: bool = True) -> None:
        """Open or create `folder`.

        Args:
            keep_damaged: False deletes what does not verify instead of moving it to the quarantine, where space is
                short.

        Raises:
            FeatureError: the folder holds features of another target, of other layers or of another dtype.
            OSError: the folder cannot be written.
        """
        self.folder = folder
        self.header = header
        self.problems: list[Problem] = []
        self._keep_damaged = keep_damaged
        self._entering = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / HEADER
        if path.exists():
            there = FeatureHeader.parse(path.read_bytes(), str(path))
            if differing := [f.name for f in fields(header) if getattr(there, f.name) != getattr(header, f.name)]:
                raise FeatureError(
                    f"{folder}: holds features with another {', '.join(differing)}",
                    remedy="extract into an empty folder",
                )
        else:
            write_bytes_durably(path, json.dumps(header.render(), indent=1).encode())
        self._records = self._repair()

    def _repair(self) -> dict[str, ShardRecord]:
        """Cut a torn last line off, so that the next line starts on a line of its own."""
        path = self.folder / MANIFEST
        manifest = parse_manifest(path.read_bytes()) if path.exists() else Manifest({}, (), False, 0)
        if manifest.torn:
            with path.open("r+b") as handle:
                handle.truncate(manifest.sound_bytes)
                os.fsync(handle.fileno())
            self.problems.append(Problem(MANIFEST, "manifest", f"the last line of {path} was torn and is cut off"))
        self.problems += [
            Problem(MANIFEST, "manifest", f"line {number} of {path} is damaged and ignored")
            for number in manifest.damaged
        ]
        return manifest.records

    def verified(self) -> set[str]:
        """Names of the shards whose bytes match the manifest.

        Everything else is moved to `quarantine/` (what a kill left half-written is deleted) and named in `problems`.
        """
        for record in list(self._records.values()):
            if problem := find_problem(self.folder, record):
                self.problems.append(problem)
                self._quarantine(self.folder / record.file)
                del self._records[record.shard]
        for path in sorted(self.folder.iterdir()):
            if path.name.endswith(TMP_SUFFIX):
                path.unlink()
            elif path.suffix == SHARD_SUFFIX and path.name.removesuffix(SHARD_SUFFIX) not in self._records:
                name = path.name.removesuffix(SHARD_SUFFIX)
                self.problems.append(Problem(name, "unlisted", f"{path} is not in the manifest"))
                self._quarantine(path)
        return set(self._records)

    def _quarantine(self, path: Path) -> None:
        if not path.exists():
            return
        if not self._keep_damaged:
            path.unlink()
            return
        place = self.folder / QUARANTINE
        place.mkdir(exist_ok=True)
        number = 0
        while (moved := place / f"{path.name}.{number}").exists():
            number += 1
        path.rename(moved)
        sync_folder(self.folder)

    def write_shard(self, name: str, rows: Sequence[Row]) -> ShardRecord:
        """Make `rows` one durable shard; rows that the scan rejects are left out and named in the record.

        Several threads may write shards of different names at once.

        Raises:
            FeatureError: a row has the wrong shape or dtype, or no row is sound.
            OSError: the disk is full or cannot be written; nothing of the shard remains.
        """
        check_name(name)
        for row in rows:
            self._check(row)
        if self.header.dtype == "float8_e4m3fn":
            rows = [self._quantised(row) for row in rows]
        reasons = [None] * len(rows) if all_sound(rows) else [scan(row) for row in rows]
        sound = [row for row, reason in zip(rows, reasons, strict=True) if reason is None]
        dropped = tuple(BadRow(row.id, why) for row, why in zip(rows, reasons, strict=True) if why is not None)
        if not sound:
            told = "; ".join(f"{bad.id}: {bad.reason}" for bad in dropped[:3]) or "it was given no rows"
            raise NoSoundRow(f"shard {name} has no sound row: {told}")
        offsets = torch.tensor([0, *(row.token_ids.numel() for row in sound)]).cumsum(0)
        tensors = {
            "token_ids": [row.token_ids.to(torch.int32) for row in sound],
            "loss_mask": [row.loss_mask for row in sound],
            **self._states(sound, offsets),
            "offsets": [offsets],
        }
        metadata = {"ids": json.dumps([row.id for row in sound]), "target": self.header.target_fingerprint}
        path = self.folder / (name + SHARD_SUFFIX)
        digest = write_durably(path, lambda temporary: write_tensors(temporary, tensors, metadata))
        record = ShardRecord(
            shard=name,
            rows=len(sound),
            tokens=int(offsets[-1]),
            bytes=path.stat().st_size,
            sha256=digest,
            dropped=dropped,
        )
        self._append(record)
        return record

    def _states(self, rows: Sequence[Row], offsets: Tensor) -> dict[str, list[Tensor]]:
        names = ["aux", "final"]
        if self.header.dtype == "float8_e4m3fn":
            names += ["aux_scale", "final_scale"]
        found: dict[str, list[Tensor]] = {name: [getattr(row, name) for row in rows] for name in names}
        if self.header.final_tokens == "taught":
            kept = taught(torch.cat([row.loss_mask for row in rows]))
            # What follows the last token of a row is another row.
            kept[offsets[1:] - 1] = False
            for name in names:
                if name.startswith("final"):
                    whole = list(parts(found[name]))
                    masks = torch.split(kept, [part.shape[0] for part in whole])
                    found[name] = [part[mask] for part, mask in zip(whole, masks, strict=True)]
        return found

    def _quantised(self, row: Row) -> QuantisedRow:
        if isinstance(row, QuantisedRow):
            return row
        aux, aux_scale = quantise(row.aux, self.header.hidden_size)
        final, final_scale = quantise(row.final, self.header.hidden_size)
        return QuantisedRow(row.id, row.token_ids, row.loss_mask, aux, final, aux_scale, final_scale)

    def _append(self, record: ShardRecord) -> None:
        with self._entering:
            self._enter(record)

    def _enter(self, record: ShardRecord) -> None:
        path = self.folder / MANIFEST
        created = not path.exists()
        with path.open("ab") as handle:
            start = handle.tell()
            try:
                handle.write(render_record(record))
                handle.flush()
                os.fsync(handle.fileno())
            except OSError:
                handle.truncate(start)
                raise
        if created:
            sync_folder(self.folder)
        self._records[record.shard] = record

    def _check(self, row: Row) -> None:
        tokens, header = row.token_ids.numel(), self.header
        wanted: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
            "token_ids": ((tokens,), row.token_ids.dtype),
            "loss_mask": ((tokens,), torch.bool),
        }
        dtype = getattr(torch, header.dtype)
        if isinstance(row, QuantisedRow):
            if header.dtype != "float8_e4m3fn":
                raise FeatureError(f"row {row.id}: its states are in eight bits, the header says {header.dtype}")
            wanted["aux_scale"] = ((tokens, len(header.aux_layers.boundary)), torch.float32)
            wanted["final_scale"] = ((tokens, 1), torch.float32)
        elif header.dtype == "float8_e4m3fn":
            dtype = row.aux.dtype
        wanted["aux"] = ((tokens, header.aux_size), dtype)
        wanted["final"] = ((tokens, header.hidden_size), dtype)
        for field, (shape, kind) in wanted.items():
            tensor: Tensor = getattr(row, field)
            if tuple(tensor.shape) != shape or tensor.dtype != kind:
                raise FeatureError(
                    f"row {row.id}: {field} is {tensor.dtype} {list(tensor.shape)}, not {kind} {list(shape)}"
                )
        if tokens == 0 or row.token_ids.is_floating_point():
            raise FeatureError(f"row {row.id}: token_ids must be whole numbers, and at least one")
