"""What ran when, by one trace of the torch profiler?

The file is Chrome's trace format (JSON, often gzipped), the same from every engine. It is read as a stream: a trace of
a large model has millions of events, of which only launches, annotations and the work itself are kept.
"""

import gzip
import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import ijson  # type: ignore[import-untyped]

from eagle3ops.errors import Eagle3opsError

MOST_EVENTS = 4_000_000
"""Events that are kept of one trace; a longer one is refused rather than cut."""
_GPU_WORK = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_LAUNCHES = frozenset({"cuda_runtime", "cuda_driver"})


class TraceError(Eagle3opsError):
    """The file is no trace of the torch profiler."""


@dataclass(frozen=True, slots=True)
class Span:
    """Something with a beginning and an end on one thread, microseconds."""

    name: str
    thread: int
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Work:
    """One kernel or copy on a GPU, or one operator of a CPU.

    Attributes:
        launched: thread and time of the call that launched it; None where the trace does not hold it.
    """

    name: str
    start: float
    end: float
    launched: tuple[int, float] | None


@dataclass(frozen=True, slots=True)
class Trace:
    """One process's trace.

    Attributes:
        annotations: what the engine says it is doing, by CPU thread.
        work: in order of its start.
        on_gpu: whether a GPU did the work; without one, the operators of the CPU are it.
    """

    annotations: tuple[Span, ...]
    work: tuple[Work, ...]
    on_gpu: bool


@dataclass(slots=True)
class _Found:
    annotations: list[Span] = field(default_factory=list)
    launches: dict[int, tuple[int, float]] = field(default_factory=dict)
    kernels: list[tuple[str, float, float, int | None]] = field(default_factory=list)
    operators: list[Span] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.annotations) + len(self.launches) + len(self.kernels) + len(self.operators)


def read_trace(path: Path) -> Trace:
    """Read one trace.

    Raises:
        TraceError: the file cannot be read, is no trace, or is longer than `MOST_EVENTS`.
    """
    found = _Found()
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            if packed:
                with gzip.open(raw) as unpacked:
                    _collect(unpacked, found, path)  # type: ignore[arg-type]  # a GzipFile reads bytes
            else:
                _collect(raw, found, path)
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}", remedy="profile again") from error
    except (ijson.JSONError, UnicodeDecodeError, ValueError, EOFError, zlib.error) as error:
        raise TraceError(
            f"{path}: not a whole trace: {' '.join(str(error).split())[:200]}",
            remedy="the profiler may still have been writing it, or the server died; profile again",
        ) from error
    if not found.kernels and not found.operators:
        raise TraceError(
            f"{path}: holds no work of a GPU or a CPU", remedy="profile while the engine answers a request"
        )
    return _joined(found)


def _collect(file: BinaryIO, found: _Found, path: Path) -> None:
    for event in _events(file):
        _keep(event, found)
        if len(found) > MOST_EVENTS:
            raise TraceError(f"{path}: more than {MOST_EVENTS} events", remedy="profile fewer steps")


def _events(file: BinaryIO) -> Iterator[Mapping[str, Any]]:
    for event in ijson.items(file, "traceEvents.item", use_float=True):
        if isinstance(event, dict) and event.get("ph") == "X":
            yield event


def _keep(event: Mapping[str, Any], found: _Found) -> None:
    category, name = event.get("cat"), event.get("name")
    start, length = _number(event.get("ts")), _number(event.get("dur"))
    if not isinstance(category, str) or not isinstance(name, str) or start is None or length is None or length < 0:
        return
    arguments = event.get("args")
    number = arguments.get("correlation") if isinstance(arguments, dict) else None
    correlation = number if isinstance(number, int) else None
    thread = event.get("tid")
    where = thread if isinstance(thread, int) else hash(str(thread))
    if category in _GPU_WORK:
        found.kernels.append((name, start, start + length, correlation))
    elif category in _LAUNCHES:
        if correlation is not None:
            found.launches[correlation] = (where, start)
    elif category == "user_annotation":
        found.annotations.append(Span(name, where, start, start + length))
    elif category == "cpu_op":
        found.operators.append(Span(name, where, start, start + length))


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < 1e18 and math.isfinite(value) else None


def _joined(found: _Found) -> Trace:
    annotations = tuple(sorted(found.annotations, key=lambda span: span.start))
    if found.kernels:
        work = [
            Work(name, start, end, None if number is None else found.launches.get(number))
            for name, start, end, number in found.kernels
        ]
    else:
        work = [
            Work(span.name, span.start, span.end, (span.thread, span.start)) for span in _outermost(found.operators)
        ]
    return Trace(annotations, tuple(sorted(work, key=lambda one: one.start)), on_gpu=bool(found.kernels))


def _outermost(spans: list[Span]) -> Iterator[Span]:
    """Those that no other of the same thread holds: an operator's own operators are not counted twice."""
    ends: dict[int, float] = {}
    for span in sorted(spans, key=lambda one: (one.start, -one.end)):
        if span.start >= ends.get(span.thread, -math.inf):
            ends[span.thread] = span.end
            yield span
