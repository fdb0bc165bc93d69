"""A sweep of real servers that are killed and stopped, and of a run that is killed, ends unattended with a winner."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]

FAULTS = Path(__file__).parents[2] / "benchmarks" / "sweep_faults.py"
SETTINGS = [
    "stages.sweep.axes={steps: [1, 2, 3, 4, 5, 6, 7]}",
    "stages.sweep.points=[{steps: 2, topk: 2, draft_tokens: 6}, {steps: 3, topk: 2, draft_tokens: 8}, "
    "{steps: 3, topk: 4, draft_tokens: 16}, {steps: 4, topk: 4, draft_tokens: 16}, "
    "{steps: 5, topk: 4, draft_tokens: 16}]",
    "stages.sweep.first_pairs=2",
    "stages.sweep.eta=4",
    "stages.sweep.rungs=2",
    "stages.sweep.final_pairs=3",
    "stages.sweep.max_new_tokens=8",
    "stages.sweep.warmup=1",
    "stages.sweep.per_gpu=6",
    "stages.sweep.request_deadline_s=10",
]
"""Twelve points with tiny prompts."""


def command(root: Path, *args: str) -> list[str]:
    return [sys.executable, "-m", "eagle3ops", *args, "--root", str(root)]


def environment(cache: Path) -> dict[str, str]:
    return {
        **os.environ,
        "EAGLE3OPS_CACHE": str(cache),
        "EAGLE3OPS_STATE": str(cache / "state"),
        "OMP_NUM_THREADS": "1",
        "NO_COLOR": "1",
    }


def sweep(root: Path) -> list[str]:
    return command(root, "--job", "sweep", "--spec", "tiny", *(word for one in SETTINGS for word in ("--set", one)))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with everything that a sweep needs."""
    root = tmp_path_factory.mktemp("swept")
    for job in ("fetch", "generate", "extract", "train", "serve"):
        done = subprocess.run(
            command(root, "--job", job, "--spec", "tiny"),
            env=environment(root / "cache"), capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
    return root


def newest(root: Path) -> Path:
    return max(path for path in (root / "runs").iterdir() if path.is_dir())


def rows(root: Path) -> list[dict[str, Any]]:
    (file,) = (root / "stages").glob("sweep-*/rows.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_the_plan_says_what_a_sweep_comes_to(root: Path) -> None:
    words = [word for one in SETTINGS for word in ("--set", one)]
    told = subprocess.run(
        command(root, "plan", "tiny", "--job", "sweep", *words, "--set", "stages.sweep.axes.topk=[1, 2]"),
        env=environment(root / "cache"), capture_output=True, text=True, check=True,
    )  # fmt: skip
    said = told.stdout + told.stderr
    assert "12 points of 12 settings, 2 rungs: 12 x 2 pairs -> 3 x 8 pairs" in said
    assert "server starts" in said
    assert "7 combinations left out: a tree (topk above 1) needs a number of draft tokens" in said


def test_killed_hung_and_killed_altogether(root: Path) -> None:
    cache = root / "cache"
    # The servers that are broken, and the run that is killed after that.
    with subprocess.Popen(
        [sys.executable, str(FAULTS), str(root), "--kill-run", "--rows", "2"],
        env=environment(cache), stdout=subprocess.PIPE, text=True,
    ) as faults:  # fmt: skip
        killed = subprocess.run(sweep(root), env=environment(cache), capture_output=True, text=True, check=False)
        said = [json.loads(line) for line in faults.communicate(timeout=300)[0].splitlines()]
    assert [one.get("signal", "run") for one in said] == ["SIGKILL", "SIGSTOP", "run"]
    assert killed.returncode != 0
    kept = [row for row in rows(root) if row["kind"] == "measured"]
    assert len(kept) >= 2
    # Taken up again, and broken again: nobody helps.
    with subprocess.Popen(
        [sys.executable, str(FAULTS), str(root), "--rows", str(len(kept) + 1)],
        env=environment(cache), stdout=subprocess.PIPE, text=True,
    ) as faults:  # fmt: skip
        done = subprocess.run(
            command(root, "runs", "resume", newest(root).name, "--json"),
            env=environment(cache), capture_output=True, text=True, check=False,
        )  # fmt: skip
        said = [json.loads(line) for line in faults.communicate(timeout=300)[0].splitlines()]
    assert done.returncode == 0, done.stderr[-3000:]
    assert [one["signal"] for one in said] == ["SIGKILL", "SIGSTOP"]
    found = rows(root)
    assert [row for row in found if row["kind"] == "measured"][: len(kept)] == kept
    measured = [(row["point"], row["rung"]) for row in found if row["kind"] == "measured"]
    assert len(measured) == len(set(measured)), "a finished measurement was made again"
    failures = [row for row in found if row["kind"] == "failure"]
    assert sum("no answer within 10 s" in row["what"] for row in failures) >= 1
    assert len(failures) >= 2
    (file,) = (root / "stages").glob("sweep-*/sweep.json")
    result = json.loads(file.read_text())
    assert len(result["points"]) == 12
    assert all(row["state"] in ("finished", "dropped") for row in result["points"]), result["failures"]
    (won,) = result["winners"]
    assert "--speculative-num-steps" in won["launch_line"]
    assert won["is_default"] or won["over_default"]["pairs"] == 3
    events = [json.loads(line) for line in done.stdout.splitlines()]
    told = [event["data"] for event in events if event["kind"] == "progress" and event["stage"] == "sweep"]
    assert told[-1]["done"] == told[-1]["total"]


def test_the_gate_refuses_a_winner_that_is_not_faster_beyond_noise(root: Path) -> None:
    (file,) = (root / "stages").glob("sweep-*/sweep.json")
    won = json.loads(file.read_text())["winners"][0]
    asked = subprocess.run(
        command(root, "drafters", "promote", newest(root).name, "--setting", won["setting"]),
        env=environment(root / "cache"), capture_output=True, text=True, check=False,
    )  # fmt: skip
    # Nothing has looked at wiring and output here; on a random target the drafter is no faster either.
    assert asked.returncode == 6
    assert "wiring is not proven" in asked.stderr
    assert won["better_than_baseline"] or "not faster beyond noise" in asked.stderr
