"""Which layers each side reads, the verdict, the advice: from outputs that are whole, missing or garbled."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_outputs import RUN, made_run, say

from eagle3ops.errors import RequestError
from eagle3ops.outputs.wiring import parse_verdict, wiring_of
from eagle3ops.wiring.verdict import MAX_ERROR, MIN_MARGIN

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


def told(root: Path, run: str = RUN) -> dict[str, Any]:
    """The answer, which must be JSON without NaN."""
    answer = wiring_of(root, run)
    json.dumps(answer, allow_nan=False)
    return answer


def side(answer: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(one for one in answer["sides"] if one["side"] == name)
    return found


def test_sides_that_agree(tmp_path: Path) -> None:
    made_run(tmp_path)
    answer = told(tmp_path)
    assert answer["layers"] == 8
    assert [one["boundaries"] for one in answer["sides"]] == [[2, 4, 5]] * 3
    assert side(answer, "trained")["names"] == {
        "boundary": [2, 4, 5], "hf_hidden_states": [2, 4, 5], "layer_outputs": [1, 3, 4]
    }  # fmt: skip
    assert answer["verdict"]["passed"] is True
    assert answer["advice"] == ["Nothing to do: bench and promotion rest on sound wiring."]
    assert answer["needed"] == {
        "margin": 5.0, "error": 0.06, "greedy_agreement": 0.95, "probes": 3, "probe_tokens": 48
    }  # fmt: skip


def test_the_last_boundary_has_no_number_at_hugging_face(tmp_path: Path) -> None:
    made_run(tmp_path, trained=(2, 4, 8))
    assert side(told(tmp_path), "trained")["names"]["hf_hidden_states"] is None


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ({"served": (2, 4, 6), "serve": {"convention": "boundary", "ids": [2, 4, 6]}}, "aux_layers=null"),
        ({"served": (3, 5, 6)}, "off by +1"),
        ({"served": (5, 4, 2)}, "wrong order"),
        ({"served": (2, 4, 7)}, "layer outputs 1, 3, 4 (SpecForge"),
        ({"error": 0.7}, "prefix cache"),
        ({"error": 0.05, "served": (2, 4, 5)}, "Nothing to do"),
        ({"error": 0.09, "served": (2, 4, 5)}, "To decide it: measure how far this engine moves"),
        ({"stored": (1, 4, 5)}, "extract again"),
        ({"stored": (3, 5, 6), "served": (3, 5, 6)}, "odd one out"),
        ({"agreement": 0.5}, "final norm"),
        (
            {"error": 0.7, "causes": {"engine reference": {"kind": "tokens", "words": "not aligned", "fix": "shift"}}},
            "Engine reference: not aligned; shift.",
        ),
    ],
)
def test_advice_names_what_is_to_be_done(tmp_path: Path, made: dict[str, Any], words: str) -> None:
    made_run(tmp_path, **made)
    assert words in " ".join(told(tmp_path)["advice"])


def test_an_undecided_verdict_is_no_pass(tmp_path: Path) -> None:
    made_run(tmp_path, error=0.09, served=(2, 4, 5))
    verdict = told(tmp_path)["verdict"]
    assert (verdict["verdict"], verdict["passed"]) == ("UNDECIDED", False)
    assert [side["verdict"] for side in verdict["sides"]] == ["PASS", "UNDECIDED"]
    assert "0.09" in verdict["reason"]
    assert "more than the noise that is known" in verdict["reason"]


def test_a_record_from_before_there_was_undecided_stays_readable(tmp_path: Path) -> None:
    made_run(tmp_path, served=(3, 5, 6))
    (file,) = tmp_path.rglob("verdict.json")
    record = json.loads(file.read_text())
    old = {key: value for key, value in record.items() if key not in ("verdict", "checks", "limits")}
    for side in old["sides"]:
        side.pop("verdict"), side.pop("decides")
        for segment in side["segments"]:
            segment.pop("verdict"), segment.pop("decides")
    file.write_text(json.dumps(old))
    answer = told(tmp_path)
    assert answer["verdict"]["verdict"] == "FAIL"
    assert [side["verdict"] for side in answer["verdict"]["sides"]] == ["PASS", "FAIL"]
    assert answer["verdict"]["checks"] == []
    assert (answer["needed"]["margin"], answer["needed"]["error"]) == (MIN_MARGIN, MAX_ERROR)
    assert "off by +1" in " ".join(answer["advice"])
    old_pass = parse_verdict({"passed": True, "sides": []})
    assert old_pass is not None
    assert old_pass["verdict"] == "PASS"


def test_a_check_that_fails_is_shown_with_what_mends_it(tmp_path: Path) -> None:
    check = {"name": "engine_template", "between": ["data", "engine"], "verdict": "FAIL", "kind": "doubled_bos",
             "reason": "the engine begins with two BOS tokens", "fix": "tokenise without"}  # fmt: skip
    made_run(tmp_path, checks=[check, {"name": 3, "verdict": "perhaps"}], agreement=0.5)
    answer = told(tmp_path)
    assert answer["verdict"]["checks"][0]["kind"] == "doubled_bos"
    assert answer["verdict"]["checks"][1]["verdict"] == "not made"
    assert "Chat template: tokenise without." in answer["advice"]


def test_before_verify_the_declared_layers_are_compared(tmp_path: Path) -> None:
    made_run(tmp_path, served=(2, 4, 6), stages=("fetch", "generate", "extract", "train", "serve"))
    answer = told(tmp_path)
    assert answer["verdict"] is None
    assert answer["words"] == "the verify stage has not run yet"
    assert "engine reference reads boundaries 2, 4, 6, but the drafter was trained on 2, 4, 5" in answer["advice"][0]


def test_a_run_that_has_done_nothing(tmp_path: Path) -> None:
    made_run(tmp_path, stages=())
    answer = told(tmp_path)
    assert answer["layers"] is None
    assert answer["target"] == {"words": "the fetch stage has not run yet"}
    words = [one["words"] for one in answer["sides"]]
    assert words == [f"the {stage} stage has not run yet" for stage in ("extract", "train", "serve")]
    assert answer["advice"] == []


def test_a_root_that_was_moved(tmp_path: Path) -> None:
    made_run(tmp_path / "before")
    (tmp_path / "before").rename(tmp_path / "after")
    assert told(tmp_path / "after")["verdict"]["passed"] is True


def test_a_run_of_one_stage_finds_what_it_was_made_from(tmp_path: Path) -> None:
    run = made_run(tmp_path)
    state = json.loads((run.path / "state.json").read_text())
    outs = {name: Path(stage["out"]).name for name, stage in state["stages"].items()}
    state["stages"] = {"verify": state["stages"]["verify"]}
    say(run.path / "state.json", state)
    inputs = {name: {"out": out, "identity": None} for name, out in outs.items() if name != "verify"}
    say(tmp_path / "stages" / outs["verify"] / "done.json", {"finished": 1.0, "inputs": inputs})
    answer = told(tmp_path)
    assert [one["boundaries"] for one in answer["sides"]] == [[2, 4, 5]] * 3


def test_damaged_files_are_named(tmp_path: Path) -> None:
    run = made_run(tmp_path)
    for stage, file in (("fetch", "target.json"), ("train", "drafter/config.json"), ("serve", "serve.json"),
                        ("verify", "verdict.json"), ("extract", "heldout/header.json")):  # fmt: skip
        path = next((tmp_path / "stages").glob(f"{stage}-*")) / file
        path.write_bytes(path.read_bytes()[:20])
    run.spec_file.write_bytes(b"\xff\x00[")
    answer = told(tmp_path)
    assert "target.json: damaged" in answer["target"]["words"]
    assert [bool(one["words"]) for one in answer["sides"]] == [True, True, True]
    assert answer["words"] == "verdict.json is damaged, or of an older format"


def test_ids_that_do_not_exist_are_said_to(tmp_path: Path) -> None:
    made_run(tmp_path, served=(2, 4, 6), layers=8)
    config = next((tmp_path / "stages").glob("train-*")) / "drafter" / "config.json"
    say(config, {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 99]}})
    assert "boundary 100 does not exist" in side(told(tmp_path), "trained")["words"]


def test_no_such_run(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="there is no run"):
        wiring_of(tmp_path, "nothing")


CHECK = st.dictionaries(st.sampled_from(["name", "between", "verdict", "reason"]), JSON)
SEGMENTS = st.lists(st.dictionaries(st.sampled_from(["segment", "error", "margin", "served"]), JSON), max_size=3)
VERDICT = st.fixed_dictionaries(
    {
        "passed": st.booleans(),
        "verdict": JSON,
        "limits": JSON,
        "checks": JSON | st.lists(CHECK, max_size=3),
        "sides": JSON | st.lists(st.fixed_dictionaries({"segments": SEGMENTS}), max_size=3),
    }
)


@settings(max_examples=40)
@given(JSON | VERDICT)
def test_any_verdict_file_becomes_json_or_nothing(raw: object) -> None:
    found = parse_verdict(raw)
    if found is not None:
        json.dumps(found, allow_nan=False)


@settings(max_examples=15, deadline=None)
@given(verdict=JSON, config=JSON, facts=JSON, spec=JSON)
def test_garbled_outputs_never_raise(
    tmp_path_factory: pytest.TempPathFactory, verdict: object, config: object, facts: object, spec: object
) -> None:
    root = tmp_path_factory.mktemp("root")
    run = made_run(root)
    files = {"verify": "verdict.json", "train": "drafter/config.json", "serve": "serve.json"}
    for (stage, file), data in zip(files.items(), (verdict, config, facts), strict=True):
        (next((root / "stages").glob(f"{stage}-*")) / file).write_text(json.dumps(data))
    run.spec_file.write_text(json.dumps(spec))
    told(root)


def test_neither_torch_nor_transformers_is_loaded(tmp_path: Path) -> None:
    made_run(tmp_path)
    program = (
        "import sys; from pathlib import Path; from eagle3ops.outputs import tokens, wiring; root = Path(sys.argv[1]); "
        "wiring.wiring_of(root, 'last'); tokens.tokens_of(root, 'last'); "
        "print(*[name for name in ('torch', 'transformers', 'textual') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize(
    ("made", "code", "words"),
    [({"served": (2, 4, 6)}, 3, "FAIL"), ({}, 0, "PASS"), ({"error": 0.09, "served": (2, 4, 5)}, 3, "UNDECIDED")],
)
def test_the_command_line_prints_it_and_exits_by_the_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], made: dict[str, Any], code: int, words: str
) -> None:
    from eagle3ops.cli import main

    made_run(tmp_path, **made)
    assert main(["runs", "wiring", "last", "--root", str(tmp_path)]) == code
    told = capsys.readouterr().out
    assert told.startswith(RUN)
    assert words in told
    assert "engine reference" in told
    assert main(["runs", "wiring", "last", "--root", str(tmp_path), "--json"]) == code
    assert json.loads(capsys.readouterr().out)["layers"] == 8


def test_without_a_verdict_no_script_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from eagle3ops.cli import main

    made_run(tmp_path)
    for verdict in tmp_path.rglob("verdict.json"):
        verdict.unlink()
    assert main(["runs", "wiring", "last", "--root", str(tmp_path)]) == 1
    assert "no verdict about the wiring yet" in capsys.readouterr().err
