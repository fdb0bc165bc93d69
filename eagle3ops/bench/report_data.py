"""What does a report say? Plain data, made by whoever knows it and drawn by `report` and `plots`.

Everything in it may come from outside: names, reasons, log lines.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    """A headline number."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """A verdict of the run."""

    name: str
    passed: bool | None
    """None is UNDECIDED."""
    reason: str


@dataclass(frozen=True, slots=True)
class Table:
    """Facts in rows, for what ran on what and for the wiring."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class StageLine:
    """One stage of the run."""

    name: str
    state: str
    seconds: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Series:
    """One curve."""

    name: str
    points: tuple[tuple[float, float], ...]
    """(optimiser step, value)."""


@dataclass(frozen=True, slots=True)
class Accept:
    """Accept length of one setting, as training predicted it and as the engine served it."""

    setting: str
    served: float
    served_histogram: tuple[float, ...]
    """Verification steps by number of correct drafts."""
    predicted: float | None = None
    predicted_histogram: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Timing:
    """Throughput of one setting at batch 1."""

    label: str
    per_request: tuple[float, ...]
    """Tokens per second of every timed request."""
    tokens_per_s: float
    """Over all of them."""
    speedup: float | None = None
    """Over the baseline, paired; None for the baseline itself."""
    low: float | None = None
    high: float | None = None
    accept_length: float | None = None
    recommended: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportData:
    """Everything that a report shows; what is empty is left out."""

    title: str
    run: str
    """The run's id."""
    created: str
    figures: tuple[Figure, ...] = ()
    checks: tuple[Check, ...] = ()
    facts: tuple[Table, ...] = ()
    """Target, engine, host, versions."""
    stages: tuple[StageLine, ...] = ()
    losses: tuple[Series, ...] = ()
    """One for each TTT step."""
    accuracies: tuple[Series, ...] = ()
    """One for each TTT step, 0 to 1."""
    accept: tuple[Accept, ...] = ()
    alarm: tuple[Table, ...] = ()
    """Served against predicted by draft position, who is suspected where they differ, and how varied the text is."""
    timings: tuple[Timing, ...] = ()
    sweep: tuple[Table, ...] = ()
    """Points and winners, where settings were swept."""
    loads: tuple[Table, ...] = ()
    """Further loads: more requests in flight, arrivals of tokens, kinds of question, lengths of prompt."""
    wiring: tuple[Table, ...] = ()
    equality: tuple[Table, ...] = ()
    """Output with and without the drafter."""
    launch: str = ""
    """The command line that serves the result."""
    notes: tuple[str, ...] = ()
    """What a reader should know before quoting a number."""
