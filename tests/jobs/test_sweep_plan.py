"""Does the plan of a sweep say what it comes to, and refuse before anything starts what cannot run?"""

from pathlib import Path
from typing import Any

from eagle3ops.jobs.sweep.job import Sweep
from eagle3ops.runs.job import Plan, PlanContext, load_registry
from eagle3ops.spec.load import load_pipeline


def plan(tmp_path: Path, sweep: dict[str, Any], engine: dict[str, Any] | None = None) -> Plan:
    """The plan of a sweep before anything has been done."""
    import yaml

    file = tmp_path / "pipeline.yaml"
    content = {"schema": 1, "name": "x", "target": {"model": "tiny-random"}, "stages": {"sweep": sweep}}
    file.write_text(yaml.safe_dump(content | ({"engine": engine} if engine else {})))
    pipeline = load_pipeline(file, load_registry().specs())
    return Sweep().plan(PlanContext(pipeline, pipeline.stages["sweep"], tmp_path / "stages" / "x", {}, {}, tmp_path))


def test_points_rungs_starts_and_what_is_left_out(tmp_path: Path) -> None:
    found = plan(tmp_path, {"axes": {"steps": [1, 2, 3], "draft_tokens": [2, 4]}, "first_pairs": 4, "per_gpu": 2})
    assert found.refusal is None
    said = " ".join(found.forecast.notes)
    assert "2 points of 2 settings, 3 rungs: 2 x 4 pairs -> 1 x 8 pairs -> 1 x 16 pairs" in said
    assert "about 3 server starts in 1 wave," in said
    assert "4 combinations left out: a chain (topk 1) verifies steps + 1 draft tokens" in said
    assert found.forecast.seconds is None


def test_no_points_is_refused_with_the_reasons(tmp_path: Path) -> None:
    found = plan(tmp_path, {"axes": {"steps": [1, 2], "topk": [4]}})
    assert found.refusal is not None
    assert "no points" in str(found.refusal)
    assert "needs a number of draft tokens" in str(found.refusal)


def test_an_axis_without_values_is_named(tmp_path: Path) -> None:
    found = plan(tmp_path, {"axes": {"steps": []}})
    assert found.refusal is not None
    assert found.refusal.what == "the sweep has no points: steps has no values"


def test_too_few_prompts_for_a_fresh_final_are_told_before(tmp_path: Path) -> None:
    found = plan(tmp_path, {"axes": {"concurrency": [1, 8]}, "first_pairs": 4, "final_pairs": 8})
    (told,) = [note for note in found.forecast.notes if "chose the point" in note]
    assert told.startswith("the final at concurrency 8 ")
    assert "576 held-out prompts would be needed" in told


def test_a_constraint_on_no_axis_is_refused(tmp_path: Path) -> None:
    found = plan(tmp_path, {"constraints": ["attention == 'fa3'"]})
    assert found.refusal is not None
    assert "names attention, which is no axis" in str(found.refusal)


def test_an_engine_that_is_not_there_is_refused(tmp_path: Path) -> None:
    found = plan(tmp_path, {}, {"name": "sglang", "python": str(tmp_path / "none" / "python")})
    assert found.refusal is not None
    assert str(found.refusal).startswith("sweep: ")
