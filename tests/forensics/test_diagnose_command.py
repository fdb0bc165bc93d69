"""What does `eagle3ops diagnose` print, and with which exit code?"""

import json
from pathlib import Path

import pytest

from eagle3ops.cli import main

FAILED = """\
step 1 loss 3.0
[rank1]: Traceback (most recent call last):
[rank1]:   File "/srv/t.py", line 3, in <module>
[rank1]: torch.OutOfMemoryError: \x1b[31mCUDA out of memory\x1b[0m. Tried to allocate 7.42 GiB.
[rank0]: torch.distributed.DistBackendError: NCCL communicator was aborted on rank 0.
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "train.log"
    path.write_text(FAILED)
    return path


def test_in_words(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(log)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("it failed\n")
    assert f"{log}:4 (byte {FAILED.index('[rank1]: torch')})" in said
    assert "cuda_oom" in said
    assert "suspect ranks: 1" in said
    assert "follows from what failed before" in said
    assert "\x1b" not in said


def test_for_programs(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(log), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"verdict", "root", "suspect_ranks", "discounted", "notes"}
    assert set(found["root"]) == {
        "file", "offset", "line_no", "text", "category", "confidence", "explanation", "fix", "source", "fingerprint",
    }  # fmt: skip
    assert (found["verdict"], found["root"]["line_no"], found["suspect_ranks"]) == ("failure", 4, [1])
    log.write_text("step 1 loss 3.0\nTraining finished. error_count=0\n")
    assert main(["diagnose", str(log), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == {"verdict": "no_failure", "root": None, "suspect_ranks": [], "discounted": [], "notes": []}


def test_no_secret_leaves(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    secret = "hf_" + "a1B2c3D4" * 4
    log.write_text(f"ValueError: the token {secret} was refused\nKeyError: 'HF_TOKEN={secret}'\n")
    assert main(["diagnose", str(log), "--json"]) == 0
    assert secret not in capsys.readouterr().out


def test_a_run(log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "root" / "runs" / "20261129-120000-made-aaaa"
    (run / "logs").mkdir(parents=True)
    (run / "logs" / "train.log").write_text(FAILED)
    (run / "events.jsonl").touch()
    (run / "request.json").write_text("{}")
    (run / "state.json").write_text(json.dumps({"status": "failed", "stages": {"train": {"status": "failed"}}}))
    assert main(["diagnose", "--run", "last", "--json", "--root", str(tmp_path / "root")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["root"]["file"], found["root"]["category"]) == ("train.log", "cuda_oom")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "takes log files or --run"),
        (["a.log", "--run", "last"], "takes log files or --run"),
        (["a.log", "--host", "gpu"], "--host goes with --run"),
        (["no/such.log"], "no/such.log: cannot be read: No such file or directory"),
    ],
)
def test_a_wrong_request(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", *arguments]) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert not captured.out
