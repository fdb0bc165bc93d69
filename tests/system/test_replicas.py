"""A generate stage over two replicas of the reference engine, one of which is killed while it answers."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

PIPELINE = """\
schema: 1
name: two
target: {model: tiny-random}
engine: {name: reference, dtype: float32, device: cpu, replicas: 2}
watchdog: {on: false}
stages:
  generate: {train: 60, heldout: 4, max_new_tokens: 48, batch: 2}
"""


def events(root: Path) -> list[dict[str, Any]]:
    lines = [line for file in root.glob("runs/*/events.jsonl") for line in file.read_text().splitlines()]
    return [json.loads(line) for line in lines]


@pytest.mark.slow
def test_a_replica_that_is_killed_costs_no_answer(tmp_path: Path) -> None:
    spec = tmp_path / "two.yaml"
    spec.write_text(PIPELINE)
    root = tmp_path / "root"
    environment = {**os.environ, "EAGLE3OPS_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
    run = [sys.executable, "-m", "eagle3ops", "--spec", str(spec), "--root", str(root), "--job"]
    subprocess.run([*run, "fetch"], env=environment, capture_output=True, check=True)
    with (tmp_path / "out.txt").open("wb") as out:
        started = subprocess.Popen([*run, "generate"], env=environment, stdout=out, stderr=out)
        try:
            killed = None
            while started.poll() is None and killed is None:
                done = [event for event in events(root) if event["kind"] == "progress"
                        and event["data"]["unit"] == "prompts" and event["data"]["done"] >= 4]  # fmt: skip
                if done:
                    servers = [event["data"] for event in events(root) if event["kind"] == "process"
                               and event["data"].get("role") == "engine-generate-1"]  # fmt: skip
                    killed = servers[0]["pid"]
                    os.killpg(killed, signal.SIGKILL)
                time.sleep(0.05)
            assert started.wait(90) == 0, (tmp_path / "out.txt").read_text()[-3000:]
        finally:
            started.kill()
            started.wait()
    assert killed is not None
    (file,) = (root / "stages").glob("generate-*/answers.jsonl")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert len({row["id"] for row in rows}) == 64
    warned = [event["data"]["text"] for event in events(root) if event["kind"] == "warn"]
    assert any("is taken out, 1 of 2 servers are left" in text for text in warned)
    roles = {event["data"].get("role") for event in events(root) if event["kind"] == "process"}
    assert {"engine-generate", "engine-generate-1"} <= roles
