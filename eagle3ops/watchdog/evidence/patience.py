"""How is something asked that may never answer, without waiting for it for ever?

Reading /proc/PID/cmdline waits for the lock of that process's memory map, a file on a dead network mount waits for its
server, and neither wait can be interrupted. So questions are put by threads that nobody has to wait for: one that is
late is left behind (it ends with its question, at the latest with this process) and another takes its place.
"""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
Value = TypeVar("Value")
_LOOK_S = 0.02


@dataclass(frozen=True, slots=True)
class Answer(Generic[Value]):
    """What came of one question."""

    value: Value | None
    missing: str = ""
    """Why there is no value, for people; empty when there is one."""


class _Worker(threading.Thread):
    def __init__(self, ask: Callable[[Any], Any], todo: "queue.SimpleQueue[Any]", done: "queue.SimpleQueue[Any]"):
        super().__init__(name="evidence", daemon=True)
        self._ask, self._todo, self._done = ask, todo, done
        self.busy: tuple[int, float] | None = None
        """Number of the question and since when it is asked."""

    def run(self) -> None:
        while True:
            try:
                number, item = self._todo.get_nowait()
            except queue.Empty:
                return
            self.busy = (number, time.monotonic())
            try:
                answer: Answer[Any] = Answer(self._ask(item))
            except Exception as error:  # noqa: BLE001 - evidence is taken from a machine in trouble: say what went wrong and go on
                answer = Answer(None, f"{type(error).__name__}: {error}"[:300])
            self.busy = None
            self._done.put((number, answer))


def ask_each(
    items: Sequence[Item],
    ask: Callable[[Item], Value],
    *,
    each_s: float,
    until: float,
    at_once: int = 4,
) -> list[Answer[Value]]:
    """Put one question to each item; the answers come in the order of the items.

    Args:
        items: what is asked.
        ask: the question; whatever it raises is told as missing.
        each_s: seconds that one question may take. Its thread goes on after that, so it must have no effect of its own.
        until: `time.monotonic()` at which everything is over.
        at_once: so many are asked at the same time.
    """
    todo: queue.SimpleQueue[Any] = queue.SimpleQueue()
    done: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for pair in enumerate(items):
        todo.put(pair)
    answers: dict[int, Answer[Value]] = {}
    workers = [_start(ask, todo, done) for _ in range(min(at_once, len(items)))]
    while len(answers) < len(items):
        try:
            number, answer = done.get(timeout=_LOOK_S)
            # An answer to a question that was given up is not taken any more: it has been told as missing.
            answers.setdefault(number, answer)
            continue
        except queue.Empty:
            pass
        now = time.monotonic()
        if now >= until:
            break
        for place, worker in enumerate(workers):
            busy = worker.busy
            if busy is not None and now - busy[1] > each_s:
                answers.setdefault(busy[0], Answer(None, f"no answer within {each_s:g} s"))
                workers[place] = _start(ask, todo, done)
    # Nobody begins another one.
    while True:
        try:
            todo.get_nowait()
        except queue.Empty:
            break
    late: Answer[Value] = Answer(None, "no time was left for it")
    return [answers.get(number, late) for number in range(len(items))]


def ask_once(ask: Callable[[], Value], *, limit_s: float) -> Answer[Value]:
    """Put one question, and wait at most `limit_s` seconds for the answer."""
    return ask_each([None], lambda _: ask(), each_s=limit_s, until=time.monotonic() + limit_s)[0]


def _start(ask: Callable[[Any], Any], todo: Any, done: Any) -> _Worker:
    worker = _Worker(ask, todo, done)
    worker.start()
    return worker
