"""How are samples written down, and read again however the recording ended?

A recording is JSON lines, compressed when its name ends in `.gz`. It is flushed every second, so that a kill loses at
most the last second; a torn end and foreign lines are passed over and counted. Recordings of other programs are
brought into the schema of `sampler` as far as they go (see `normalise`).
"""

import asyncio
import errno
import json
import os
import time
import zlib
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from eagle3ops.errors import Eagle3opsError, RequestError
from eagle3ops.telemetry.normalise import normalise
from eagle3ops.telemetry.rates import Rates

FLUSH_EVERY_S = 1.0
LINE_BYTES = 16 << 20
"""A longer line is not a sample."""
GAP_S = 60.0
_CHUNK = 1 << 18
_GZIP_HEADER = 16 + zlib.MAX_WBITS


class Recorder:
    """Writes samples to a new file.

    Raises:
        RequestError: the file exists already, or its folder does not.
        Eagle3opsError: there is no space left, or the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.samples = 0
        try:
            self._file: BinaryIO = path.open("xb")
        except FileExistsError as error:
            raise RequestError(f"{path}: exists already", remedy="give another name, or remove it first") from error
        except OSError as error:
            raise RequestError(f"{path}: cannot be written: {error.strerror}") from error
        self._packer = zlib.compressobj(6, zlib.DEFLATED, _GZIP_HEADER) if path.suffix == ".gz" else None
        self._flushed_at = time.monotonic()

    def write(self, sample: Mapping[str, Any]) -> None:
        """Add one sample; what is older than a second is in the file when this returns."""
        line = json.dumps(sample, separators=(",", ":"), default=str).encode() + b"\n"
        now = time.monotonic()
        due = now - self._flushed_at >= FLUSH_EVERY_S
        try:
            if self._packer is None:
                self._file.write(line)
            else:
                self._file.write(self._packer.compress(line))
                if due:
                    # Costs a few bytes, and lets a reader have everything up to here.
                    self._file.write(self._packer.flush(zlib.Z_SYNC_FLUSH))
            if due:
                self._file.flush()
                self._flushed_at = now
        except OSError as error:
            raise self._explained(error) from error
        self.samples += 1

    def close(self) -> None:
        """Finish the file."""
        if self._file.closed:
            return
        try:
            if self._packer is not None:
                self._file.write(self._packer.flush())
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._explained(error) from error
        finally:
            self._drop()

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and issubclass(kind, Eagle3opsError):
            self._drop()  # the reason is already told
            return
        self.close()

    def _drop(self) -> None:
        try:
            self._file.close()
        except OSError as error:
            # Closing tries once more to write what is buffered; the first failure has been told.
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
                raise

    def _explained(self, error: OSError) -> Eagle3opsError:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return Eagle3opsError(
                f"{self.path}: no space left after {self.samples} samples",
                remedy="free space; what is there can be played",
            )
        return Eagle3opsError(f"{self.path}: cannot be written: {error.strerror or error}")


class Player:
    """Reads a recording. After iterating, `bad_lines` and `torn` say what could not be read.

    Raises (when iterated):
        RequestError: the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.bad_lines = 0
        """Whole lines that are no sample."""
        self.torn = False
        """The recording ends in the middle of a line, or its compression is damaged from some point on."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """All samples, as fast as they can be read."""
        self.bad_lines, self.torn = 0, False
        rates = Rates()
        before: float | None = None
        for line in self._lines():
            sample = parse_line(line)
            if sample is None:
                self.bad_lines += 1
                continue
            if sample["gap_s"] is None and before is not None and sample["mono"] >= before:
                sample["gap_s"] = round(sample["mono"] - before, 4)
            before = sample["mono"]
            rates.fill(sample)
            yield sample

    async def play(self, speed: float = 1.0) -> AsyncIterator[dict[str, Any]]:
        """All samples in their own time, `speed` times as fast; a gap is waited for `GAP_S` at most.

        Raises:
            RequestError: `speed` is not positive, or the file cannot be opened.
        """
        if not speed > 0:
            raise RequestError(f"a recording cannot be played at speed {speed:g}")
        due = time.monotonic()
        for sample in self:
            due = max(due + min((sample["gap_s"] or 0.0) / speed, GAP_S), time.monotonic())
            await asyncio.sleep(due - time.monotonic())
            yield sample

    def _lines(self) -> Iterator[bytes]:
        rest = b""
        skipping = False
        for chunk in self._chunks():
            *whole, rest = (rest + chunk).split(b"\n")
            for line in whole:
                if skipping:
                    skipping = False
                elif line.strip():
                    yield line
            if len(rest) > LINE_BYTES:
                self.bad_lines += not skipping
                rest, skipping = b"", True
        if rest or skipping:
            self.torn = True

    def _chunks(self) -> Iterator[bytes]:
        try:
            file = self.path.open("rb")
        except OSError as error:
            raise RequestError(f"{self.path}: cannot be read: {error.strerror}") from error
        with file:
            start = file.read(2)
            file.seek(0)
            if start == b"\x1f\x8b":
                yield from self._unpack(file)
            else:
                while chunk := file.read(_CHUNK):
                    yield chunk

    def _unpack(self, file: BinaryIO) -> Iterator[bytes]:
        unpacker = zlib.decompressobj(_GZIP_HEADER)
        fresh = True
        while data := file.read(_CHUNK):
            while data:
                fresh = False
                try:
                    # Bounded, so that a small hostile file cannot fill the memory.
                    chunk = unpacker.decompress(data, _CHUNK)
                except zlib.error:
                    self.torn = True
                    return
                yield chunk
                data = unpacker.unconsumed_tail
                if unpacker.eof:
                    data, fresh = unpacker.unused_data, True
                    unpacker = zlib.decompressobj(_GZIP_HEADER)
        if not fresh:
            self.torn = True


def parse_line(line: bytes) -> dict[str, Any] | None:
    """One sample of any known schema; None for what is none."""
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return normalise(data)
