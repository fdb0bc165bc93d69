"""Does a job that stands apart stay out of the way of the pipeline that does not run it?"""

from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest

from eagle3ops.errors import RequestError
from eagle3ops.runs.job import Job, Registry, load_registry
from eagle3ops.runs.planning import choose, plan_stages
from eagle3ops.spec.load import parse_pipeline

TEXT = "schema: 1\nname: a\ntarget: {model: tiny-random}\n"


class _Broken:
    """The registry, but for one job whose plan cannot be made."""

    def __init__(self, name: str) -> None:
        self._name, self._real = name, cast(Any, load_registry())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def job(self, name: str) -> type[Job]:
        found: type[Job] = self._real.job(name)
        if name != self._name:
            return found

        def plan(self: Job, ctx: object) -> Any:
            raise RequestError("this cannot be planned")

        return type("Broken", (found,), {"plan": plan})


def planned(name: str, tmp_path: Path) -> tuple[Registry, list[Any]]:
    registry = cast(Registry, _Broken(name))
    pipeline = parse_pipeline(TEXT, "a.yaml", registry.specs())
    return registry, plan_stages(pipeline, registry, tmp_path, tmp_path)


def test_the_pipeline_runs_none_of_them() -> None:
    registry = load_registry()
    assert isinstance(registry, ModuleType)
    apart = set(registry.names()) - set(registry.order("pipeline"))
    assert apart == {"profile", "sweep", "compare", "build"}
    assert list(registry.order("sweep"))[-1] == "sweep"


def test_one_that_cannot_be_planned_is_refused_where_it_is_asked_for_and_nowhere_else(tmp_path: Path) -> None:
    registry, stages = planned("sweep", tmp_path)
    chosen = choose(stages, registry, "pipeline")
    assert [stage.name for stage in chosen] == list(registry.order("pipeline"))
    assert all(stage.plan.refusal is None for stage in chosen)
    (sweep,) = (stage for stage in stages if stage.name == "sweep")
    assert "cannot be planned" in str(sweep.plan.refusal)


def test_a_stage_of_the_pipeline_that_cannot_be_planned_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="cannot be planned"):
        planned("bench", tmp_path)
