"""What is known of one log while it is read: its troubles, its tracebacks, and how far the work came."""

from collections import deque
from dataclasses import dataclass, field

from eagle3ops.forensics.fingerprint import FRAMES
from eagle3ops.forensics.lines import Line
from eagle3ops.forensics.signatures import Kind


@dataclass(slots=True)
class Finding:
    """One line that speaks of trouble."""

    line: Line
    kind: Kind
    weight: float
    rank: int | None
    trace: int = 0
    """Number of the traceback that it belongs to; 0: none."""
    mild: bool = False
    """Said as a warning or less, or by somebody who went on."""
    why: str = ""
    """Why it counts for less than its words, if it does."""
    progress: int = 0
    """Lines of progress of this log before this line."""
    at: int = 0
    """How many lines of this log were read before this one."""
    time: float | None = None
    """Of this line, or of the last one before it that names one."""
    frames: tuple[str, ...] = ()
    """Of its traceback the innermost calls of the program's own code, innermost last."""


@dataclass(slots=True)
class Course:
    """How one log went, without its troubles."""

    ranks: set[int] = field(default_factory=set)
    world: int = 0
    progress: int = 0
    lines: int = 0
    ready: Line | None = None
    finished: Line | None = None
    stopped: Line | None = None
    """Where somebody ended it on purpose, for the first time."""
    fatal: Line | None = None
    """The last line that says that an engine or a job has ended, whatever else writes into this log."""
    anew: int = 0
    """Lines of progress after it by processes that were not seen before it."""
    phase: Line | None = None
    """The last line that tells how far a start has come."""
    working: int = 0
    """Lines of progress after it that are not of a start any more."""
    stacks: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Of each process whose stack was dumped, the calls of its main thread, innermost first."""
    last: Line | None = None
    """The last line that says something."""


@dataclass(slots=True)
class Trace:
    """A traceback that is being written."""

    number: int
    head: Line
    bare: bool
    """Its lines carry no prefixes of their own."""
    source: Line | None = None
    raised: Finding | None = None
    message: int = 0
    chained: bool = False
    mild: bool = False
    told: Finding | None = None
    """What a line between its frames says, for the case that the exception itself is lost."""
    frames: deque[str] = field(default_factory=lambda: deque(maxlen=FRAMES))
