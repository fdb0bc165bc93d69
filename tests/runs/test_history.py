"""Forecast times come from what finished here before, and from nothing else."""

import json
from pathlib import Path

from eagle3ops.runs.history import forecast_seconds, past_seconds


def finished(stages: Path, name: str, seconds: float, tokens: float | None, at: float) -> None:
    folder = stages / name
    folder.mkdir(parents=True)
    metrics = {} if tokens is None else {"tokens": tokens}
    (folder / "done.json").write_text(json.dumps({"seconds": seconds, "metrics": metrics, "finished": at}))


def test_without_a_past_nothing_is_claimed(tmp_path: Path) -> None:
    assert past_seconds(tmp_path, "train") is None
    assert forecast_seconds(tmp_path, "train", "tokens", 100) is None


def test_the_newest_finished_stages_of_the_job_count(tmp_path: Path) -> None:
    for k in range(9):
        finished(tmp_path, f"train-{k}", seconds=10.0 if k >= 4 else 1000.0, tokens=500.0, at=float(k))
    finished(tmp_path, "trainer-x", seconds=1.0, tokens=1.0, at=99.0)
    finished(tmp_path, "extract-x", seconds=1.0, tokens=1.0, at=99.0)
    assert past_seconds(tmp_path, "train") == 10.0
    assert forecast_seconds(tmp_path, "train", "tokens", 1000) == 20.0
    assert forecast_seconds(tmp_path, "train", "tokens", None) is None


def test_damaged_and_unmeasured_stages_are_passed_over(tmp_path: Path) -> None:
    finished(tmp_path, "train-a", seconds=5.0, tokens=None, at=1.0)
    broken = tmp_path / "train-b"
    broken.mkdir()
    (broken / "done.json").write_text("{")
    assert forecast_seconds(tmp_path, "train", "tokens", 10) is None
    assert past_seconds(tmp_path, "train") == 5.0
