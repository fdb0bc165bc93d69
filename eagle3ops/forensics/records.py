"""What happened in one log? Its lines become findings: exceptions with their chains, errors, and how far the work came.

A traceback is followed for each process on its own, because those of many ranks are written through each other. Every
line is also weighed by itself, so that a log with lines missing still says what is left in it.
"""

import re
from collections import deque
from collections.abc import Iterable, Iterator

from eagle3ops.forensics.clocks import Moments
from eagle3ops.forensics.findings import Course, Finding, Trace
from eagle3ops.forensics.fingerprint import frame_of
from eagle3ops.forensics.lines import Line, spoken_rank
from eagle3ops.forensics.signatures import (
    ERROR,
    PYTHON,
    Kind,
    course,
    fatal,
    meaning,
    once_ready,
    refused,
    retried,
    stopped,
)

FINDINGS = 4000
"""Findings of one log that are kept: the first and the last."""

_HEAD = "Traceback (most recent call last)"
_CHAIN = ("During handling of the above exception", "The above exception was the direct cause")
_RAISED = re.compile(
    r"^\W{0,3}(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Iteration|Timeout|Failure|Abort|Empty|Full|Warning))"
    r"(?:\(.*\))?(?P<said>:|$)"
)
_ANY_RAISED = re.compile(r"^(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w+)(?P<said>: |$)")
_BENIGN = ("StopIteration", "StopAsyncIteration", "GeneratorExit", "queue.Empty", "Empty", "CancelledError")
_WORDS = re.compile(r"(?i)\berror\b|\bfail(?:ed|ure)\b|\bexception\b|\bfatal\b")
_TOLD = re.compile(r"(?:^|\s)(?:fatal )?error: \S")
"""As compilers, linkers and command lines say it."""
_HEADING = re.compile(r":\s*$|validation errors? for")
_MESSAGE_LINES = 80
LOST = 86
"""Most weight of what stands between the frames of a traceback whose exception is lost: it may be source."""


class Reader:
    """Reads the lines of one log in order; `findings` and `course` are what it saw."""

    def __init__(self) -> None:
        self.course = Course()
        self._first: list[Finding] = []
        self._last: deque[Finding] = deque(maxlen=FINDINGS // 2)
        self._open: dict[str, Trace] = {}
        self._latest: Trace | None = None
        self._traces = 0
        self._chain: dict[str, Finding | None] = {}
        self._time: float | None = None
        self._dumped = ""
        self._main = False
        self.names: dict[int, str] = {}
        self._seen: dict[str, int] = {}
        """Of each process, how many lines of this log were read when it first wrote one."""
        self._fatal_at = 0
        self._serving = False
        self.moments = Moments()

    @property
    def findings(self) -> Iterator[Finding]:
        """The troubles, in the order of the log."""
        yield from self._first
        yield from self._last

    def name(self, line: Line, otherwise: str) -> str:
        """The file that a line is from."""
        return self.names.get(line.file, otherwise)

    def read(self, lines: Iterable[Line]) -> "Reader":
        """All lines of one log."""
        for line in lines:
            if line.text:
                self._take(line)
        return self

    def _take(self, line: Line) -> None:
        self._follow(line)
        self._time = line.time if line.time is not None else self._time
        body = line.body.strip()
        trace = self._trace_of(line, body)
        if any(words in body for words in _CHAIN):
            self._chain[line.process] = trace.raised if trace is not None else self._chain.get(line.process)
            return
        if _HEAD in body:
            self._open_trace(line, body)
            return
        if trace is None and body.startswith('File "') and ", line " in body:
            # The head of the traceback is lost.
            trace = self._open_trace(line, "")
        if trace is not None and trace.raised is None and self._in_trace(trace, line, body):
            return
        if trace is not None and trace.raised is not None:
            trace.message += 1
        self._weigh(line, body, trace)

    # ------------------------------------------------------------------ tracebacks

    def _open_trace(self, line: Line, body: str) -> Trace:
        self._traces += 1
        before = body.partition(_HEAD)[0].strip(" :|+")
        trace = Trace(self._traces, line, bare=(not line.named and not line.stamped) or bool(before))
        trace.chained = line.process in self._chain
        trace.mild = line.level in ("WARNING", "INFO", "DEBUG")
        self._lost(self._open.get(line.process))
        self._open[line.process] = trace
        self._latest = trace
        if len(self._open) > 4096:
            self._lost(self._open.pop(next(iter(self._open))))
        if before:
            self._weigh(line, body, None)
        return trace

    def _trace_of(self, line: Line, body: str) -> Trace | None:
        """The traceback that a line goes on with, if any."""
        found = self._open.get(line.process)
        if found is None and not line.named and not line.stamped and self._latest is not None and self._latest.bare:
            found = self._latest
        if found is None:
            return None
        new_record = line.stamped and (found.bare or line.level != found.head.level)
        if found.raised is not None and (new_record or found.message > _MESSAGE_LINES):
            for key in [key for key, trace in self._open.items() if trace is found]:
                del self._open[key]
            self._latest = None if self._latest is found else self._latest
            return None
        return None if new_record else found

    def _in_trace(self, trace: Trace, line: Line, body: str) -> bool:
        """Takes a line between the head of a traceback and its exception; False: it is not of it."""
        if not body or set(body) <= set("^~ "):
            return True
        raised = _RAISED.match(body) or (_ANY_RAISED.match(body) if not line.body[:1].isspace() else None)
        if raised is not None and not line.body.startswith("  "):
            self._raise(trace, line, body, raised)
            return True
        if line.body[:1].isspace() or body.startswith("File "):
            if (frame := frame_of(body)) is not None:
                trace.frames.append(frame)
            kind = meaning(body)
            if kind is not None and kind.role == "root" and kind.weight >= 88 and not body.startswith("File "):
                trace.told = self._made(line, kind, min(kind.weight - 4, LOST), trace)
            trace.source = line if not body.startswith("File ") else trace.source
            return True
        return body.startswith(("[Previous line", "| ", "+-"))

    def _raise(self, trace: Trace, line: Line, body: str, raised: "re.Match[str]") -> None:
        kind = meaning(body)
        name = raised["type"].rpartition(".")[2]
        if kind is None or kind.role == "noise":
            kind = PYTHON
        found = self._add(line, kind, kind.weight, trace)
        trace.raised = found
        earlier = self._chain.pop(line.process, None)
        if name in _BENIGN:
            found.weight, found.why = 20, "ends a loop or a wait by design"
        elif earlier is not None and trace.chained and earlier.weight > 20:
            # The first of a chain is the cause; but where only the later one says what is wrong, that one counts.
            if earlier.weight + 8 >= found.weight:
                found.weight, found.why = min(found.weight, earlier.weight - 5), "raised because of the one before it"
            elif earlier.kind is PYTHON:
                earlier.weight, earlier.why = 50, "what was raised because of it says what is wrong"
        bare = not body[raised.end() :].strip()
        if bare and name == "AssertionError" and trace.source is not None:
            asserted = meaning(trace.source.body.strip()) or PYTHON
            asserted = PYTHON if asserted.role not in ("root", "exception") else asserted
            found.weight = min(found.weight, 50)
            found.why = "says nothing; the line of source before it does"
            self._add(trace.source, asserted, max(asserted.weight, 71), trace)

    # ------------------------------------------------------------------ lines by themselves

    def _weigh(self, line: Line, body: str, trace: Trace | None) -> None:
        kind = meaning(body)
        if kind is not None and kind.role == "noise":
            return
        in_message = trace is not None and trace.raised is not None
        if kind is None and in_message and trace is not None and trace.raised is not None and trace.message == 1:
            # `Error(s) in loading state_dict:` is a heading; what is wrong stands below it.
            heading = trace.raised
            if _HEADING.search(heading.line.body) and heading.kind.role != "consequence" and heading.weight < 85:
                self._add(line, heading.kind, heading.weight + 1, trace)
            return
        if kind is None:
            raised = _RAISED.match(body)
            if raised is not None and not raised["type"].endswith("Warning") and not in_message:
                self._add(line, PYTHON, 66, trace)
            elif not in_message and (
                _TOLD.search(body) if line.level not in ("ERROR", "FATAL") else _WORDS.search(body)
            ):
                self._add(line, ERROR, ERROR.weight, trace)
            return
        kind = once_ready(kind, body) if self._serving else kind
        self._add(line, kind, kind.weight, trace)

    def _lost(self, trace: Trace | None) -> None:
        """A traceback is over: where its exception is not there, what stands between its frames counts."""
        if trace is not None and trace.raised is None and trace.told is not None:
            self._keep(trace.told)
            trace.told = None

    def finish(self) -> None:
        """No more lines will come."""
        for trace in self._open.values():
            self._lost(trace)

    def _add(self, line: Line, kind: Kind, weight: float, trace: Trace | None) -> Finding:
        found = self._made(line, kind, weight, trace)
        self._keep(found)
        return found

    def _made(self, line: Line, kind: Kind, weight: float, trace: Trace | None) -> Finding:
        found = Finding(line, kind, weight, spoken_rank(line), trace.number if trace is not None else 0)
        found.progress, found.at = self.course.progress, self.course.lines
        found.time = self._time
        found.frames = tuple(trace.frames) if trace is not None else ()
        if (line.level in ("WARNING", "INFO", "DEBUG") or (trace is not None and trace.mild)) and kind.role != "hang":
            found.mild, found.why = True, f"said as {(line.level or 'WARNING').lower()}"
            found.weight -= 12
        if retried(line.body):
            found.mild, found.why = True, "was done again, or done without"
            found.weight -= 30
        return found

    def _keep(self, found: Finding) -> None:
        if found.kind.role == "consequence" and not found.mild and fatal(found.line.body):
            self.course.fatal, self.course.anew, self._fatal_at = found.line, 0, self.course.lines + 1
        if len(self._first) < FINDINGS // 2:
            self._first.append(found)
        else:
            self._last.append(found)

    def _follow(self, line: Line) -> None:
        now = self.course
        now.lines += 1
        rank = spoken_rank(line)
        if rank is not None and rank < 65536 and len(now.ranks) < 65536:
            now.ranks.add(rank)
        now.last = line
        self._stacks(line)
        if now.stopped is None and stopped(line.body):
            now.stopped = line
        if refused(line.body):
            self._refuse(line)
        step = course(line.body)
        if line.time is not None:
            self.moments.take(line.body, line.time)
        if len(self._seen) < 4096:
            self._seen.setdefault(line.process, now.lines)
        if step == "progress":
            now.progress += 1
            if now.fatal is not None and self._seen.get(line.process, 0) >= self._fatal_at:
                now.anew += 1
            if _STARTING.search(line.body) is None:
                now.working += 1
            elif now.phase is not None:
                now.phase = line
        elif step == "ready":
            now.ready, self._serving = line, True
        elif step == "finished":
            now.finished = line
        elif step == "phase":
            now.phase, now.working, self._serving = line, 0, False
        size = _WORLD.search(line.body)
        if size is not None:
            now.world = max(now.world, int(next(group for group in size.groups() if group)))

    def _refuse(self, line: Line) -> None:
        """A server says that it refused a request: what it said just before was about that request."""
        for found in (*reversed(self._last), *reversed(self._first)):
            if self.course.lines - found.at > REFUSED_WITHIN or found.progress != self.course.progress:
                return
            if found.line.process == line.process and found.kind.role in ("exception", "root", "error"):
                found.mild, found.why, found.weight = True, "one request was refused because of it", 20

    def _stacks(self, line: Line) -> None:
        """Follows dumps of stacks as py-spy prints them."""
        body = line.body
        header = _DUMPED.match(body)
        if header is not None:
            self._dumped = _label(line, header)
            self._main = False
        elif self._dumped:
            if body.startswith("Thread "):
                self._main = "MainThread" in body
            elif self._main and body[:1].isspace():
                call = _CALL.match(body.strip())
                stack = self.course.stacks.get(self._dumped, ())
                if call is not None and len(stack) < 12 and len(self.course.stacks) < 4096:
                    self.course.stacks[self._dumped] = (*stack, f"{call[1]} {call[2]}")
            elif line.stamped:
                self._dumped = ""


def _label(line: Line, header: "re.Match[str]") -> str:
    """Which process was dumped: the ranks in its name, or its number."""
    ranks = re.findall(r"[A-Z]{2}\d+", header[2])
    return " ".join(ranks) or f"pid {header[1]}"


REFUSED_WITHIN = 6
"""Lines between what went wrong with a request and the line that says that it was refused."""
_DUMPED = re.compile(r"Process (\d+): (.{0,400})")
_CALL = re.compile(r"(\S+) \(([^:()]+\.py)(?::\d+)?\)")
_STARTING = re.compile(r"(?i)\bshards?:|capturing|loading|\bgraph|compil|warm|autotun")
_WORLD = re.compile(
    r"\bworld[_ ]size[= ]{1,3}(\d{1,5})\b|tensor_parallel_size'?[=:] ?(\d{1,4})\b|\btp_size=(\d{1,4})\b"
    r"|nproc[_-]per[_-]node[= ](\d{1,4})\b"
)
