"""Which phase of a decode step does every microsecond belong to?

SGLang (and our reference engine, in the same words) annotates what its scheduler does: `draft`,
`step[TARGET_VERIFY bs=1]`, `draft_extend`, `step[DECODE bs=1]`, `scheduler.run_batch` around them. Work belongs to the
innermost annotation around the call that launched it, whenever it ran; a CUDA graph's kernels to its launch.
"""

import bisect
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from eagle3ops.errors import Eagle3opsError
from eagle3ops.profiling.trace import Span, Trace, Work

PHASES = ("draft", "draft_extend", "verify", "decode", "prefill", "sample", "communication", "other")
"""`draft_extend`: the drafter reads what was accepted; `sample`: choosing and accepting tokens between the passes."""
_NAMED = (
    (re.compile(r"draft_extend"), "draft_extend"),
    (re.compile(r"draft"), "draft"),
    (re.compile(r"step\[TARGET_VERIFY\b"), "verify"),
    (re.compile(r"step\[(?:DECODE|IDLE)\b"), "decode"),
    (re.compile(r"step\[(?:EXTEND|MIXED|PREFILL|SPLIT_PREFILL|DRAFT_EXTEND)\b"), "prefill"),
    (re.compile(r"scheduler\.run_batch"), "sample"),
)
_COMMUNICATION = re.compile(r"nccl|all_?reduce|all_?gather|reduce_?scatter|cross_device_reduce|multimem", re.IGNORECASE)
_STEP = re.compile(r"step\[(?:TARGET_VERIFY|DECODE)\b")


class NoSteps(Eagle3opsError):
    """The trace holds no whole decode step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Means over the whole decode steps of one trace, milliseconds a step.

    Attributes:
        steps: whole steps in the trace.
        step_ms: from the start of one step to that of the next, the median; the profiler lengthens it.
        busy_ms: the device works on something; phases: what on, without the hidden part of communication, which
            passes while something else runs.
        waits: while the device idles, what the CPU does, by annotation (milliseconds a step).
        kernels: pieces of work a step; launches: calls that launched them (one for a whole graph).
        speculative: whether the steps verify drafts.
        on_gpu: see `Trace`.
    """

    steps: int
    step_ms: float
    busy_ms: float
    phases: Mapping[str, float]
    waits: Mapping[str, float]
    kernels: float
    launches: float
    speculative: bool
    on_gpu: bool

    @property
    def idle_ms(self) -> float:
        """The device has nothing to do, by this trace."""
        return max(0.0, self.step_ms - self.busy_ms)

    def as_dict(self) -> dict[str, Any]:
        """For files."""
        return {
            "steps": self.steps,
            "step_ms": self.step_ms,
            "busy_ms": self.busy_ms,
            "idle_ms": self.idle_ms,
            "phases": dict(self.phases),
            "waits": dict(self.waits),
            "kernels": self.kernels,
            "launches": self.launches,
            "speculative": self.speculative,
            "on_gpu": self.on_gpu,
        }


class _Annotated:
    """Finds the innermost annotation of a thread at a time."""

    def __init__(self, annotations: Iterable[Span]) -> None:
        self._of: dict[int, list[Span]] = {}
        for span in annotations:
            self._of.setdefault(span.thread, []).append(span)
        self._starts = {thread: [span.start for span in spans] for thread, spans in self._of.items()}
        self._longest = {thread: max(s.end - s.start for s in spans) for thread, spans in self._of.items()}

    def at(self, thread: int, time: float) -> Span | None:
        spans = self._of.get(thread)
        if spans is None:
            return None
        place = bisect.bisect_right(self._starts[thread], time)
        # Annotations of a thread are nested, so the latest that still runs is the innermost.
        for span in reversed(spans[:place]):
            if span.end >= time:
                return span
            if span.start < time - self._longest[thread]:
                return None
        return None


def phase_of(annotation: str | None, kernel: str) -> str:
    """The phase of a piece of work, by the annotation it was launched in and by its name."""
    if _COMMUNICATION.search(kernel):
        return "communication"
    for pattern, phase in _NAMED:
        if annotation is not None and pattern.search(annotation):
            return phase
    return "other"


def step_times(trace: Trace) -> StepTimes:
    """Attribute a trace.

    Raises:
        NoSteps: fewer than two decode steps begin in it.
    """
    marks = [span for span in trace.annotations if _STEP.search(span.name)]
    verifying = [span for span in marks if "TARGET_VERIFY" in span.name]
    marks = verifying or marks
    if len(marks) < 2:
        raise NoSteps(
            f"the trace holds {len(marks)} decode steps; at least two are needed",
            remedy="profile more steps, and let the answer be long enough for them",
        )
    # Within a step the order is draft, verify, extend, so a window from verify to verify holds each of them once.
    first, last, count = marks[0].start, marks[-1].start, len(marks) - 1
    annotated = _Annotated(trace.annotations)
    pieces: list[tuple[float, float, str]] = []
    launches: set[tuple[int, float]] = set()
    kernels = 0
    for work in trace.work:
        if not first <= _launch_time(work) < last:
            continue
        kernels += 1
        if work.launched is not None:
            launches.add(work.launched)
        span = None if work.launched is None else annotated.at(*work.launched)
        pieces.append((work.start, work.end, phase_of(None if span is None else span.name, work.name)))
    lengths = [later.start - earlier.start for earlier, later in pairwise(marks)]
    shares, gaps = _exclusive(pieces)
    thread = marks[0].thread
    waits: dict[str, float] = {}
    for start, end in gaps:
        span = annotated.at(thread, (start + end) / 2)
        name = "between annotations" if span is None else re.sub(r" bs=\d+", "", span.name)
        waits[name] = waits.get(name, 0.0) + (end - start)
    scale = 1000.0 * count
    return StepTimes(
        steps=count,
        step_ms=median(lengths) / 1000.0,
        busy_ms=sum(shares.values()) / scale,
        phases={name: shares[name] / scale for name in PHASES if shares.get(name)},
        waits={name: spent / scale for name, spent in sorted(waits.items(), key=lambda item: -item[1])},
        kernels=kernels / count,
        launches=len(launches) / count,
        speculative=bool(verifying),
        on_gpu=trace.on_gpu,
    )


def _launch_time(work: Work) -> float:
    return work.start if work.launched is None else work.launched[1]


def _exclusive(pieces: Sequence[tuple[float, float, str]]) -> tuple[dict[str, float], list[tuple[float, float]]]:
    """Time by phase, every moment counted once, and the gaps between; communication counts where it runs alone."""
    edges = sorted(
        [(start, 1, phase) for start, _, phase in pieces] + [(end, -1, phase) for _, end, phase in pieces],
        key=lambda edge: (edge[0], edge[1]),
    )
    running: dict[str, int] = {}
    shares: dict[str, float] = {}
    gaps: list[tuple[float, float]] = []
    before = edges[0][0] if edges else 0.0
    for time, change, phase in edges:
        if time > before:
            active = [name for name, number in running.items() if number > 0]
            if active:
                counted = [name for name in active if name != "communication"] or active
                for name in counted:
                    shares[name] = shares.get(name, 0.0) + (time - before) / len(counted)
            else:
                gaps.append((before, time))
        running[phase] = running.get(phase, 0) + change
        before = time
    return shares, gaps
