"""Recordings: written, cut short, damaged, foreign, and those of a real GPU host."""

import gzip
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3ops.errors import Eagle3opsError, RequestError
from eagle3ops.telemetry import recording
from eagle3ops.telemetry.normalise import normalise
from eagle3ops.telemetry.rates import GPU_RATES, PROCESS_RATES, Rates
from eagle3ops.telemetry.recording import Player, Recorder, parse_line
from eagle3ops.telemetry.sampler import Sampler


def sample(n: int) -> dict[str, Any]:
    """A small sample."""
    gpu = {"i": 0, "util": n, "energy_mj": 1000 * n, "procs": [[1, 2]]}
    process = {"pid": 1, "start": 2.5, "utime": n / 10, "stime": 0.0, "state": "R"}
    return {"n": n, "t": 1e9 + n, "mono": 5.0 + n, "boot": "b", "gpu": [gpu], "procs": [process]}


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_what_was_recorded_is_played(tmp_path: Path, name: str) -> None:
    with Recorder(tmp_path / name) as recorder, Sampler([os.getpid()], marked=False) as sampler:
        taken = [sampler.sample() for _ in range(3)]
        for one in taken:
            recorder.write(one)
    player = Player(tmp_path / name)
    played = list(player)
    assert (player.bad_lines, player.torn) == (0, False)
    assert [(one["n"], one["mono"], one["gpu_absent"]) for one in played] == [
        (one["n"], one["mono"], one["gpu_absent"]) for one in taken
    ]
    for new, old in zip(played, taken, strict=True):
        assert new["host"]["memory"] == old["host"]["memory"]
        assert new["host"]["cpu"] == old["host"]["cpu"]
        for process, before in zip(new["procs"], old["procs"], strict=True):
            assert process == before
    if name.endswith("gz"):
        assert gzip.decompress((tmp_path / name).read_bytes()).count(b"\n") == 3


def test_an_existing_file_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("precious")
    with pytest.raises(RequestError, match="exists already"):
        Recorder(tmp_path / "a.jsonl")
    with pytest.raises(RequestError, match="cannot be written"):
        Recorder(tmp_path / "no folder" / "a.jsonl")
    with pytest.raises(RequestError, match="cannot be read"):
        list(Player(tmp_path / "none.jsonl"))


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz"])
def test_a_kill_loses_at_most_what_was_not_flushed(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.{suffix}"
    code = """
import sys, time
from pathlib import Path
from eagle3ops.telemetry import recording
recording.FLUSH_EVERY_S = 0.0
recorder = recording.Recorder(Path(sys.argv[1]))
for n in range(10):
    recorder.write({"n": n, "t": n, "mono": n, "gpu": []})
recording.FLUSH_EVERY_S = 1e9
recorder.write({"n": 10, "t": 10, "mono": 10, "gpu": []})
print("written", flush=True)
time.sleep(1000)
"""
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGKILL)
    player = Player(path)
    assert [one["n"] for one in player][:10] == list(range(10))
    assert player.bad_lines == 0


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A compressed recording of 20 samples."""
    path = tmp_path_factory.mktemp("whole") / "a.jsonl.gz"
    with Recorder(path) as recorder:
        for n in range(20):
            recorder.write(sample(n))
    return path.read_bytes()


@given(cut=st.integers(0, 3000), flipped=st.none() | st.tuples(st.integers(0, 3000), st.integers(1, 255)))
def test_a_damaged_recording_gives_what_comes_before_the_damage(
    whole: bytes, tmp_path_factory: pytest.TempPathFactory, cut: int, flipped: tuple[int, int] | None
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.jsonl.gz"
    data = bytearray(whole[: len(whole) - cut % len(whole)])
    if flipped is not None and data:
        data[flipped[0] % len(data)] ^= flipped[1]
    path.write_bytes(data)
    player = Player(path)
    played = [one["n"] for one in player]
    if flipped is None:
        assert played == list(range(len(played)))
        assert player.torn == (cut % len(whole) > 0)
        assert player.bad_lines == 0


@given(st.lists(st.binary(max_size=60) | st.just(json.dumps(sample(3)).encode()), max_size=8))
def test_foreign_lines_are_passed_over_and_counted(lines: list[bytes]) -> None:
    path = Path(os.environ.get("TMPDIR", "/tmp"), f"eagle3ops-foreign-{os.getpid()}.jsonl")
    good = json.dumps(sample(3)).encode()
    data = b"\n".join(lines) + b"\n"
    if data.startswith(b"\x1f\x8b"):
        return
    path.write_bytes(data)
    player = Player(path)
    played = list(player)
    path.unlink()
    parts = [line for line in data.split(b"\n") if line.strip()]
    assert len(played) >= sum(line == good for line in parts)
    assert len(played) + player.bad_lines == len(parts)


def test_a_line_without_end_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "LINE_BYTES", 1000)
    monkeypatch.setattr(recording, "_CHUNK", 300)
    line = json.dumps(sample(1)).encode()
    (tmp_path / "a").write_bytes(line + b"\n" + b"x" * 5000 + b"\n" + line + b"\n" + b"y" * 5000)
    player = Player(tmp_path / "a")
    assert len(list(player)) == 2
    assert (player.bad_lines, player.torn) == (2, True)


ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
GPU_KEYS = ["i", "util", "energy_mj", "power_w", "reasons", "procs", "nvlink_tx_kib", "energy_mono", "uuid"]
PROCESS_KEYS = ["pid", "start", "utime", "stime", "vcs", "rchar", "task", "detail_mono", "name", "cmd"]
HOST_KEYS = ["mono", "cpu", "memory", "psi", "network", "devices", "load"]


def some_of(keys: list[str]) -> st.SearchStrategy[dict[str, Any]]:
    """A dictionary with some of the keys and anything in them."""
    return st.dictionaries(st.sampled_from(keys), st.integers(0, 5) | st.floats() | ODD)


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "mono": st.floats(-1e6, 1e6),
                "t": st.integers(0, 9),
                "gpu": st.lists(some_of(GPU_KEYS) | ODD, max_size=3),
                "procs": st.lists(some_of(PROCESS_KEYS) | ODD, max_size=3) | ODD,
            },
            optional={"host": some_of(HOST_KEYS) | ODD, "psi": ODD, "meminfo": ODD, "load": ODD, "boot": ODD, "n": ODD},
        ),
        max_size=4,
    )
)
def test_nothing_in_a_recording_upsets_the_player(lines: list[dict[str, Any]]) -> None:
    rates = Rates()
    for line in lines:
        found = normalise(line)
        assert found is not None
        rates.fill(found)
        for gpu in found["gpu"]:
            assert set(GPU_RATES) <= set(gpu)
        for process in found["procs"]:
            assert set(PROCESS_RATES) <= set(process)


@given(ODD)
def test_what_is_no_sample_is_none(value: Any) -> None:
    assert normalise(value) is None
    assert parse_line(json.dumps(value).encode()) is None


def test_deep_and_huge_lines_are_no_samples() -> None:
    assert parse_line(b"[" * 200_000) is None
    assert parse_line(b'{"mono": ' + b"9" * 10_000 + b', "t": 1, "gpu": []}') is None
    assert parse_line(b'{"mono": NaN, "t": 1, "gpu": []}') is None


def test_rates_of_recorded_counters() -> None:
    rates = Rates()
    first, second, restarted = (normalise(sample(n)) for n in (0, 2, 1))
    assert first is not None
    assert second is not None
    assert restarted is not None
    rates.fill(first)
    assert first["gpu"][0]["power_w"] is None
    rates.fill(second)
    assert second["gpu"][0]["power_w"] == 1.0
    assert second["procs"][0]["cpu"] == 10.0
    restarted["boot"] = "another"
    restarted["mono"] = 100.0
    rates.fill(restarted)
    assert restarted["procs"][0]["cpu"] is None, "another boot is not compared"


async def test_a_recording_plays_in_its_own_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Recorder(tmp_path / "a.jsonl") as recorder:
        for n in (0, 1, 3, 500):
            recorder.write(sample(n))
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        now[0] += max(0.0, seconds)

    now = [50.0]
    monkeypatch.setattr("eagle3ops.telemetry.recording.asyncio.sleep", sleep)
    monkeypatch.setattr("eagle3ops.telemetry.recording.time.monotonic", lambda: now[0])
    played = [one["n"] async for one in Player(tmp_path / "a.jsonl").play(speed=2.0)]
    assert played == [0, 1, 3, 500]
    assert waits == [0.0, 0.5, 1.0, recording.GAP_S]
    with pytest.raises(RequestError, match="speed"):
        await anext(Player(tmp_path / "a.jsonl").play(speed=0))


def write_many(path: Path, count: int) -> None:
    with Recorder(path) as recorder:
        for n in range(count):
            recorder.write(sample(n))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a file system of its own")
def test_a_full_disk_is_told_and_what_is_there_can_be_played(tmp_path: Path) -> None:
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", tmp_path], check=False).returncode:
        pytest.skip("no mounts here")
    try:
        with pytest.raises(Eagle3opsError, match="no space left"):
            write_many(tmp_path / "a.jsonl", 100_000)
        player = Player(tmp_path / "a.jsonl")
        assert len(list(player)) > 100
        assert player.torn
    finally:
        subprocess.run(["umount", tmp_path], check=True)


@pytest.mark.recordings
def test_all_recordings_of_a_real_host_are_read_whole(recordings: Path) -> None:
    folder = recordings / "gpu" / "telemetry"
    labels = json.loads((folder / "labels.json").read_text())
    for name, facts in labels.items():
        player = Player(folder / f"{name}.jsonl.gz")
        samples = list(player)
        assert (len(samples), player.bad_lines, player.torn) == (facts["samples"], 0, False)
        assert {len(one["gpu"]) for one in samples} == {facts["gpus"]}


@pytest.mark.recordings
def test_the_signatures_of_hangs_survive_the_reading(recordings: Path) -> None:
    folder = recordings / "gpu" / "telemetry"

    def middle(name: str) -> list[dict[str, Any]]:
        samples = list(Player(folder / f"{name}.jsonl.gz"))
        return samples[len(samples) // 4 : -len(samples) // 4]

    def processes(samples: list[dict[str, Any]], label: str) -> list[dict[str, Any]]:
        return [process for one in samples for process in one["procs"] if label in process["name"]]

    stopped = processes(middle("sglang-scheduler-stopped"), "schedul")
    assert {process["state"] for process in stopped} == {"T"}
    assert {process["cpu"] for process in stopped} == {0.0}
    assert {process["wchan"] for process in stopped} == {"do_signal_stop"}
    spin = middle("gpu-spin-foreign")
    assert min(one["gpu"][0]["util"] for one in spin) > 90
    assert max(one["gpu"][0]["power_w"] for one in spin) < 130, "a spinning kernel draws what an idle GPU draws"
    training = middle("train-drafter")
    assert sum(one["gpu"][0]["power_w"] for one in training) / len(training) > 400
    assert training[0]["gpu"][0]["power_source"] == "energy"
    assert training[1]["host"]["load"]
