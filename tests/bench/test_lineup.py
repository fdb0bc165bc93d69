"""Real servers of the reference engine in a lineup: together, in turns, and one that does not start."""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from reference_tiny import VOCAB, write_tiny_model

from eagle3ops.bench.cases import Case, Measured, case_record
from eagle3ops.bench.lineup import TURNS, line_up, up, visited, visits
from eagle3ops.engines.base import ServeSpec
from eagle3ops.engines.client import EngineError, Sampling
from eagle3ops.engines.serving import free_port


@dataclass
class Stage:
    """As much of a running stage as is needed."""

    run_dir: Path
    pipeline: Any = field(default_factory=lambda: SimpleNamespace(engine=SimpleNamespace(name="reference")))
    started: list[str] = field(default_factory=list)
    told: list[tuple[float, float | None]] = field(default_factory=list)

    def progress(self, done: float, total: float | None, unit: str) -> None:
        self.told.append((done, total))

    @asynccontextmanager
    async def spawn(
        self, argv: Sequence[str], *, role: str, env: Mapping[str, str] | None = None
    ) -> AsyncIterator[asyncio.subprocess.Process]:
        self.started.append(role)
        log = (self.run_dir / "logs" / f"{role}.log").open("ab")
        process = await asyncio.create_subprocess_exec(
            *argv, stdout=log, stderr=log, env={**os.environ, **(env or {}), "OMP_NUM_THREADS": "1"}
        )
        try:
            yield process
        finally:
            log.close()
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


@pytest.fixture
def stage(tmp_path: Path) -> Any:
    (tmp_path / "logs").mkdir()
    return Stage(tmp_path)


@pytest.fixture
def servers(tmp_path: Path) -> dict[str, ServeSpec]:
    """Two servers of the same target; what they draft with is of no matter here."""
    spec = ServeSpec(model=write_tiny_model(tmp_path / "model"), port=0, dtype="float32", device="cpu")
    return {label: replace(spec, port=free_port()) for label in ("baseline", "3/1/4")}


LOAD = Case(
    kind="ladder",
    prompts=[[1 + k, 2, 3] for k in range(4)],
    sampling=Sampling(max_new_tokens=6, ignore_eos=True),
    facts={"of": VOCAB},
)


@pytest.mark.parametrize("room", [None, 10])
async def test_together_and_in_turns_every_block_has_its_partner(
    stage: Any, servers: dict[str, ServeSpec], room: int | None
) -> None:
    lineup = line_up(["3/1/4"], 8, room)
    assert lineup.alone == (room is not None)
    measured = Measured()
    async with aclosing(visits(stage, lineup, servers)) as steps:
        async for group, clients in steps:
            assert len(clients) == (1 if lineup.alone else 2)
            await visited(stage, lineup, [LOAD], group, clients, [measured])
    record = case_record(LOAD, measured)
    rounds = TURNS if lineup.alone else 1
    assert record["of"] == VOCAB
    assert set(record["settings"]) == {"baseline", "3/1/4"}
    assert record["settings"]["3/1/4"]["speedup"]["pairs"] == 4 * rounds
    assert [row["tokens"] for row in record["settings"].values()] == [24 * rounds, 24 * rounds]
    names = ["engine-bench-baseline", "engine-bench-3-1-4"]
    assert sorted(stage.started) == sorted(names * rounds)
    if lineup.alone:
        assert stage.started == names * rounds


async def test_a_server_that_does_not_start_is_told_in_its_own_words(stage: Any, servers: dict[str, ServeSpec]) -> None:
    servers["3/1/4"] = replace(servers["3/1/4"], arguments=("--speculative-algorithm", "EAGLE3"))
    with pytest.raises(EngineError, match=r"did not start(.|\n)*needs --speculative-draft-model-path"):
        async with up(stage, servers):
            pass
