"""Does a job that stands apart stay out of the way of the pipeline that does not run it?"""

from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest

from eagle3ops.errors import RequestError
from eagle3ops.runs.job import Job, Registry, load_registry
from eagle3ops.runs.keys import stage_keys
from eagle3ops.runs.planning import StagePlan, choose, plan_stages
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


def planned(name: str, tmp_path: Path, *also: str) -> tuple[Registry, list[StagePlan]]:
    registry = cast(Registry, _Broken(name))
    pipeline = parse_pipeline(TEXT, "a.yaml", registry.specs())
    return registry, plan_stages(pipeline, registry, tmp_path, tmp_path, also)


def test_the_pipeline_runs_none_of_them() -> None:
    registry = load_registry()
    assert isinstance(registry, ModuleType)
    apart = set(registry.names()) - set(registry.order("pipeline"))
    assert apart == {"profile", "sweep", "compare", "build"}
    assert list(registry.order("sweep"))[-1] == "sweep"


def test_one_that_cannot_be_planned_is_an_error_where_it_is_asked_for_and_nowhere_else(tmp_path: Path) -> None:
    registry, stages = planned("sweep", tmp_path)
    assert choose(stages, registry, "pipeline") == stages
    assert all(stage.plan.refusal is None for stage in stages)
    with pytest.raises(RequestError, match="cannot be planned"):
        planned("sweep", tmp_path, "sweep")


@pytest.mark.parametrize("also", [(), ("pipeline",), ("compare",), ("build",), ("sweep", "profile", "bench")])
def test_planned_is_the_pipeline_and_what_was_asked_for(also: tuple[str, ...], tmp_path: Path) -> None:
    registry, stages = planned("no job", tmp_path, *also)
    wanted = {*registry.order("pipeline"), *also} - {"pipeline"}
    assert [stage.name for stage in stages] == [name for name in registry.names() if name in wanted]


def test_the_key_of_a_stage_is_the_same_whatever_else_is_asked_for() -> None:
    registry = load_registry()
    pipeline = parse_pipeline(TEXT, "a.yaml", registry.specs())
    every = stage_keys(pipeline, registry, registry.names())
    assert list(every) == list(registry.names())
    for also in ((), ("sweep",), ("compare", "build")):
        keys = stage_keys(pipeline, registry, also)
        assert keys.items() <= every.items()


def test_a_stage_of_the_pipeline_that_cannot_be_planned_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="cannot be planned"):
        planned("bench", tmp_path)
