"""Where in the logs of a run does something point to?"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LogPlace:
    """A byte of a log of a run."""

    run_id: str
    log: str
    """Its name below the run's folder of logs: `train.log`."""
    offset: int | None = None
    """None is the end."""
