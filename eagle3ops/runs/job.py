"""What is a job? A name, its settings, what it reads, what it would cost, and how it runs."""

import contextlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from os import environ
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol, cast

from eagle3ops.errors import Eagle3opsError
from eagle3ops.locations import expanded
from eagle3ops.spec.base import StageSpec
from eagle3ops.spec.models import Pipeline

if TYPE_CHECKING:
    from eagle3ops.runs.context import Context

__all__ = ["Forecast", "Job", "Plan", "PlanContext", "Registry", "StageSpec", "load_registry"]


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a stage is expected to need; None where it cannot be said."""

    tokens: int | None = None
    disk_bytes: int | None = None
    """Bytes it adds below the root."""
    memory_bytes: int | None = None
    """Bytes of host memory at its peak."""
    gpu_memory_bytes: int | None = None
    """Bytes of memory on the fullest GPU at its peak."""
    seconds: float | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """What a stage reads, writes and is expected to need."""

    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    forecast: Forecast = field(default_factory=Forecast)
    refusal: Eagle3opsError | None = None
    """Why it cannot run here as it is set; told before anything starts, if it is to be run and not done already."""


@dataclass(frozen=True, slots=True)
class PlanContext:
    """What `Job.plan` may look at."""

    pipeline: Pipeline
    spec: StageSpec
    out: Path
    """Where the stage would write; may not exist yet."""
    inputs: Mapping[str, Path]
    """Output folders of those upstream stages that are done already."""
    plans: Mapping[str, Plan]
    """Plans of the stages before this one."""
    cache: Path

    def upstream_tokens(self, stage: str) -> int | None:
        """Tokens that `stage` is expected to make; None when it cannot be said."""
        plan = self.plans.get(stage)
        return plan.forecast.tokens if plan else None

    def target_config(self) -> dict[str, object] | None:
        """The target's `config.json` (a multimodal target's text part), once it is on this machine."""
        folders = [expanded(self.pipeline.target.model)]
        fetched = self.inputs.get("fetch")
        if fetched is not None:
            folders += [fetched, fetched / "model", fetched / "target"]
            with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
                folders.append(Path(json.loads((fetched / "target.json").read_text())["path"]))
        for folder in folders:
            with contextlib.suppress(OSError, ValueError):
                config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
                if isinstance(config, dict):
                    text = config.get("text_config")
                    return text if isinstance(text, dict) else config
        return None

    def target_hidden_size(self) -> int | None:
        """Width of the target's hidden states; None as long as the target is not on this machine."""
        size = (self.target_config() or {}).get("hidden_size")
        return size if isinstance(size, int) else None


class Job(ABC):
    """One stage of a pipeline. Killed at any moment and started again it must end with the same result."""

    name: ClassVar[str]
    Spec: ClassVar[type[StageSpec]]
    needs: ClassVar[tuple[str, ...]] = ()
    """Upstream stages whose output folders it reads."""
    reads: ClassVar[tuple[str, ...]] = ()
    """What its result depends on besides its own spec: "target", "engine", "seed", or "stages.NAME"."""
    code: ClassVar[tuple[str, ...]] = ()
    """Packages and modules (dotted) whose source its result depends on."""
    uses_gpu: ClassVar[bool] = False
    """It runs on GPUs where there are any, and so needs a lease of them."""
    pointless_after: ClassVar[tuple[str, ...]] = ()
    """Verdicts (`stage/name`) of the same run; after a FAIL of one it is not started, unless the run is forced."""

    @classmethod
    def files(cls, spec: StageSpec) -> Sequence[Path]:
        """Files outside the store that the result depends on; their content becomes part of the key."""
        return ()

    @abstractmethod
    def plan(self, ctx: PlanContext) -> Plan:
        """Say what would be read, written and needed. Must not import torch."""

    def stale(self, out: Path) -> str | None:
        """Say why a finished output can no longer be trusted, or None."""
        return None

    @abstractmethod
    async def run(self, ctx: "Context") -> None:
        """Do the work, writing below `ctx.out` only."""


class Registry(Protocol):
    """Where jobs come from; the module `eagle3ops.jobs` is one."""

    def names(self) -> Sequence[str]:
        """All jobs, upstream first; those that no pipeline runs by itself among them."""

    def job(self, name: str) -> type[Job]:
        """The class of one job; KeyError for an unknown name."""

    def specs(self) -> Mapping[str, type[StageSpec]]:
        """The `Spec` of every job that is a stage, in order."""

    def order(self, target: str) -> Sequence[str]:
        """The stages that `target` takes, upstream first; "pipeline" takes all that belong to one."""


REGISTRY_VARIABLE = "EAGLE3OPS_JOBS"
"""Names the module that is the registry; for tests and for jobs of one's own."""


def load_registry(module: str | None = None) -> Registry:
    """The registry in `module`, by default $EAGLE3OPS_JOBS or `eagle3ops.jobs`.

    Found by name at run time: the jobs stand above this room, which must not import them.
    """
    return cast(Registry, import_module(module or environ.get(REGISTRY_VARIABLE) or "eagle3ops.jobs"))
