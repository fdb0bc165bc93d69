"""How long did this kind of work take here before? Rates learnt from finished stages, for forecasts."""

from pathlib import Path
from statistics import median
from typing import Any

from eagle3ops.runs.files import read_json
from eagle3ops.runs.store import DONE

RECENT = 5
"""Finished stages that are looked at, the newest first."""


def _finished(stages: Path, job: str) -> list[dict[str, Any]]:
    found = [done for folder in stages.glob(f"{job}-*/") if (done := read_json(folder / DONE)) is not None]
    return sorted(found, key=lambda done: float(done.get("finished", 0.0)), reverse=True)[:RECENT]


def past_seconds(stages: Path, job: str) -> float | None:
    """Median time of the newest finished stages of one job below this root; None where there is none."""
    times = [float(done["seconds"]) for done in _finished(stages, job) if done.get("seconds")]
    return median(times) if times else None


def forecast_seconds(stages: Path, job: str, metric: str, amount: float | None) -> float | None:
    """Time for `amount` units of work at the rate of earlier stages.

    Args:
        stages: the store's folder.
        job: whose earlier stages count.
        metric: the metric in which those stages recorded their amount.
        amount: how much is to be done; None where that is not known.
    """
    rates = [
        float(done["metrics"][metric]) / float(done["seconds"])
        for done in _finished(stages, job)
        if done.get("seconds") and done.get("metrics", {}).get(metric)
    ]
    return amount / median(rates) if amount is not None and rates else None
