"""Which runs does the ledger know, which of them does a person ask for, and in which order?

Made from the answers of `ledger.rows`, without a terminal. They come from another machine: what is no row is passed
over, a value of the wrong kind counts as absent.
"""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from eagle3ops.screens.feeds.values import mapping, number
from eagle3ops.screens.feeds.watching import status_of_verdicts
from eagle3ops.words import outcome_word, plain

MOST = 100_000
"""Rows held at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRow:
    """One run, in plain text."""

    run_id: str
    name: str
    job: str
    status: str
    """As the run's, or `verdict FAIL`, `verdict UNDECIDED`, or `deleted`: only its notes are left."""
    created: float | None
    started: float | None
    ended: float | None
    cause: str
    stages: tuple[tuple[str, str], ...]
    figures: Mapping[str, float]
    """`stage/name` -> last value."""
    verdicts: Mapping[str, bool | None]
    """None is UNDECIDED."""
    patches: Mapping[str, str]
    """Recipe -> standing, of what was changed in the source of its engines."""
    notes: int
    note: Mapping[str, str]
    """What was last said as hypothesis, change and outcome."""
    words: str
    """Everything in it that a person may look for, in small letters."""

    @property
    def when(self) -> float:
        """When it ended, or else started, or was made."""
        return self.ended or self.started or self.created or 0.0

    @property
    def began(self) -> float:
        """When it was made, or else as `when` says."""
        return self.created or self.when

    @property
    def took(self) -> float | None:
        """Seconds from start to end; None for a run that goes on or never started."""
        if self.started is None or self.ended is None or self.status == "running":
            return None
        return max(0.0, self.ended - self.started)

    def figure(self, *names: str) -> float | None:
        """The first of these figures that the run has, whichever stage found it."""
        for name in names:
            for known, value in self.figures.items():
                if known.rpartition("/")[2] == name:
                    return value
        return None

    @property
    def speedup(self) -> float | None:
        """Against the baseline, 1.0 is no gain."""
        return self.figure("speedup")

    @property
    def accept_length(self) -> float | None:
        """Tokens per verification step, as served."""
        return self.figure("accept_length_served")

    @property
    def wiring(self) -> str:
        """The wiring verdict in a word; empty where there is none."""
        found = (outcome_word(passed) for name, passed in self.verdicts.items() if name.endswith("/wiring"))
        return next(found, "")

    @property
    def failed(self) -> tuple[str, ...]:
        """Verdicts that are FAIL, or UNDECIDED."""
        return tuple(name for name, passed in self.verdicts.items() if not passed)


def read_row(row: object) -> LedgerRow | None:
    """One row of an answer; None for what is none."""
    facts = mapping(row)
    run_id = plain(facts.get("run_id") or "")[:200]
    if not run_id:
        return None
    status, exit_code = _text(facts.get("status")) or "?", facts.get("exit_code")
    if status == "done" and exit_code == 3:
        status = status_of_verdicts(_text(facts.get("cause")))
    parts = run_id.split("-", 2)
    name, job, cause = parts[2] if len(parts) == 3 else run_id, _text(facts.get("job")), _text(facts.get("cause"))
    figures = {plain(key): value for key, raw in _items(facts.get("figures")) if (value := number(raw)) is not None}
    verdicts = {plain(key): None if passed is None else passed is True for key, passed in _items(facts.get("verdicts"))}
    note = {plain(key): _text(text) for key, text in _items(facts.get("note")) if _text(text)}
    patches = {plain(key)[:100]: _text(standing)[:100] for key, standing in _items(facts.get("patches"))}
    told = [f"{key}:{outcome_word(passed).lower()}" for key, passed in verdicts.items()]
    told += [f"patch:{recipe}" for recipe in patches]
    words = [run_id, job, status, cause, *figures, *told, *note.values()]
    return LedgerRow(
        run_id=run_id,
        name=name,
        job=job,
        status=status,
        created=number(facts.get("created")),
        started=number(facts.get("started")),
        ended=number(facts.get("ended")),
        cause=cause,
        stages=tuple((plain(key), _text(stage)) for key, stage in _items(facts.get("stages"))),
        figures=figures,
        verdicts=verdicts,
        patches=patches,
        notes=int(min(1e6, max(0.0, number(facts.get("notes")) or 0.0))),
        note=note,
        words=" ".join(words).lower(),
    )


def _items(value: object) -> list[tuple[Any, Any]]:
    return list(mapping(value).items())[:200]


def _text(value: object) -> str:
    return plain(value)[:2000] if isinstance(value, str) else ""


@dataclass(slots=True)
class Book:
    """All rows that were sent until now."""

    generation: str | None = None
    since: int = 0
    rows: dict[str, LedgerRow] = field(default_factory=dict)
    total: int = 0
    pending: int = 0
    """Runs whose figures the host has not read yet."""
    more: bool = False
    """Rows are still to come: ask again at once."""
    version: int = 0
    """Grows with every change."""

    def take(self, answer: Mapping[str, Any]) -> None:
        """Learn from an answer."""
        generation = answer.get("generation")
        fresh = isinstance(generation, str) and generation != self.generation
        if fresh:
            self.rows, self.since = {}, 0
        sent = answer.get("rows")
        for raw in sent if isinstance(sent, list) else ():
            row = read_row(raw)
            if row is not None and len(self.rows) < MOST:
                self.rows[row.run_id] = row
        since = answer.get("version")
        before = (self.generation, self.since, self.total, self.pending)
        self.generation = generation if isinstance(generation, str) else None
        self.since = since if isinstance(since, int) and not isinstance(since, bool) else 0
        self.total = int(number(answer.get("total")) or len(self.rows))
        self.pending = int(number(answer.get("pending")) or 0)
        self.more = answer.get("more") is True and bool(sent)
        if (self.generation, self.since, self.total, self.pending) != before:
            self.version += 1

    def view(self, words: str, order: str) -> list[LedgerRow]:
        """The rows that fit the filter, in an order that `ORDERS` names."""
        fits = matcher(words)
        key = ORDERS.get(order) or ORDERS["newest"]
        return sorted((row for row in self.rows.values() if fits(row)), key=key)


def _best(value: float | None) -> tuple[bool, float]:
    """The highest first, what is not known last."""
    return value is None, -(value or 0.0)


ORDERS: Mapping[str, Callable[[LedgerRow], Any]] = {
    "newest": lambda row: (-row.began, row.run_id),
    "speedup": lambda row: (_best(row.speedup), row.run_id),
    "accept length": lambda row: (_best(row.accept_length), row.run_id),
    "time taken": lambda row: (_best(row.took), row.run_id),
    "name": lambda row: (row.name.rpartition("-")[0], -row.began),
    "status": lambda row: (row.status, -row.began),
}

_COMPARISON = re.compile(r"([A-Za-z_][\w/ .-]*?)(<=|>=|<|>|=)(-?\d+(?:\.\d*)?)(x|%|s|h)?")
_OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
    "=": lambda one, other: abs(one - other) <= 1e-9 + 1e-6 * abs(other),
}
_SHORT = {"accept": "accept_length_served", "gap": "accept_length_gap"}


def matcher(words: str) -> Callable[[LedgerRow], bool]:
    """Whether a row fits: it holds every word, none that follows a `-`, and its figures are as `speedup>1.2` says."""
    tests: list[Callable[[LedgerRow], bool]] = []
    for word in words.lower().split():
        found = _COMPARISON.fullmatch(word)
        if found is not None:
            tests.append(_compares(found[1], _OPERATORS[found[2]], float(found[3]) * (3600 if found[4] == "h" else 1)))
        elif word.startswith("-") and len(word) > 1:
            tests.append(lambda row, word=word[1:]: word not in row.words)  # type: ignore[misc]
        else:
            tests.append(lambda row, word=word: word in row.words)  # type: ignore[misc]
    return lambda row: all(test(row) for test in tests)


def _compares(name: str, compare: Callable[[Any, Any], bool], wanted: float) -> Callable[[LedgerRow], bool]:
    def test(row: LedgerRow) -> bool:
        if name == "notes":
            return compare(float(row.notes), wanted)
        value = row.took if name == "took" else row.figure(_SHORT.get(name, name))
        if value is None and name != "took":
            value = next((figure for known, figure in row.figures.items() if name in known), None)
        return value is not None and compare(value, wanted)

    return test


def best(rows: Sequence[LedgerRow], figure: Callable[[LedgerRow], float | None]) -> str | None:
    """Which of some runs has the highest figure; None when none has one."""
    known = [(value, row.run_id) for row in rows if (value := figure(row)) is not None]
    return max(known)[1] if known else None
