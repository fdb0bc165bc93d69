"""Are logs of hosts whose clocks differ put in the right order, and those of one host left alone?"""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3ops.forensics.clocks import MOMENTS, Moments, ahead
from eagle3ops.forensics.diagnosis import diagnose_files


def stamp(second: float) -> str:
    return f"2026-03-11 09:{int(second) // 60:02d}:{second % 60:06.3f}"


def steps(rank: int, apart: float, count: int = 20) -> str:
    return "".join(
        f"{stamp(60 + n * 5 + apart + rank * 0.05)} - INFO - step {n} rank {rank} loss 2.{n}\n" for n in range(count)
    )


@pytest.mark.parametrize("apart", [90.0, -45.0, 600.0])
def test_two_hosts_whose_clocks_differ(tmp_path: Path, apart: float) -> None:
    """By the clocks the peer that lost its connection speaks before (or long after) the one that failed."""
    late = steps(0, 0.0) + f"{stamp(161.0)} - ERROR - RuntimeError: the loader gave up on a shard\n"
    early = steps(8, apart) + f"{stamp(159.0 + apart)} - ERROR - ValueError: row 7 is empty\n"
    (tmp_path / "a.log").write_text(late)
    (tmp_path / "b.log").write_text(early)
    for names in (["a.log", "b.log"], ["b.log", "a.log"]):
        found = diagnose_files([tmp_path / name for name in names])
        assert found.root is not None
        assert found.root.text.endswith("row 7 is empty")
        assert len(found.notes) == 1
        assert f"{abs(apart):.0f} s" in found.notes[0]


def test_one_host(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(steps(0, 0.0) + f"{stamp(161.0)} - ERROR - RuntimeError: second\n")
    (tmp_path / "b.log").write_text(steps(8, 0.4) + f"{stamp(159.0)} - ERROR - ValueError: first\n")
    found = diagnose_files([tmp_path / "a.log", tmp_path / "b.log"])
    assert found.root is not None
    assert found.root.text.endswith("first")
    assert found.notes == []


def test_what_does_not_agree_moves_nothing() -> None:
    one = {f"step {n}": float(n) for n in range(20)}
    assert ahead([one, {f"step {n}": n * 30.0 for n in range(20)}]) == [0.0, 0.0]
    assert ahead([one, {"step 1": 91.0, "step 2": 92.0}]) == [0.0, 0.0]
    assert ahead([]) == []


def test_a_chain_of_logs() -> None:
    """The third shares moments with the second only."""
    first = {f"step {n}": float(n) for n in range(40)}
    second = {f"step {n}": n + 90.0 for n in range(30, 60)}
    third = {f"step {n}": n - 10.0 for n in range(50, 70)}
    assert ahead([first, second, third]) == [0.0, 90.0, -10.0]


def test_moments_are_bounded() -> None:
    moments = Moments()
    for n in range(MOMENTS * 3):
        moments.take(f"step {n} loss 1", float(n))
    assert len(moments.known) == MOMENTS
    assert {"step 0", f"step {MOMENTS * 3 - 1}"} <= moments.known.keys()


@given(st.lists(st.dictionaries(st.sampled_from("abcdefg"), st.floats(-1e9, 1e9)), max_size=5))
def test_any_moments(logs: list[dict[str, float]]) -> None:
    assert len(ahead(logs)) == len(logs)
