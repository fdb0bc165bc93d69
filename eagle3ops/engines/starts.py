"""What did the start of a server take, phase by phase, and what did it load and set aside?"""

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from eagle3ops.engines.base import Adapter, LogFact

_MOST_BYTES = 32 << 20


@dataclass(slots=True)
class Start:
    """Read in the log, up to the first word that it is ready. What the log does not tell is absent."""

    ready_s: float
    """From the start of the process to its first answer."""
    phases: dict[str, float] = field(default_factory=dict)
    """Seconds by phase, in their order; `importing` is what came before the first line."""
    load_s: float | None = None
    """Reading the target's weights."""
    weights_gb: float | None = None
    draft_load_s: float | None = None
    draft_type: str | None = None
    """Class of the drafter that was loaded: the proof that one was."""
    cache_tokens: int | None = None
    """Tokens whose keys and values fit."""
    cache_gb: float | None = None
    """Of all caches, a drafter's own included."""
    graphs_s: float | None = None
    graphs_gb: float | None = None
    context_length: int | None = None
    max_running_requests: int | None = None
    free_gb: float | None = None
    """GPU memory that is left."""

    def as_json(self) -> dict[str, Any]:
        """Without what is absent."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def __str__(self) -> str:
        """A sentence for people."""
        told = [f"ready after {self.ready_s:.1f} s"]
        if self.phases:
            told.append(
                "of which " + ", ".join(f"{name} {took:.0f} s" for name, took in self.phases.items() if took >= 1)
            )
        if self.load_s is not None:
            weights = "" if self.weights_gb is None else f" ({self.weights_gb:.2f} GB)"
            told.append(f"weights loaded in {self.load_s:.2f} s{weights}")
        if self.cache_tokens is not None:
            told.append(f"room for {self.cache_tokens} tokens")
        return "; ".join(told)


def read_start(adapter: Adapter, log: Path | None, offset: int, ready_s: float) -> Start:
    """What a log says from `offset` on about one start.

    Args:
        adapter: understands it.
        log: the file; None, or one that cannot be read, tells nothing.
        offset: where this attempt began.
        ready_s: see `Start`.
    """
    if log is None:
        return Start(ready_s)
    try:
        with log.open("rb") as file:
            file.seek(offset)
            text = file.read(_MOST_BYTES).decode("utf-8", "replace")
    except OSError:
        return Start(ready_s)
    lines = re.split(r"[\r\n]+", text)
    return gather((fact for line in lines if (fact := adapter.parse_log(line)) is not None), ready_s)


def gather(facts: Iterable[LogFact], ready_s: float) -> Start:
    """The facts of one start, in their order, put together."""
    start = Start(ready_s)
    now: tuple[str, float] | None = None
    first: float | None = None
    for fact in facts:
        if fact.at is not None and fact.kind in ("phase", "ready"):
            first = fact.at if first is None else first
            if now is not None:
                start.phases[now[0]] = start.phases.get(now[0], 0.0) + max(0.0, fact.at - now[1])
            now = (str(fact.data.get("phase", "")), fact.at)
        if "what" in fact.data:
            _take(start, fact)
        if fact.kind == "ready":
            break
    if first is not None and now is not None:
        before = ready_s - (now[1] - first)
        if before >= 1:
            start.phases = {"importing": round(before, 2), **start.phases}
    return start


def _take(start: Start, fact: LogFact) -> None:
    data = fact.data
    what, rank = data.get("what"), str(data.get("rank", ""))
    if re.search(r"(?:TP|PP|DP)[1-9]", rank):
        # The others load and keep as much, at the same time.
        return
    numbers = {name: value for name, value in data.items() if isinstance(value, float)}
    if what == "weights":
        if start.load_s is None:
            start.load_s, start.weights_gb = numbers.get("seconds"), numbers.get("gb")
        else:
            start.draft_load_s, start.draft_type = numbers.get("seconds"), str(data.get("type"))
    elif what == "cache":
        size = numbers.get("k_gb", 0.0) + numbers.get("v_gb", 0.0)
        start.cache_gb = round((start.cache_gb or 0.0) + size, 3)
    elif what == "graphs":
        start.graphs_s = round((start.graphs_s or 0.0) + numbers.get("seconds", 0.0), 3)
        start.graphs_gb = round((start.graphs_gb or 0.0) + numbers.get("gb", 0.0), 3)
    elif what == "limits" and "tokens" in numbers:
        start.cache_tokens = int(numbers["tokens"])
        start.max_running_requests = int(numbers.get("requests", 0)) or None
        start.context_length = int(numbers.get("context", 0)) or None
        start.free_gb = numbers.get("free_gb")
