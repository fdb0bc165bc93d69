"""What does the answer of `runs.wiring` say, with every value of the type it should have?"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eagle3ops.screens.feeds.values import mapping, number
from eagle3ops.words import outcome_of, outcome_word, plain

CHECKED = ("FAIL", "UNDECIDED", "not made", "PASS")
"""Outcomes of a check, those first that want to be read."""
LAYERS = 2000
"""More than any target has; a garbled answer does not fill the screen."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One fingerprint."""

    number: int
    trained: int | None
    served: int | None
    error: float | None
    margin: float | None
    runner_up: int | None
    cosine: float | None
    passed: bool | None
    """None is UNDECIDED."""
    reason: str


@dataclass(frozen=True, slots=True)
class Judged:
    """One side of the verdict."""

    name: str
    passed: bool | None
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class Check:
    """What was compared beside the layers."""

    name: str
    between: tuple[str, ...]
    verdict: str
    """`PASS`, `FAIL`, `UNDECIDED` or `not made`."""
    reason: str


@dataclass(frozen=True, slots=True)
class Side:
    """What one side says of itself."""

    label: str
    boundaries: tuple[int, ...]
    names: Mapping[str, tuple[int, ...]]
    words: str


@dataclass(frozen=True, slots=True)
class WiringView:
    """The answer of `runs.wiring`, with every value of the type it should have."""

    layers: int | None
    target: str
    stored: Side
    trained: Side
    served: Side
    verdict: str
    """`PASS`, `FAIL` or `UNDECIDED`; empty where there is none."""
    reason: str
    judged: float | None
    agreement: float | None
    least_agreement: float | None
    least_margin: float | None
    most_error: float | None
    probes: int | None
    probe_tokens: int | None
    sides: tuple[Judged, ...]
    checks: tuple[Check, ...]
    advice: tuple[str, ...]

    @property
    def of_stored(self) -> Judged | None:
        """The verdict on the stored features: verify puts it first."""
        return self.sides[0] if self.sides else None

    @property
    def of_engine(self) -> Judged | None:
        """The verdict on the engine."""
        return self.sides[1] if len(self.sides) > 1 else None


def view_of(answer: Mapping[str, Any]) -> WiringView:
    """Take an answer in; what is garbled counts as absent."""
    sides = {str(side.get("side")): side for side in _items(answer.get("sides")) if isinstance(side, Mapping)}
    verdict, needed, target = (
        mapping(answer.get("verdict")),
        mapping(answer.get("needed")),
        mapping(answer.get("target")),
    )
    layers = _whole(answer.get("layers"))
    passed = verdict.get("passed")
    named = plain(target.get("name", "")) or plain(target.get("words", ""))
    about = [f"Target {named}" if target.get("name") else named]
    if layers is not None:
        about.append(f"{layers} layers of {_whole(target.get('hidden_size')) or '?'}")
    if target.get("fingerprint"):
        about.append(f"fingerprint {plain(target['fingerprint'])[:12]}")
    return WiringView(
        layers=layers if layers is not None and 0 < layers <= LAYERS else None,
        target=", ".join(part for part in about if part),
        stored=_side(sides.get("stored"), "stored features"),
        trained=_side(sides.get("trained"), "drafter"),
        served=_side(sides.get("served"), "engine"),
        verdict=outcome_word(outcome_of(verdict)) if isinstance(passed, bool) else "",
        reason=plain(verdict.get("reason") or answer.get("words") or ""),
        judged=number(answer.get("judged")),
        agreement=number(verdict.get("greedy_agreement")),
        least_agreement=number(needed.get("greedy_agreement")),
        least_margin=number(needed.get("margin")),
        most_error=number(needed.get("error")),
        probes=_whole(needed.get("probes")),
        probe_tokens=_whole(needed.get("probe_tokens")),
        sides=tuple(_judged(side) for side in _items(verdict.get("sides"))[:8] if isinstance(side, Mapping)),
        checks=tuple(_check(check) for check in _items(verdict.get("checks"))[:32] if isinstance(check, Mapping)),
        advice=tuple(plain(text) for text in _items(answer.get("advice"))[:8]),
    )


def _items(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _whole(value: object) -> int | None:
    return value if type(value) is int and abs(value) < 1 << 31 else None


def _side(side: object, label: str) -> Side:
    facts = mapping(side)
    boundaries = tuple(k for k in _items(facts.get("boundaries"))[:64] if _whole(k) is not None)
    names = {
        str(name): tuple(k for k in _items(ids)[:64] if _whole(k) is not None)
        for name, ids in mapping(facts.get("names")).items()
        if isinstance(ids, list)
    }
    return Side(plain(facts.get("label") or label)[:60], boundaries, names, plain(facts.get("words") or ""))


def _check(check: Mapping[str, Any]) -> Check:
    said = check.get("verdict")
    return Check(
        plain(check.get("name") or "check")[:40].replace("_", " "),
        tuple(plain(side)[:20] for side in _items(check.get("between"))[:2]),
        said if said in CHECKED else "not made",
        plain(check.get("reason") or ""),
    )


def _judged(side: Mapping[str, Any]) -> Judged:
    segments = [segment for segment in _items(side.get("segments"))[:64] if isinstance(segment, Mapping)]
    return Judged(
        plain(side.get("side", ""))[:60],
        outcome_of(side),
        tuple(
            Segment(
                number=at if (given := _whole(segment.get("segment"))) is None else given,
                trained=_whole(segment.get("trained")),
                served=_whole(segment.get("served")),
                error=number(segment.get("error")),
                margin=number(segment.get("margin")),
                runner_up=_whole(segment.get("runner_up")),
                cosine=number(segment.get("cosine")),
                passed=outcome_of(segment),
                reason=plain(segment.get("reason") or ""),
            )
            for at, segment in enumerate(segments)
        ),
    )
