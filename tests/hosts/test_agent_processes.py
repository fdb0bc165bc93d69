"""Does an agent say which processes a run had, how they were started and ended, and what the run made?"""

import json
from pathlib import Path
from typing import Any

import pytest
from toy_world import Toy, prepare

from eagle3ops.errors import RequestError
from eagle3ops.hosts.agent.ops_processes import MOST_ARGV, artifacts, environment, processes
from eagle3ops.hosts.agent.ops_runs import here
from eagle3ops.runs.directory import RunDirectory
from eagle3ops.runs.redact import GONE


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    toy = Toy(prepare(tmp_path_factory.mktemp("toy")))
    assert toy.job("--set", "stages.use.mode=secret").returncode == 1
    return toy


def test_every_process_with_its_argv_and_its_end(failed: Toy) -> None:
    found = processes(here(str(failed.root)), run="last")
    rows = found["processes"]
    told = {(row["stage"], row["role"]): (row["state"], row["code"]) for row in rows}
    assert told[None, "supervisor"] == ("ended", 1)
    assert told["use", "child"] == ("ended", 0)
    assert told["use", "use"] == ("ended", 1)
    child = next(row for row in rows if row["role"] == "child")
    assert child["argv"][1] == "-c"
    assert child["argv"][-2:] == ["--api-key", GONE]
    assert child["rank"] == "3"
    assert all(row["pid"] > 0 and row["started"] <= row["ended"] for row in rows)
    stage = next(row for row in rows if row["role"] == "use")
    assert stage["argv"][1:3] == ["-m", "eagle3ops.runs.stage"]


def test_the_environment_begins_with_what_differs_from_the_supervisors(failed: Toy) -> None:
    rows = processes(here(str(failed.root)), run="last")["processes"]
    child = next(row for row in rows if row["role"] == "child")
    found = environment(here(str(failed.root)), run="last", environment=child["environment"])
    assert found["compared"]
    assert found["changed"]["RANK"] == ["3", None]
    assert found["changed"]["MY_TOKEN"] == [GONE, None]
    assert found["variables"]["EAGLE3OPS_JOBS"] == "toy_jobs"
    assert "EAGLE3OPS_JOBS" not in found["changed"]
    with pytest.raises(RequestError, match="no environment"):
        environment(here(str(failed.root)), run="last", environment="../state")


def test_artifacts_say_whether_they_are_still_there(failed: Toy, tmp_path: Path) -> None:
    rows = artifacts(here(str(failed.root)), run="last")["artifacts"]
    told = [(Path(row["path"]).name, row["exists"], row["kind"]) for row in rows]
    assert told == [("part-0", True, "file"), ("joined", False, None)]
    run = made(tmp_path, [("artifact", {"path": str(tmp_path / "gone"), "note": "n"}), ("artifact", {"path": "a\0b"})])
    (row,) = artifacts(here(str(tmp_path)), run=run.run_id)["artifacts"]
    assert (row["exists"], row["bytes"], row["why"]) == (False, None, None)


def made(root: Path, events: list[tuple[str, dict[str, Any]]]) -> RunDirectory:
    run = RunDirectory(root / "runs" / "20261130-044512-older-aaaa")
    run.path.mkdir(parents=True)
    (run.path / "request.json").write_text(json.dumps({"job": "pipeline", "stages": []}))
    with run.events() as log:
        for kind, data in events:
            log.append(kind, data, "train")
    return run


def test_odd_events_are_rows_all_the_same(tmp_path: Path) -> None:
    started = {"role": ["x"], "state": "started", "pid": [1], "start": 1.5, "argv": "no list", "offset": 2**80}
    long = {"role": "r", "state": "started", "pid": 7, "start": 1, "boot": "b", "argv": ["a", "b" * (MOST_ARGV + 1)]}
    run = made(tmp_path, [("process", started), ("process", long), ("process", {"state": "ended", "pid": {}})])
    first, second = processes(here(str(tmp_path)), run=run.run_id)["processes"]
    assert (first["pid"], first["argv"], first["offset"], first["state"]) == (None, [], None, "lost")
    assert (second["argv"], second["argv_left_out"], second["state"]) == (["a"], 1, "lost")
