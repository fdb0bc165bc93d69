"""Which jobs are there, and in which order? A module or a folder for each: its Spec, its plan(), its run().

In a folder the job stands in `job.py`, beside the helpers that are its own; what several jobs share stands in the rooms
below them. The registry is by name and imports a job's module only when it is asked for, so that a job's own libraries
are not loaded by those who want another.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eagle3ops.runs.job import Job
    from eagle3ops.spec.base import StageSpec

_JOBS = {
    "fetch": ("fetch", "Fetch"),
    "generate": ("generate", "Generate"),
    "extract": ("extract.job", "Extract"),
    "train": ("train.job", "Train"),
    "serve": ("serve.job", "Serve"),
    "verify": ("verify", "Verify"),
    "bench": ("bench.job", "Bench"),
    "profile": ("profile", "ProfileJob"),
    "sweep": ("sweep.job", "Sweep"),
    "report": ("report.job", "Report"),
    "compare": ("compare.job", "Compare"),
    "build": ("build", "Build"),
}
"""Job name -> module and class, in the order in which the whole pipeline runs."""
_APART = frozenset({"profile", "sweep", "compare", "build"})
"""Those that the pipeline does not run: they are asked for by name."""


def names() -> list[str]:
    """All jobs, in pipeline order, those that are only run by name among them."""
    return list(_JOBS)


def job(name: str) -> "type[Job]":
    """The job class called `name`.

    Raises:
        KeyError: there is no such job.
    """
    module, its_class = _JOBS[name]
    found: type[Job] = getattr(import_module(f"eagle3ops.jobs.{module}"), its_class)
    return found


def specs() -> "dict[str, type[StageSpec]]":
    """The Spec of every job, by job name, for reading a pipeline file."""
    return {name: job(name).Spec for name in _JOBS}


def order(target: str) -> list[str]:
    """The jobs that `target` needs, itself last; `pipeline` means all but those apart."""
    if target == "pipeline":
        return [name for name in _JOBS if name not in _APART]
    wanted: set[str] = set()
    pending = [target]
    while pending:
        name = pending.pop()
        if name not in wanted:
            wanted.add(name)
            pending.extend(job(name).needs)
    return [name for name in _JOBS if name in wanted]
