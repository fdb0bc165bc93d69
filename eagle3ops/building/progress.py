"""How far is a build, and how long will it take? Told by what CMake, ninja, make, git and pip print."""

import re
from dataclasses import dataclass, field

from eagle3ops.words import human_seconds, plain

_NINJA = re.compile(r"^\s*\[\s*(\d{1,7})/(\d{1,7})\]\s?(.*)$", re.ASCII | re.DOTALL)
_MAKE = re.compile(r"^\s*\[\s*(\d{1,3})%\]\s+(.*)$", re.ASCII | re.DOTALL)
_FETCH = re.compile(
    r"-populate\b|^\s*(?:-- )?(?:Populating |Cloning into |Fetching )|(?:Receiving|Resolving) (?:objects|deltas):"
)
_PHASES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("fetching", _FETCH),
    ("configuring", re.compile(r"^\s*\*\*\* Configuring")),
    ("configuring", re.compile(r"^\s*-- (?:The \w+ compiler|Detecting|Configuring|Check|Performing|Looking)")),
    ("compiling", re.compile(r"^\s*(?:\*\*\* Building project|building '[\w.]+' extension|Emitting ninja build file)")),
    (
        "packing",
        re.compile(r"^\s*(?:\*\*\* (?:Making wheel|Installing project)|creating '.*\.whl'|running install_lib)"),
    ),
    ("packing", re.compile(r"^\s*Building wheel for .*: finished|^\s*Created wheel for")),
)
_SMOOTH = 0.5
"""The rate is that of the last half of what is done: the first files are often the small ones."""


@dataclass(frozen=True, slots=True)
class Step:
    """`[3/40] Building CUDA object ...`, as ninja and make count."""

    done: int
    total: int
    what: str


def parse_step(line: str) -> Step | None:
    """A line that counts; make's percentages are steps of a hundred."""
    if (found := _NINJA.match(line)) is not None:
        done, total = int(found[1]), int(found[2])
        return Step(done, total, found[3].strip()) if 0 <= done <= total and total > 0 else None
    if (found := _MAKE.match(line)) is not None:
        done = int(found[1])
        return Step(done, 100, found[2].strip()) if done <= 100 else None
    return None


@dataclass(slots=True)
class BuildWatch:
    """What a build's output has told so far."""

    phase: str = "preparing"
    """`preparing`, `fetching`, `configuring`, `compiling`, `linking` or `packing`."""
    done: int = 0
    total: int | None = None
    current: str = ""
    """The step that was named last."""
    _moments: list[tuple[float, int]] = field(default_factory=list)

    def feed(self, line: str, now: float) -> bool:
        """Take a line in; was it about progress? `now` in seconds of any clock that does not go back."""
        step = parse_step(line)
        if step is not None:
            self._count(step, now)
            return True
        for phase, pattern in _PHASES:
            if pattern.search(line):
                if phase != self.phase and phase in ("fetching", "configuring"):
                    self._forget()
                if phase != self.phase:
                    self.current = ""
                self.phase = phase
                return True
        return False

    def _count(self, step: Step, now: float) -> None:
        fetching = "-populate" in step.what
        phase = "fetching" if fetching else "linking" if step.what.startswith("Linking") else "compiling"
        if step.total != self.total or step.done < self.done or (self.phase == "fetching") != fetching:
            # Another build within the build: CMake fetches and tries things with builds of their own.
            self._forget()
            self._moments.append((now, max(0, step.done - 1)))
        self.phase, self.done, self.total, self.current = phase, step.done, step.total, plain(step.what)[:200]
        self._moments.append((now, step.done))

    def _forget(self) -> None:
        self._moments.clear()
        self.done, self.total, self.current = 0, None, ""

    def seconds_left(self, now: float) -> float | None:
        """Until the last step is done, by the rate so far; None before that can be said."""
        if self.total is None or not self._moments or self.done == 0:
            return None
        left = self.total - self.done
        if left == 0:
            return 0.0
        since, at = self._moments[0]
        for moment, done in self._moments:
            if done <= self.done * _SMOOTH:
                since, at = moment, done
        made, took = self.done - at, now - since
        return left * took / made if made > 0 and took > 0 else None

    def told(self, now: float) -> str:
        """In words."""
        if self.total is None:
            return self.phase
        left = self.seconds_left(now)
        eta = f", about {human_seconds(left)} left" if left is not None and self.done < self.total else ""
        return f"{self.phase} {self.done}/{self.total}{eta}"
