"""What does the generate stage say when its server dies under many requests at once?"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from eagle3ops.engines.client import Answer, EngineError
from eagle3ops.errors import Eagle3opsError
from eagle3ops.jobs.fetch import Fetch, FetchSpec
from eagle3ops.jobs.generate import Generate, GenerateSpec
from eagle3ops.jobs.serve import job as serve
from eagle3ops.runs.context import Context
from eagle3ops.runs.directory import RunDirectory
from eagle3ops.runs.job import load_registry
from eagle3ops.spec.load import parse_pipeline

TEXT = """\
schema: 1
name: x
target: {model: tiny-random}
engine: {max_running_requests: 8}
stages: {generate: {train: 12, heldout: 4, batch: 4, max_new_tokens: 4}}
"""


class Dead:
    """A server that has ended, as its client sees it."""

    async def generate_batch(self, prompts: Any, sampling: Any) -> list[Answer]:
        raise EngineError("http://a: Server disconnected; the last lines of engine-generate.log:\n    signal 9")

    async def health(self) -> bool:
        return False


async def test_the_first_failure_is_told_and_not_that_there_were_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @asynccontextmanager
    async def started_fleet(*_: Any) -> AsyncIterator[Dead]:
        yield Dead()

    monkeypatch.setattr(serve, "started_fleet", started_fleet)
    pipeline, run = parse_pipeline(TEXT, "x.yaml", load_registry().specs()), RunDirectory(tmp_path / "runs" / "one")
    run.path.mkdir(parents=True)
    fetched = tmp_path / "fetch"
    with run.events() as events:

        def context(stage: str, spec: Any, out: Path, **inputs: Path) -> Context:
            out.mkdir()
            return Context(
                pipeline=pipeline, spec=spec, stage=stage, out=out, run_dir=run.path, inputs=inputs,
                cache=tmp_path / "cache", events=events,
            )  # fmt: skip

        await Fetch().run(context("fetch", FetchSpec(), fetched))
        spec = pipeline.stages["generate"]
        assert isinstance(spec, GenerateSpec)
        with pytest.raises(Eagle3opsError) as failed:
            await Generate().run(context("generate", spec, tmp_path / "generate", fetch=fetched))
    assert failed.value.what.startswith("the engine stopped answering: http://a: Server disconnected")
    assert "signal 9" in failed.value.what
