"""What does a host say of pipeline files: what may stand in one, what is wrong with it, which one a run had?"""

import json
from pathlib import Path

import pytest

from eagle3ops.errors import RequestError
from eagle3ops.hosts.agent import ops_runs, ops_spec
from eagle3ops.spec.yamltree import MAX_BYTES

HERE = ops_runs.here("/nowhere")


def test_the_schema_comes_with_jobs_and_bundled_files() -> None:
    answer = ops_spec.schema(HERE)
    assert answer["jobs"][:2] == ["pipeline", "fetch"]
    assert [one["name"] for one in answer["bundled"]] == ["demo", "tiny"]
    for one in answer["bundled"]:
        assert ops_spec.check(HERE, spec_text=one["text"]) == {"problems": [], "left_out": 0}
    assert len(json.dumps(answer)) < 100_000


def test_a_problem_has_its_place_and_its_keys() -> None:
    text = "schema: 1\nname: x\ntarget: {model: y}\nstages:\n  train: {lr: fast}\n"
    (problem,) = ops_spec.check(HERE, spec_text=text, source="a (b).yaml")["problems"]
    assert problem == {
        "what": "a (b).yaml:5:15: stages.train.lr: expected a number, got 'fast'",
        "remedy": None,
        "path": ["stages", "train", "lr"],
        "line": 5,
        "column": 15,
    }
    (broken,) = ops_spec.check(HERE, spec_text="a: [", source="t")["problems"]
    assert (broken["path"], broken["line"]) == ([], 1)


def test_problems_without_end_are_cut() -> None:
    text = "schema: 1\nname: x\ntarget: {model: y}\n" + "".join(f"k{number}: 1\n" for number in range(150))
    answer = ops_spec.check(HERE, spec_text=text)
    assert (len(answer["problems"]), answer["left_out"]) == (100, 50)


def test_the_file_of_a_run(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "20261130-054512-demo-bbbb"
    run.mkdir(parents=True)
    (run / "request.json").write_text("{")
    here = ops_runs.here(str(tmp_path))
    with pytest.raises(RequestError, match="cannot be read: No such file"):
        ops_spec.of_run(here, run="last")
    (run / "spec.yaml").write_bytes(b"name: \xff\n")
    answer = ops_spec.of_run(here, run="last")
    assert (answer["text"], answer["job"], answer["path"]) == ("name: \ufffd\n", "pipeline", str(run / "spec.yaml"))
    (run / "request.json").write_text(json.dumps({"job": "train", "stages": [], "source": "x.yaml"}))
    answer = ops_spec.of_run(here, run="last")
    assert (answer["job"], answer["source"]) == ("train", "x.yaml")
    (run / "spec.yaml").write_bytes(b"#" * (MAX_BYTES + 1))
    with pytest.raises(RequestError, match="larger than"):
        ops_spec.of_run(here, run="last")
    with pytest.raises(RequestError):
        ops_spec.of_run(here, run="another")
