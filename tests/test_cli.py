"""Does the command line answer quickly, refuse clearly, and import only what it needs?"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from eagle3ops import __version__
from eagle3ops.cli import main

HEAVY = ("torch", "transformers", "numpy", "textual", "pydantic", "yaml", "rich", "psutil", "sqlite3")


def call(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "eagle3ops", *arguments],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
        env=os.environ | environment,
    )


def imported(*arguments: str) -> set[str]:
    run = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "eagle3ops", *arguments],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
    )
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in run.stderr.splitlines() if "|" in line}


def test_an_output_that_cannot_be_written_is_no_defect() -> None:
    for redirection, words in ((">/dev/full", "the output cannot be written"), (">&-", "")):
        command = f"{sys.executable} -m eagle3ops spec schema {redirection}"
        run = subprocess.run(["sh", "-c", command], capture_output=True, text=True, stdin=subprocess.DEVNULL)
        assert run.returncode == (1 if words else 0), run.stderr
        assert words in run.stderr
        assert "defect" not in run.stderr
        assert "Traceback" not in run.stderr


def test_version_answers_without_importing_anything_heavy() -> None:
    assert call("--version").stdout.strip() == f"eagle3ops {__version__}"
    assert imported("--version").isdisjoint(HEAVY)


def test_headless_commands_import_neither_the_terminal_nor_torch(tmp_path: Path) -> None:
    for arguments in (("spec", "schema"), ("spec", "check", "demo"), ("plan", "demo"), ("plan", "--spec", "demo")):
        loaded = imported(*arguments)
        assert "pydantic" in loaded, arguments
        assert loaded.isdisjoint({"textual", "torch", "transformers", "safetensors"}), arguments


def test_without_a_terminal_the_console_is_refused_without_escape_codes() -> None:
    run = call()
    assert run.returncode == 2
    assert "needs a terminal" in run.stderr
    assert "\x1b" not in run.stderr + run.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--nonsense",), "unrecognized arguments: --nonsense"),
        (("--spec", "demo"), "--spec needs --job NAME"),
        (("--job", "trian"), "did you mean 'train'?"),
        (("--job", "pipeline", "--spec", "missing.yaml"), "there is no such file"),
        (("--job", "pipeline", "--spec", "dmo"), "did you mean 'demo'?"),
        (("--job", "pipeline", "--host", "mars"), "unknown host 'mars'"),
        (("--job", "pipeline", "--set", "host=mars"), "unknown host 'mars'"),
        (("--job", "pipeline", "--set", "stages.train.nonsense=1"), "stages.train.nonsense: unknown key"),
        (("plan", "demo", "--job", "trian"), "did you mean 'train'?"),
        (("plan", "demo", "--spec", "tiny"), "two pipeline files are named, demo and --spec tiny"),
        (("web", "--listen", "0.0.0.0"), "ssh -L 7333:localhost:7333"),
        (("web", "--host", "mars"), "unknown host 'mars'"),
        (("web", "--port", "70000"), "argument --port: '70000' is not a port (0 to 65535)"),
        (("telemetry", "record", "f", "--hz", "0"), "argument --hz: '0' is not a number from 0.01 to 100"),
        (("telemetry", "record", "f", "--seconds", "nan"), "argument --seconds: 'nan' is not a number of seconds"),
        (("runs", "gc", "--keep", "-1"), "argument --keep: '-1' is not a whole number, 0 or more"),
        (("runs", "list", "--root", "~nobody-here/runs"), "~nobody-here/runs: the home folder of nobody-here"),
        (("plan", "~nobody-here/mine.yaml"), "there is no such file"),
        (
            ("plan", "demo", "--set", "stages.generate.prompts=~nobody-here/p.jsonl"),
            "/~nobody-here/p.jsonl: no such file",
        ),
        (("runs", "show", "none"), "there is no run 'none'"),
        (("runs", "gc", "--keep", "-1"), "--keep"),
        (("runs",), "COMMAND"),
        (("--job", "pipeline", "--key", ""), "--key is empty"),
        (("--job", "pipeline", "--host", ""), "--host is empty"),
        (("runs", "list", "--host", ""), "--host is empty"),
        (("runs", "gc", "--yes", "--root", ""), "--root is empty"),
    ],
)
def test_a_wrong_request_is_explained_with_exit_code_2(
    arguments: tuple[str, ...],
    words: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("EAGLE3OPS_ROOT", str(tmp_path / "root"))
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    told = capsys.readouterr()
    assert words in told.err
    assert told.out == ""
    assert "Traceback" not in told.err
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize("name", ["demo", "tiny"])
def test_bundled_pipelines_are_right_and_can_be_planned(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["spec", "check", name, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == 1
    main(["plan", name, "--json", "--root", str(tmp_path)])
    plan = json.loads(capsys.readouterr().out)
    assert [stage["done"] for stage in plan["stages"]] == [False] * len(plan["stages"])
    assert len({stage["key"] for stage in plan["stages"]}) == len(plan["stages"])


def test_a_defect_is_one_sentence_and_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    run = call("runs", "list", EAGLE3OPS_JOBS="no_such_module", EAGLE3OPS_ROOT="/proc/none")
    assert run.returncode == 0
    run = call("plan", EAGLE3OPS_JOBS="no_such_module")
    assert run.returncode == 1
    assert "No module named 'no_such_module'" in run.stderr
    log = Path(run.stderr.strip().rpartition(" ")[2])
    assert "Traceback" in log.read_text()
    log.unlink()


def test_a_root_below_a_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["--job", "pipeline", "--spec", "tiny", "--root", str(tmp_path / "file" / "root")]) == 2
    assert "file is a file, not a folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--spec", "tiny", "plan"), "--spec belongs to --job NAME"),
        (("--job", "train", "runs", "list"), "--job belongs to --job NAME"),
        (("--set", "seed=1", "plan", "tiny"), "--set stands before the command"),
        (("plan", ""), "the name of the pipeline file is empty"),
        (("plan", "tiny", "--set", "stages.generate.prompts=/nowhere.jsonl"), "/nowhere.jsonl: no such file"),
    ],
)
def test_what_would_be_dropped_or_fail_later_is_refused_now(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    assert main([*arguments, "--root", str(tmp_path)]) == 2
    assert said in capsys.readouterr().err


def test_a_plan_refuses_an_engine_that_cannot_run_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    elsewhere = ("--set", "engine.name=vllm", "--set", "engine.python=/nowhere/bin/python")
    at = ("--root", str(tmp_path))
    code = main(["plan", "tiny", *elsewhere, *at])
    told = capsys.readouterr()
    assert "/nowhere/bin/python: No such file" in told.err
    states = {words[0]: words[1] for line in told.out.splitlines() if len(words := line.split()) > 1}
    assert (states["fetch"], states["generate"], states["serve"]) == ("will", "refused", "refused")
    assert re.search("^generate, .*serve.*: refused: .*/nowhere/bin/python", told.out, re.MULTILINE)
    # As the job itself would end.
    assert main(["--job", "pipeline", "--spec", "tiny", *elsewhere, *at]) == code


def test_an_edited_prompt_file_is_another_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = tmp_path / "mine.jsonl"
    keys = []
    for text in ("one", "two"):
        prompts.write_text(json.dumps({"prompt": text}) + "\n")
        plan = ["plan", "tiny", "--set", f"stages.generate.prompts={prompts}", "--json", "--root", str(tmp_path)]
        assert main(plan) == 0
        stages = json.loads(capsys.readouterr().out)["stages"]
        keys.append({stage["stage"]: stage["key"] for stage in stages})
    assert keys[0]["fetch"] == keys[1]["fetch"]
    assert keys[0]["generate"] != keys[1]["generate"]
    assert keys[0]["train"] != keys[1]["train"]
