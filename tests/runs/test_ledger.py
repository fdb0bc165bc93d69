"""Does the ledger say what the directories say, deleted or damaged too, and does gc keep what is needed?"""

import json
from pathlib import Path

import pytest
from toy_world import Toy

from eagle3ops.errors import RequestError
from eagle3ops.runs.compare import diff
from eagle3ops.runs.directory import RunDirectory, find_run, list_runs, new_run_id
from eagle3ops.runs.gc import collect, find_garbage
from eagle3ops.runs.ledger import Ledger


def test_a_damaged_run_hides_no_other_and_not_itself(toy: Toy) -> None:
    assert toy.job().returncode == 0
    whole = toy.last()
    folder = toy.root / "runs" / "20261130-000000-bad-aaaa"
    folder.mkdir()
    for content in ("", "[]", '{"stages": []', '{"stages": [], "created": "abc"}', '{"created": 1}'):
        (folder / "request.json").write_text(content)
        listed = {row["run_id"]: row["status"] for row in json.loads(toy.call("runs", "list", "--json").stdout)}
        assert listed == {folder.name: "damaged", whole.run_id: "done"}, content
        shown = toy.call("runs", "show", folder.name)
        assert shown.returncode == 2
        assert "request.json is missing or damaged" in shown.stderr
        swept = toy.call("runs", "gc", "--keep", "0", "--json")
        assert str(folder) not in swept.stdout, "nothing says that it can go"


@pytest.mark.parametrize("stages", [None, [], {"make": None}, {"make": 3}, "x"])
def test_a_damaged_state_is_shown_as_far_as_it_goes(toy: Toy, stages: object) -> None:
    assert toy.job().returncode == 0
    state = toy.last().path / "state.json"
    state.write_text(json.dumps({"status": "done", "exit_code": 0, "stages": stages}))
    for words in (("list",), ("show", "last"), ("follow", "last"), ("gc",)):
        told = toy.call("runs", *words)
        assert told.returncode == 0, told.stderr


@pytest.fixture
def two_runs(toy: Toy) -> Toy:
    assert toy.job().returncode == 0
    assert toy.job("--set", "stages.make.parts=2", "--set", "stages.use.passed=false").returncode == 3
    return toy


def test_ledger_rebuild_diff_and_gc(two_runs: Toy) -> None:
    root = two_runs.root
    first, second = list_runs(root)
    rows = Ledger(root).runs()
    assert [(row.run_id, row.status, row.exit_code) for row in rows] == [(first, "done", 0), (second, "done", 3)]

    for content in (None, b"", b"not a database" * 1000):
        (root / "ledger.sqlite").unlink()
        if content is not None:
            (root / "ledger.sqlite").write_bytes(content)
        assert Ledger(root).runs() == rows
        assert Ledger(root).runs() == rows

    found = diff(root, first, second)
    assert found["spec"] == {"stages.make.parts": [4, 2], "stages.use.passed": [True, False]}
    assert found["metrics"] == {"make/parts": [4, 2]}
    assert set(found["verdicts"]) == {"use/joined"}
    assert set(found["keys"]) == {"make", "use", "end"}
    assert not any(diff(root, first, first).values())

    listed = two_runs.call("runs", "list", "--json")
    assert [row["run_id"] for row in json.loads(listed.stdout)] == [first, second]
    shown = two_runs.call("runs", "show", "last", "--json")
    assert json.loads(shown.stdout)["verdicts"] == {"use/joined": "FAIL: a part is wrong"}
    assert "stages.make.parts: 4 -> 2" in two_runs.call("runs", "diff", first, second).stdout

    before = {path.name for path in (root / "stages").iterdir() if path.is_dir()}
    assert find_garbage(root, keep=2) == []
    assert find_garbage(root, keep=1, older_than_days=1) == []
    dry = two_runs.call("runs", "gc", "--keep", "1")
    assert "would be deleted" in dry.stdout
    assert list_runs(root) == [first, second]
    assert two_runs.call("runs", "gc", "--keep", "1", "--yes").returncode == 0
    assert list_runs(root) == [second]
    after = {path.name for path in (root / "stages").iterdir() if path.is_dir()}
    assert len(before) == 6
    assert len(after) == 3
    assert [row.run_id for row in Ledger(root).runs()] == [second]
    assert two_runs.job("--set", "stages.make.parts=2").stderr.count("skipped") == 1


def test_gc_leaves_a_run_that_is_going_on(toy: Toy) -> None:
    assert toy.job("--detach", "--set", "stages.use.mode=child").returncode == 0
    toy.until("runs/*/child.pid")
    assert collect(find_garbage(toy.root, keep=0)) == []
    assert toy.last().alive()
    assert len(list(toy.root.glob("stages/*/"))) == 2


def test_a_run_is_found_by_a_part_of_its_id_when_that_is_clear(tmp_path: Path) -> None:
    ids = ["20261130-044512-demo-a1b2", "20261130-044513-demo-a1c3"]
    for run_id in ids:
        (tmp_path / "runs" / run_id).mkdir(parents=True)
        (tmp_path / "runs" / run_id / "request.json").write_text("{}")
    assert find_run(tmp_path, "a1b2").run_id == ids[0]
    assert find_run(tmp_path, "last").run_id == ids[1]
    with pytest.raises(RequestError, match="not clear"):
        find_run(tmp_path, "20261130")
    with pytest.raises(RequestError, match="no run 'x'"):
        find_run(tmp_path, "x")
    with pytest.raises(RequestError, match="no run '\\.\\./runs'"):
        find_run(tmp_path, "../runs")


def test_run_ids_are_not_given_twice() -> None:
    assert len({new_run_id("demo") for _ in range(50)}) >= 49


def test_outputs_of_a_run_with_a_lost_request_are_kept(two_runs: Toy) -> None:
    root = two_runs.root
    first, second = list_runs(root)
    (root / "runs" / first / "request.json").unlink()
    (root / "runs" / second / "spec.yaml").unlink()
    assert list_runs(root) == [second]
    assert [item.path.name for item in find_garbage(root, keep=1)] == []
    with pytest.raises(RequestError, match=r"spec\.yaml: cannot be read"):
        diff(root, second, second)


def test_a_run_that_ends_while_it_is_looked_at_is_not_interrupted(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "runs" / "20261130-000000-ending-aaaa")
    run.path.mkdir(parents=True)
    (run.path / "state.json").write_text('{"status": "running"}')

    class Ending(RunDirectory):
        def alive(self) -> bool:
            # The supervisor writes its last word and leaves, just before it is asked for.
            (self.path / "state.json").write_text('{"status": "failed"}')
            return False

    assert Ending(run.path).status() == "failed"
    (run.path / "state.json").write_text('{"status": "running"}')
    assert run.status() == "interrupted"
