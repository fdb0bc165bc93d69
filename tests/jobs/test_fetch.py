"""The fetch job says exactly which target it found, and notices when that is no longer the one."""

from pathlib import Path
from typing import Any

import pytest

from eagle3ops.errors import RequestError
from eagle3ops.jobs.fetch import Fetch, FetchSpec
from eagle3ops.runs.context import Context
from eagle3ops.runs.directory import RunDirectory
from eagle3ops.runs.job import PlanContext
from eagle3ops.spec.models import Pipeline
from eagle3ops.targets import read_target_info
from eagle3ops.targets.tiny import make_tiny


def pipeline(**target: Any) -> Pipeline:
    return Pipeline.model_validate({"schema": 1, "name": "t", "target": target, "stages": {"fetch": FetchSpec()}})


async def fetch(tmp_path: Path, **target: Any) -> Path:
    out, run = tmp_path / "out", RunDirectory(tmp_path / "runs" / "one")
    out.mkdir()
    run.path.mkdir(parents=True)
    with run.events() as events:
        ctx = Context(
            pipeline=pipeline(**target),
            spec=FetchSpec(),
            stage="fetch",
            out=out,
            run_dir=run.path,
            inputs={},
            cache=tmp_path / "cache",
            events=events,
        )
        await Fetch().run(ctx)
    return out


async def test_what_was_fetched_is_written_down_and_watched(tmp_path: Path) -> None:
    out = await fetch(tmp_path, model="tiny-random")
    info = read_target_info(out)
    assert (info.name, info.num_layers, info.source) == ("tiny-random", 8, "made")
    assert Fetch().stale(out) is None
    (info.path / "tokenizer.json").unlink()
    assert "tokenizer.json: No such file" in str(Fetch().stale(out))
    (out / "target.json").write_text("{")
    assert "target.json: damaged" in str(Fetch().stale(out))


def test_a_target_that_is_not_there_or_not_whole_is_told_by_the_plan(tmp_path: Path) -> None:
    def refusal(model: str, **more: Any) -> str:
        ctx = PlanContext(
            pipeline=pipeline(model=model, **more), spec=FetchSpec(), out=tmp_path, inputs={}, plans={}, cache=tmp_path
        )
        return str(Fetch().plan(ctx).refusal)

    assert "'/nowhere' is no folder" in refusal("/nowhere")
    assert "config.json: missing" in refusal(str(tmp_path))
    assert "has no revisions" in refusal("tiny-random", revision="main")
    make_tiny(tmp_path)
    assert refusal(str(tmp_path)) == "None"
    with (tmp_path / "model.safetensors").open("ab") as weights:
        weights.truncate(1000)
    assert "model.safetensors" in refusal(str(tmp_path))


async def test_a_target_that_names_nothing(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"target\.model: 'nothing'"):
        await fetch(tmp_path, model="nothing")


@pytest.mark.parametrize(("model", "known"), [("smollm2-135m-instruct", True), ("tiny-random", True), ("/x", False)])
def test_the_forecast_knows_the_built_in_targets(tmp_path: Path, model: str, known: bool) -> None:
    ctx = PlanContext(
        pipeline=pipeline(model=model), spec=FetchSpec(), out=tmp_path, inputs={}, plans={}, cache=tmp_path
    )
    assert (Fetch().plan(ctx).forecast.disk_bytes is not None) is known
