"""Phases read from the words of real logs, and how long each may take."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3ops.watchdog.judge.deadlines import Deadlines, parse_learnt
from eagle3ops.watchdog.judge.phases import PHASES, STARTING, PhaseReader
from eagle3ops.watchdog.judge.states import STATES

SGLANG = ["importing", "connecting", "importing", "loading", "allocating"]


def phases(text: str) -> list[str]:
    reader = PhaseReader()
    found: list[str] = []
    for number, line in enumerate(text.split("\n")):
        reader.take("log", line, float(number))
        if reader.phase is not None and (not found or found[-1] != reader.phase.name):
            found.append(reader.phase.name)
    return found


@pytest.mark.recordings
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpu/logs/runA-server_base.log.gz", [*SGLANG, "capturing", "warming_up", "serving", "stopping"]),
        ("sglang-cpu/c23a.log", [*SGLANG, "warming_up", "serving", "stopping"]),
        ("sglang-cpu/wd2.log", [*SGLANG, "warming_up", "serving", "stopping"]),
        (
            "vllm-cpu/base.log",
            ["importing", "connecting", "loading", "allocating", "compiling", "warming_up", "serving", "stopping"],
        ),
    ],
)
def test_the_phases_of_real_starts(recordings: Path, name: str, expected: list[str]) -> None:
    data = (recordings / name).read_bytes()
    text = (gzip.decompress(data) if name.endswith("gz") else data).decode(errors="replace")
    assert phases(text) == expected
    # Neither Python's progress bars nor carriage returns nor terminal colours make another story of it.
    assert phases(text.replace("[2026", "\x1b[32m[2026")) == expected


@pytest.mark.recordings
def test_no_healthy_log_holds_an_alarm(recordings: Path) -> None:
    for name in ("gpu/logs/E-server_s3k1d4.log.gz", "gpu/logs/runA-server_hs.log.gz", "sglang-cpu/cpu5.log"):
        data = (recordings / name).read_bytes()
        reader = PhaseReader()
        for number, line in enumerate((gzip.decompress(data) if name.endswith("gz") else data).decode().split("\n")):
            reader.take("log", line, float(number))
            assert not [one for one in reader.alarms.values() if one.convicts], name


def test_the_phase_is_that_of_the_rank_that_is_least_far() -> None:
    reader = PhaseReader()
    for rank in range(8):
        reader.take("log", f"[2026-11-30 02:46:14 TP{rank}] Load weight begin. avail mem=139.13 GB", 1.0)
    for rank in range(7):
        reader.take("log", f"[2026-11-30 02:46:20 TP{rank}] Load weight end. elapsed=6 s, type=X", 7.0)
    assert reader.phase is not None
    assert (reader.phase.name, reader.phase.since) == ("loading", 1.0)
    reader.take("log", "[2026-11-30 02:46:25 TP7] Load weight end. elapsed=11 s, type=X", 12.0)
    assert reader.phase.name == "allocating"
    reader.take("log", "[2026-11-30 02:46:30] The server is fired up and ready to roll!", 17.0)
    assert (reader.phase.name, reader.ready_at) == ("serving", 17.0)
    reader.take("log", "[2026-11-30 02:46:31 TP0] Load weight begin. avail mem=1 GB", 18.0)
    assert reader.phase.name == "serving"


def test_a_process_started_anew_begins_anew() -> None:
    reader = PhaseReader()
    for line in ("The server is fired up and ready to roll!", "EngineDeadError", "x server_args=ServerArgs(a=1)"):
        reader.take("log", line, 1.0)
    assert reader.phase is not None
    assert (reader.phase.name, reader.ready_at, reader.alarms) == ("importing", None, {})


def test_the_last_state_of_a_bar_counts() -> None:
    assert phases("Capturing batches (bs=1):   0%\rCapturing batches (bs=8): 50%") == ["capturing"]
    assert phases("x" * 5000 + "The server is fired up and ready to roll!") == []


def test_steps_are_progress_and_name_the_phase_of_who_says_nothing_else() -> None:
    reader = PhaseReader()
    reader.take("log", "step 12/100 loss 3.4", 5.0)
    assert (reader.progress_at, reader.phase and reader.phase.name) == (5.0, "training")
    reader.take("log", "Saving checkpoint to out/", 6.0)
    assert reader.phase is not None
    assert reader.phase.name == "checkpointing"
    reader.take("log", "step 13/100 loss 3.3", 7.0)
    assert reader.phase.name == "training"


@given(st.text(), st.floats(0, 1e6))
def test_any_line_can_be_read(line: str, at: float) -> None:
    reader = PhaseReader()
    reader.take("log", line, at)
    assert reader.phase is None or reader.phase.name in PHASES


def test_the_tables_belong_together() -> None:
    assert {kind.state for kind in PHASES.values()} <= set(STATES)
    assert "serving" not in STARTING
    assert {"starting", "loading", "warming_up"} <= STARTING


# ---------------------------------------------------------------- deadlines


def test_given_wins_over_learnt_wins_over_default() -> None:
    assert Deadlines().of("importing").seconds == 180
    learnt = Deadlines(job="sglang", learnt={"sglang": {"importing": 60.0}})
    assert learnt.of("importing").seconds == 300
    assert "60 s" in learnt.of("importing").source
    # Less than the default is never learnt, and another engine learns for itself.
    assert Deadlines(job="sglang", learnt={"sglang": {"importing": 3.0}}).of("importing").seconds == 180
    assert Deadlines(job="vllm", learnt={"sglang": {"importing": 60.0}}).of("importing").seconds == 180
    given = Deadlines({"importing": 42.0, "loading": 0.0}, scale=2.0, job="sglang")
    assert given.of("importing").seconds == 42
    assert given.of("loading").seconds is None
    assert given.of("connecting").seconds == 360
    assert Deadlines().of("serving").seconds is None
    assert Deadlines().of("no such phase").seconds is None


def test_a_load_may_take_as_long_as_its_size_needs() -> None:
    assert Deadlines().of("loading", size_bytes=547e9).seconds == pytest.approx(1823, abs=1)
    assert Deadlines().of("loading", size_bytes=1e6).seconds == 600


def test_what_was_learnt_outlives_the_watcher(tmp_path: Path) -> None:
    path = tmp_path / "state" / "deadlines.json"
    first = Deadlines.load(path, job="sglang")
    first.learn("capturing", 400.0)
    first.learn("capturing", 300.0)
    first.learn("importing", float("nan"))
    first.learn("no such phase", 3.0)
    # Somebody else learnt meanwhile.
    other = Deadlines.load(path, job="vllm")
    other.learn("importing", 100.0)
    other.save()
    first.save()
    again = Deadlines.load(path, job="sglang")
    assert again.of("capturing").seconds == 2000
    assert Deadlines.load(path, job="vllm").of("importing").seconds == 500
    assert json.loads(path.read_text())["schema"] == 1


def test_what_cannot_be_written_or_read_is_left(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    deadlines = Deadlines.load(tmp_path / "file" / "deadlines.json")
    deadlines.learn("importing", 100.0)
    deadlines.save()
    assert Deadlines.load(tmp_path / "file").of("importing").seconds == 180


@given(
    st.binary(max_size=200)
    | st.recursive(st.none() | st.floats() | st.text(), lambda inner: st.dictionaries(st.text(), inner)).map(
        lambda data: json.dumps({"longest_s": data}).encode()
    )
)
def test_any_file_can_be_read(text: bytes) -> None:
    for phases in parse_learnt(text).values():
        assert set(phases) <= set(PHASES)
        assert all(seconds > 0 for seconds in phases.values())
