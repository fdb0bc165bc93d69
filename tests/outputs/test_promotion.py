"""A drafter is promoted on evidence, one decision at a time, and every decision can be looked up and taken back."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from bench_worlds import FINGERPRINT, bench_json, make_bench_run
from hypothesis import given
from hypothesis import strategies as st

from eagle3ops.cli import main
from eagle3ops.errors import Eagle3opsError, ExitCode, Refused, RequestError
from eagle3ops.outputs import drafters, promotion
from eagle3ops.outputs.lineage import Target
from eagle3ops.runs.files import write_json
from eagle3ops.runs.gc import find_garbage

A, B, C = "20261130-010000-toy-aaaa", "20261130-020000-toy-bbbb", "20261130-030000-toy-cccc"


def promote(root: Path, run: str, **arguments: Any) -> dict[str, Any]:
    return drafters.promote(root, run=run, **arguments)


def rollback(root: Path, **arguments: Any) -> dict[str, Any]:
    return drafters.rollback(root, **arguments)


def current(root: Path) -> tuple[str, str] | None:
    one = drafters.show(root)["promoted"][0]["current"]
    return None if one is None else (one["run"], one["setting"])


def test_promoting_and_going_back(tmp_path: Path) -> None:
    for run in (A, B):
        make_bench_run(tmp_path, run)
    first = promote(tmp_path, A)
    assert first["changed"]
    assert first["current"]["setting"] == "3/1/4"
    assert "--speculative-num-steps 3" in first["current"]["launch_line"]
    assert not promote(tmp_path, A)["changed"]
    assert promote(tmp_path, B)["previous"]["run"] == A
    assert current(tmp_path) == (B, "3/1/4")
    assert rollback(tmp_path)["current"]["run"] == A
    assert rollback(tmp_path)["current"] is None
    with pytest.raises(RequestError, match="no drafter is promoted"):
        rollback(tmp_path)
    history = drafters.show(tmp_path)["promoted"][0]["history"]
    assert [entry["action"] for entry in history] == ["promote", "promote", "rollback", "rollback"]


@pytest.mark.parametrize(
    ("made", "why"),
    [
        ({"bench": bench_json(low=0.99, value=1.1, high=1.2)}, "not faster beyond noise"),
        ({"failing": ("wiring",)}, "wiring is FAIL: why wiring"),
        ({"failing": ("equal_output",)}, "equal_output is FAIL"),
        ({"failing": ("accept_length",)}, "accept_length is FAIL"),
        ({"failing": ("divergence",)}, "divergence is FAIL"),
        ({"without": ("wiring",)}, "wiring is not proven"),
        ({"undecided": ("wiring",)}, "wiring is not proven: UNDECIDED: why wiring"),
        ({"without": ("equal_output",)}, "equal_output is not proven"),
        ({"aux_layers": "boundary:1,2,3"}, "aux layers set by hand"),
    ],
)
def test_the_gate_refuses_and_force_with_a_reason_is_recorded(tmp_path: Path, made: dict[str, Any], why: str) -> None:
    make_bench_run(tmp_path, A, **made)
    with pytest.raises(Refused, match=why) as refused:
        promote(tmp_path, A)
    assert refused.value.exit_code == ExitCode.REFUSED
    assert not (tmp_path / "promoted" / f"{FINGERPRINT}.json").exists()
    with pytest.raises(RequestError, match="needs a reason"):
        promote(tmp_path, A, forced=True, reason="  ")
    entry = promote(tmp_path, A, forced=True, reason="a trial; token=hf_abcdefghijklmnopqrstuvwxyz")["current"]
    assert entry["forced"]
    assert any(why in refusal for refusal in entry["refusals"])
    assert "hf_abc" not in entry["reason"]


@pytest.mark.parametrize("without", [("accept_length",), ("divergence",)])
def test_what_could_not_be_held_against_anything_is_a_caution(tmp_path: Path, without: tuple[str, ...]) -> None:
    make_bench_run(tmp_path, A, without=without)
    entry = promote(tmp_path, A)["current"]
    assert any(caution.startswith(without[0]) for caution in entry["cautions"])


def test_a_drafter_that_is_slower_than_the_promoted_one_beyond_noise_is_refused(tmp_path: Path) -> None:
    make_bench_run(tmp_path, A, bench_json(low=1.6, value=1.8, high=2.0))
    make_bench_run(tmp_path, B, bench_json(low=1.1, value=1.2, high=1.3))
    make_bench_run(tmp_path, C, bench_json(low=1.1, value=1.2, high=1.3), dtype="bfloat16")
    promote(tmp_path, A)
    with pytest.raises(Refused, match="slower than what is promoted now"):
        promote(tmp_path, B)
    assert "what is promoted now reached 3/1/4, 1.80x" in promote(tmp_path, C)["current"]["cautions"][0]


def test_another_setting_than_the_best(tmp_path: Path) -> None:
    make_bench_run(tmp_path, A)
    with pytest.raises(Refused, match=r"1/1/2 reaches 0\.80x"):
        promote(tmp_path, A, setting="1/1/2")
    for setting in ("9/9/9", "baseline"):
        with pytest.raises(RequestError, match=r"timed were: 3/1/4, 1/1/2"):
            promote(tmp_path, A, setting=setting)


def test_training_again_takes_the_evidence_away(tmp_path: Path) -> None:
    run = make_bench_run(tmp_path, A)
    done = next((tmp_path / "stages").glob("train-*/done.json"))
    write_json(done, json.loads(done.read_text()) | {"identity": "another"})
    with pytest.raises(Refused, match="train has been made again"):
        promote(tmp_path, run.run_id)


@pytest.mark.parametrize("damage", ["changed", "gone"])
def test_a_drafter_whose_files_changed_is_neither_promoted_nor_gone_back_to(tmp_path: Path, damage: str) -> None:
    for run in (A, B):
        make_bench_run(tmp_path, run)
    promote(tmp_path, A)
    promote(tmp_path, B)
    weights = next(
        file for file in (tmp_path / "stages").glob("train-*/drafter/model.safetensors") if A in file.read_text()
    )
    if damage == "gone":
        weights.unlink()
    else:
        weights.write_text("x" * len(A))
    with pytest.raises(Refused, match="cannot be gone back to"):
        rollback(tmp_path)
    with pytest.raises(RequestError, match=r"model\.safetensors"):
        promote(tmp_path, A)
    assert current(tmp_path) == (B, "3/1/4")


def test_who_decided_on_an_older_state_of_affairs_is_told(tmp_path: Path) -> None:
    for run in (A, B):
        make_bench_run(tmp_path, run)
    promote(tmp_path, A, expected=0)
    with pytest.raises(Refused, match="meanwhile"):
        promote(tmp_path, B, expected=0)
    with pytest.raises(Refused, match="meanwhile"):
        rollback(tmp_path, expected=0)
    promote(tmp_path, B, expected=1)


def test_an_answer_that_was_lost_and_asked_for_again_decides_once(tmp_path: Path) -> None:
    for run in (A, B):
        make_bench_run(tmp_path, run)
    promote(tmp_path, A, token="one", expected=0)
    promote(tmp_path, B, token="two")
    assert rollback(tmp_path, token="three", expected=2)["changed"]
    again = rollback(tmp_path, token="three", expected=2)
    assert (again["changed"], again["current"]["run"]) == (False, A)
    assert not promote(tmp_path, B, token="two")["changed"]
    assert current(tmp_path) == (A, "3/1/4")


def test_one_decision_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_bench_run(tmp_path, A)
    monkeypatch.setattr(promotion, "LOCK_WAIT_S", 0.1)
    target = Target("toy", FINGERPRINT, "/models/toy")
    with promotion.deciding(tmp_path, target), pytest.raises(Refused, match="somebody else is deciding"):
        promote(tmp_path, A)
    promote(tmp_path, A)


def test_many_at_once_leave_a_whole_history(tmp_path: Path) -> None:
    runs = [f"20261130-0{hour}0000-toy-aaa{hour}" for hour in range(6)]
    for run in runs:
        make_bench_run(tmp_path, run)
    failures: list[Eagle3opsError] = []

    def work(run: str) -> None:
        try:
            promote(tmp_path, run)
        except Eagle3opsError as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(run,)) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    history = drafters.show(tmp_path)["promoted"][0]["history"]
    assert sorted(entry["run"] for entry in history) == runs
    assert [entry["replaced"] for entry in history] == list(range(6))


@given(
    st.binary(max_size=40)
    | st.recursive(
        st.none() | st.integers(),
        lambda x: st.dictionaries(
            st.sampled_from(["schema", "target", "current", "history", "number"]), x | st.lists(x)
        ),
    ).map(lambda x: json.dumps(x).encode())
)
def test_a_damaged_record_is_named(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    root = tmp_path_factory.mktemp("damaged")
    (root / "promoted").mkdir()
    path = root / "promoted" / f"{FINGERPRINT}.json"
    path.write_bytes(content)
    assert promotion.read_all(root) == ([], [str(path)])
    with pytest.raises(Eagle3opsError, match="damaged"):
        promotion.read(root, Target("toy", FINGERPRINT, ""))


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"current": 1, "history": []}', '{"current": null, "history": [{"action": "promote"}]}'],
)
def test_nothing_is_collected_where_it_is_not_known_what_is_promoted(tmp_path: Path, content: str) -> None:
    make_bench_run(tmp_path, A)
    (tmp_path / "promoted").mkdir()
    (tmp_path / "promoted" / f"{FINGERPRINT}.json").write_text(content)
    with pytest.raises(RequestError, match="which drafters are needed is not known"):
        find_garbage(tmp_path, keep=0)


def test_what_is_promoted_and_what_was_before_it_outlive_their_runs(tmp_path: Path) -> None:
    for run in (A, B, C):
        make_bench_run(tmp_path, run)
        promote(tmp_path, run)
    going = {item.path.name for item in find_garbage(tmp_path, keep=0)}
    kept = {folder.name for folder in (tmp_path / "stages").glob("train-*")} - going
    told = drafters.list_drafters(tmp_path)["drafters"]
    assert kept == {row["drafter"] for row in told if row["run"] in (B, C)}


def test_the_list_has_a_row_for_each_run_with_a_bench(tmp_path: Path) -> None:
    for run in (A, B):
        make_bench_run(tmp_path, run, failing=("accept_length",) if run == A else ())
    torn = make_bench_run(tmp_path, C)
    next(
        (tmp_path / "stages").glob(
            f"bench-{json.loads((torn.path / 'state.json').read_text())['stages']['bench']['key'][:16]}/bench.json"
        )
    ).write_text('{"timing": {')
    promote(tmp_path, B)
    found = drafters.list_drafters(tmp_path)
    assert [row["run"] for row in found["drafters"]] == [B, A]
    assert [row["promoted"] for row in found["drafters"]] == ["3/1/4", None]
    assert found["drafters"][1]["verdicts"]["accept_length"] is False
    assert found["unreadable"] == [C]
    assert drafters.list_drafters(tmp_path, target="cd")["drafters"] == []


def test_an_accept_length_goes_with_the_setting_at_which_it_was_measured(tmp_path: Path) -> None:
    """The best setting is often not the one that was served; its speed is not to stand beside the other's length."""
    made = bench_json()
    made["timing"]["settings"]["1/1/2"]["speedup"] = {"value": 1.6, "low": 1.5, "high": 1.7, "pairs": 20}
    made["timing"]["recommended"] = "1/1/2"
    make_bench_run(tmp_path, A, made)
    [row] = drafters.list_drafters(tmp_path)["drafters"]
    assert (row["setting"], row["accept_length"]) == ("1/1/2", 1.6)
    assert row["served"] == {"setting": "3/1/4", "accept_length": 2.1, "predicted": 2.15, "gap": -0.023}
    promoted = drafters.promote(tmp_path, run=A)["current"]
    assert (promoted["setting"], promoted["accept_length"]) == ("1/1/2", 1.6)


def test_why_there_is_no_bench(tmp_path: Path) -> None:
    run = make_bench_run(tmp_path, A)
    state = json.loads((run.path / "state.json").read_text())
    for status, why in (
        ("waiting", "not run yet"),
        ("running", "interrupted"),
        ("failed", "has failed"),
        ("odd", "is odd"),
    ):
        state["stages"]["bench"]["status"] = status
        (run.path / "state.json").write_text(json.dumps(state))
        answer = drafters.bench(tmp_path, run=A)
        assert answer["state"] == "absent"
        assert why in answer["why"]
        assert answer["target"]["name"] == "toy"
    del state["stages"]["bench"]
    (run.path / "state.json").write_text(json.dumps(state))
    assert "no bench stage" in drafters.bench(tmp_path, run=A)["why"]
    with pytest.raises(RequestError, match="no bench stage"):
        promote(tmp_path, A)


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = ["--root", str(tmp_path)]
    make_bench_run(tmp_path, A)
    make_bench_run(tmp_path, B, failing=("wiring",))
    assert main(["drafters", "list", *root]) == ExitCode.DONE
    assert "1.20 to 1.50" in capsys.readouterr().out
    assert main(["drafters", "promote", "last", *root]) == ExitCode.REFUSED
    assert "wiring is FAIL" in capsys.readouterr().err
    assert main(["drafters", "promote", "last", "--force", *root]) == ExitCode.BAD_REQUEST
    assert main(["drafters", "promote", "last", "--force", "--reason", "a trial", *root]) == ExitCode.DONE
    assert main(["drafters", "promote", A, *root]) == ExitCode.DONE
    capsys.readouterr()
    assert main(["drafters", "show", *root]) == ExitCode.DONE
    told = capsys.readouterr().out
    assert f"promoted {A} at 3/1/4, 1.35x of the baseline (1.20 to 1.50)" in told
    assert "launch python -m eagle3ops.engines.reference --model-path /models/toy" in told
    assert f"promoted {B} at 3/1/4 by force: a trial" in told
    assert main(["drafters", "rollback", "toy", "--json", *root]) == ExitCode.DONE
    assert json.loads(capsys.readouterr().out)["current"]["run"] == B
    assert main(["drafters", "rollback", "other", *root]) == ExitCode.BAD_REQUEST
    assert main(["drafters", "rollback", *root]) == ExitCode.DONE
    assert "no drafter: the target alone" in capsys.readouterr().out


def test_promoting_needs_no_torch(tmp_path: Path) -> None:
    make_bench_run(tmp_path, A)
    code = (
        "import sys\nfrom eagle3ops.cli import main\n"
        f"code = main(['drafters', 'promote', 'last', '--root', {str(tmp_path)!r}])\n"
        "heavy = {'torch', 'transformers', 'numpy', 'safetensors', 'textual'} & set(sys.modules)\n"
        "sys.exit(f'{code} {heavy}' if heavy or code else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, timeout=60)
    assert done.returncode == 0, done.stderr


def test_another_engine_than_ours_is_held_to_the_margins_where_its_output_differs(tmp_path: Path) -> None:
    make_bench_run(tmp_path, A, bench_json(engine="sglang"), without=("equal_output",))
    assert promote(tmp_path, A)["changed"]
    failing = bench_json(engine="sglang")
    make_bench_run(tmp_path, B, failing, without=("equal_output",), failing=("divergence",))
    with pytest.raises(Refused, match=r"divergence is FAIL"):
        promote(tmp_path, B)
