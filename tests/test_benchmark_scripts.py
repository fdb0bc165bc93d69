"""Do the scripts in benchmarks/ refuse wrong input with words, and leave alone what is not theirs?"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def script(name: str, *words: str) -> subprocess.CompletedProcess[str]:
    """The finished script."""
    command = [sys.executable, str(BENCHMARKS / name), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.parametrize("count", ["0", "-5", "10000000"])
def test_a_count_of_prompts_that_cannot_be_is_refused_with_the_number_there_are(count: str) -> None:
    done = script("prompts.py", count)
    assert done.returncode == 2
    assert f"{count} were asked for" in done.stderr
    assert "Traceback" not in done.stderr


def test_as_many_prompts_as_were_asked_for() -> None:
    lines = script("prompts.py", "10").stdout.splitlines()
    assert len({json.loads(line)["prompt"] for line in lines}) == 10


def test_shards_keep_what_lay_in_the_folder_they_were_given(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("kept")
    done = script("shards.py", str(tmp_path), "--rows", "2", "--shards", "1", "--workers", "1")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["workers"]["1"]["mb_per_s"] > 0
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
