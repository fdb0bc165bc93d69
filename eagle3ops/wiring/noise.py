"""How far may the states of a right wiring be from the reference? As far as was measured, and a margin for safety.

The figures stand in `assets/wiring_noise.toml`, each with its source; `benchmarks/wiring_noise.py` measures more.
"""

import tomllib
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any

DTYPES = {"auto": "bfloat16", "half": "float16", "fp16": "float16", "bf16": "bfloat16", "float": "float32"}
"""Other names of dtypes, as engines take them."""


STORED = ", stored"
"""Behind the dtype of a row that is about files and not about an engine."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What the states of a right wiring came to."""

    engine: str
    version: str
    device: str
    """`cpu`, `cuda`, or `any`."""
    dtype: str
    target: str
    error: float
    """The worst text's mean relative error."""
    margin: float
    """How many times farther the second nearest boundary was, at least."""
    source: str


@dataclass(frozen=True, slots=True)
class Limits:
    """What a verdict goes by."""

    error: float
    """Relative error up to which a segment may be a boundary that is nearest: measured noise times `safety`."""
    margin: float
    """The nearest boundary has to be this many times nearer than the second."""
    unrelated: float
    """From this relative error on nothing of the target is near: measured states of another text, and a margin."""
    source: str
    """Where `error` comes from, in words."""

    def as_dict(self) -> dict[str, float | str]:
        """For the record of a verdict."""
        return {"error": self.error, "margin": self.margin, "unrelated": self.unrelated, "source": self.source}


NEAR_TIE = 0.3
"""Logits that are nearer to each other than this may change places by rounding: all misses of a right wiring were."""


@cache
def greedy_wrong() -> float:
    """Share of greedy tokens below which final state, norm or head are wrong."""
    return float(_data()["greedy"]["wrong"])


@cache
def _data() -> dict[str, Any]:
    text = resources.files("eagle3ops.assets").joinpath("wiring_noise.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


@cache
def table() -> tuple[Measured, ...]:
    """All that was measured."""
    return tuple(Measured(**row) for row in _data()["measured"])


def limits(dtype: str | None = None, device: str | None = None, *, most: float | None = None) -> Limits:
    """The limits for states that were computed so.

    Args:
        dtype: as a pipeline file names it; None, or one that was never measured, takes the coarsest that is known.
        device: `cpu`, `cuda`, `cuda:1`; likewise.
        most: a relative error that somebody has set by hand, which counts in place of what was measured.
    """
    rows, data = table(), _data()
    safety, floor, unrelated = float(data["safety"]), float(data["floor"]), float(data["unrelated"]["limit"])
    computed = [row for row in rows if not row.dtype.endswith(STORED)]
    name = DTYPES.get(dtype or "", dtype)
    place = (device or "").partition(":")[0]
    fitting = [row for row in rows if row.dtype == name and row.device in (place, "any")]
    # Of what was measured finely no finer margin is asked than of the coarsest: it is to tell layers, not noise.
    margin = round(min(row.margin for row in (*fitting, *computed)) / safety, 2)
    if most is not None:
        return Limits(most, margin, max(unrelated, most), f"set by hand: {most:g}")
    worst = max(fitting or computed, key=lambda row: row.error)
    where = f"{worst.error:.2g} was the most that a right wiring showed in {worst.dtype}"
    where += f" on {worst.device}" if worst.device != "any" else ""
    if not fitting:
        where += f" ({name or 'this dtype'} on {place or 'this device'} was never measured)"
    told = f"{where} ({worst.engine} {worst.version}), times {safety:g} for safety"
    if worst.error * safety < floor:
        told += f", and {floor:g} at least"
    return Limits(round(max(worst.error * safety, floor), 5), margin, unrelated, told)


def coarser(one: Limits, other: Limits) -> Limits:
    """Of two limits what allows more: states that were computed in one dtype and kept in another."""
    wide = one if one.error >= other.error else other
    return replace(wide, margin=min(one.margin, other.margin))
