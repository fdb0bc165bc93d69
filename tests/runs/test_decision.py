"""Is a decision of the watchdog read as it was written, and anything else not at all?"""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3ops.engines.serving import added_arguments
from eagle3ops.forensics.of_run import ask, checked
from eagle3ops.runs.directory import RunDirectory
from eagle3ops.runs.files import read_json, write_json
from eagle3ops.runs.processes import ARGUMENTS_VARIABLE, ProcessId
from eagle3ops.supervisor.attempt import changes
from eagle3ops.supervisor.decision import FILE, Decision, Decisions, from_json

ATTEMPT = ProcessId(4711, 99, "boot")
DECISION = Decision(
    incident="1", stage="use", attempt=ATTEMPT, action="restart", title="it hangs", why="the first time",
    fingerprint="abc", rung="x", environment={"NCCL_P2P_DISABLE": "1"}, arguments=("--disable-cuda-graph",),
)  # fmt: skip

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def test_it_comes_through_and_is_seen_once(tmp_path: Path) -> None:
    decisions = Decisions(tmp_path, "use", ATTEMPT)
    assert decisions.look() is None
    DECISION.write(tmp_path)
    assert decisions.look() == DECISION
    assert decisions.look() is None
    assert Decisions(tmp_path, "other", ATTEMPT).look() is None
    assert Decisions(tmp_path, "use", ProcessId(4711, 98, "boot")).look() is None
    assert Decisions(tmp_path, "use", None).look() is None


@given(st.binary(max_size=300), st.integers(0, 400))
def test_torn_and_odd_files_decide_nothing(data: bytes, cut: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, FILE)
        path.write_bytes(data)
        assert Decisions(Path(folder), "use", ATTEMPT).look() is None
        DECISION.write(Path(folder))
        whole = path.read_bytes()
        path.write_bytes(whole[: min(cut, len(whole) - 3)])
        assert Decisions(Path(folder), "use", ATTEMPT).look() is None


@given(st.sampled_from(["stage", "action", "attempt", "environment", "arguments", "title", "rung"]), values)
def test_an_odd_field_never_gets_through_as_something_else(name: str, value: object) -> None:
    good = {
        "incident": "1", "stage": "use", "action": "restart", "title": "", "why": "", "fingerprint": "", "rung": "",
        "evidence": "", "environment": {}, "arguments": [], "attempt": ATTEMPT.as_json(),
    }  # fmt: skip
    assert from_json(good) is not None
    found = from_json(good | {name: value})
    assert found is None or (found.action in ("restart", "give_up") and isinstance(found.title, str))


def test_a_decision_cannot_start_another_program() -> None:
    good = {"stage": "use", "action": "restart", "environment": {}, "arguments": [], "attempt": ATTEMPT.as_json()}
    for environment in ({"LD_PRELOAD": "/x.so"}, {"PYTHONPATH": "/x"}, {"PATH": "/x"}, {"NCCL_X": 1}):
        assert from_json(good | {"environment": environment}) is None
    for arguments in (["-c"], ["--model-path=/x"], ["x"], [1]):
        assert from_json(good | {"arguments": arguments}) is None


def test_engines_are_given_what_a_restart_adds() -> None:
    variables = changes(DECISION)
    assert variables["NCCL_P2P_DISABLE"] == "1"
    assert added_arguments(variables) == ["--disable-cuda-graph"]
    assert added_arguments({}) == []
    assert added_arguments({ARGUMENTS_VARIABLE: '["a", 1]'}) == []


@given(st.binary(max_size=200) | values.map(lambda value: repr(value).encode()))
def test_an_odd_answer_of_forensics_is_none(answer: bytes) -> None:
    assert checked(answer) is None


def test_what_is_no_file_is_never_waited_for(tmp_path: Path) -> None:
    decisions = Decisions(tmp_path, "use", ATTEMPT)
    os.mkfifo(tmp_path / FILE)
    assert decisions.look() is None
    (tmp_path / FILE).unlink()
    (tmp_path / FILE).symlink_to("/dev/zero")
    assert decisions.look() is None
    (tmp_path / FILE).unlink()
    (tmp_path / FILE).mkdir()
    assert decisions.look() is None


def test_a_title_with_a_name_that_is_no_text_keeps_no_decision_from_being_made(tmp_path: Path) -> None:
    replace(DECISION, title="log \udcff.log").write(tmp_path)
    found = Decisions(tmp_path, "use", ATTEMPT).look()
    assert found == replace(DECISION, title="log ?.log")
    # As an escape it may stand in any JSON; what is made of it has to be written again.
    write_json(tmp_path / "state.json", {"error": json.loads('"\\ud800"')})
    assert read_json(tmp_path / "state.json") == {"error": "?"}


@pytest.mark.parametrize("said", ["it ended: \0\0", "log \udcff.log"])
def test_whatever_a_stage_said_last_its_cause_is_looked_for(tmp_path: Path, said: str) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/use.log").write_text("x\n")
    # What stands in a log may be a secret, and the arguments of a process are everybody's to read.
    assert ask(RunDirectory(tmp_path), "use", said) is None
