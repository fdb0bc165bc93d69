"""Every recording of a real GPU host, played through the watchdog: the right state, and never a false conviction."""

import gzip
import random
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from eagle3ops.telemetry.recording import Player
from eagle3ops.watchdog.judge.watch import Expect, Watch
from eagle3ops.watchdog.state import Probe, Reading, Standing

pytestmark = pytest.mark.recordings

_STAMP = re.compile(r"^\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)|^# start: (\d+\.\d+)|\[[IWE]1130 (\d\d:\d\d:\d\d)\.")
EXPECTS: tuple[Expect, ...] = ("server", "work", "any")
_HEALTHY_START = {"starting", "importing", "connecting", "loading", "compiling", "capturing"}

QUIET: dict[str, tuple[str, set[str], set[str]]] = {
    # recording: label of the subject, states that may come, states one of which must be the last
    "sglang-start": ("server:base", {*_HEALTHY_START}, _HEALTHY_START),
    "sglang-idle-1": ("server:base", {"idle"}, {"idle"}),
    "sglang-idle-2": ("server:s3k1d4", {"idle"}, {"idle"}),
    "sglang-serving-datagen": ("server:base", {"serving", "idle"}, {"serving"}),
    "sglang-shutdown": ("server:base", {"idle", "serving", "stopping", "ended"}, {"ended"}),
    "hf-extract": ("train:drafter", {"working"}, {"working"}),
    "train-drafter": ("train:drafter", {"starting", "loading", "working"}, {"working"}),
    "train-load": ("train:drafter", {"starting", "loading"}, {"starting", "loading"}),
    "sglang-serving-spec-bs1": ("server:s3k4d16", {"serving"}, {"serving"}),
    "sglang-serving-conc16": ("server:s3k1d4", {"serving", "idle"}, {"serving"}),
    "sglang-recovered": ("server:s3k1d4", {"serving", "idle"}, {"serving"}),
    "ddp-2gpu-healthy": ("torchrun:healthy", {"starting", "loading", "working", "stopping", "ended"}, {"ended"}),
}
"""Healthy ones, without a log and without a probe: counters alone must not find anything wrong in them."""


def play(
    folder: Path,
    name: str,
    label: str,
    expect: Expect,
    *,
    lines: list[tuple[float, str]] | None = None,
    probes: list[Probe] | None = None,
) -> Iterator[Reading]:
    """A reading a second. `lines` have wall times; the times of `probes` count from the first sample."""
    watch = Watch(label, expect=expect)
    waiting, asked = sorted(lines or [], key=lambda one: one[0]), list(probes or [])
    first: float | None = None
    due = 0.0
    for sample in Player(folder / "gpu" / "telemetry" / f"{name}.jsonl.gz"):
        now = sample["mono"]
        first = now if first is None else first
        while waiting and waiting[0][0] <= sample["t"]:
            wall, text = waiting.pop(0)
            watch.line("engine.log", text, now - (sample["t"] - wall))
        while asked and first + asked[0].at + asked[0].seconds <= now:
            one = asked.pop(0)
            watch.probe(Probe(one.name, first + one.at, one.ok, one.seconds, one.words, one.facts))
        watch.sample(sample, members(sample, label))
        if now >= due:
            due = now + 1.0
            yield watch.judge(now)


def members(sample: dict[str, Any], label: str) -> frozenset[int]:
    return frozenset(process["pid"] for process in sample["procs"] if process["label"] == label)


def read_log(path: Path) -> list[tuple[float, str]]:
    """The lines of a log with the time (seconds since 1970) of the last stamp before each."""
    at, found = 0.0, []
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        for line in file:
            stamp = _STAMP.search(line)
            if stamp and stamp[1]:
                at = datetime.strptime(stamp[1], "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp()
            elif stamp and stamp[2]:
                at = float(stamp[2])
            elif stamp:
                at = datetime.strptime(f"2026-11-30 {stamp[3]}", "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp()
            found.append((at, line.rstrip("\n")))
    return found


def states(readings: list[Reading]) -> list[str]:
    """The states in the order in which they came."""
    found: list[str] = []
    for one in readings:
        if not found or found[-1] != one.state:
            found.append(one.state)
    return found


def answers(ok: bool, seconds: float, *times: float) -> list[Probe]:
    words = "/health says 200" if ok else "/health says 503"
    return [Probe("health", at, ok, seconds, words) for at in times]


@pytest.mark.parametrize("name", QUIET)
def test_counters_alone_accuse_nobody_who_is_well(recordings: Path, name: str) -> None:
    label, may, last = QUIET[name]
    readings = list(play(recordings, name, label, "server" if label.startswith("server") else "work"))
    assert {one.standing for one in readings} == {Standing.HEALTHY}
    assert set(states(readings)) <= may
    assert readings[-1].state in last


@pytest.mark.parametrize("name", [*QUIET, "sglang-six-servers-starting", "gpu-spin-foreign"])
def test_nobody_in_a_healthy_recording_is_convicted_whatever_was_expected(recordings: Path, name: str) -> None:
    watches: dict[tuple[str, Expect], Watch] = {}
    due = 0.0
    for sample in Player(recordings / "gpu" / "telemetry" / f"{name}.jsonl.gz"):
        for label in {process["label"] for process in sample["procs"]} - {"gpu_spin"}:
            for expect in EXPECTS:
                watches.setdefault((label, expect), Watch(label, expect=expect))
        for (label, _), watch in watches.items():
            watch.sample(sample, members(sample, label))
        if sample["mono"] >= due:
            due = sample["mono"] + 1.0
            for watch in watches.values():
                assert watch.judge(sample["mono"]).standing in (Standing.HEALTHY, Standing.UNKNOWN)
    assert watches


def test_a_start_is_followed_by_its_log(recordings: Path) -> None:
    lines = read_log(recordings / "gpu" / "logs" / "runA-server_base.log.gz")
    readings = list(play(recordings, "sglang-start", "server:base", "server", lines=lines))
    assert {one.standing for one in readings} == {Standing.HEALTHY}
    assert states(readings)[0] == "importing"
    # Connecting and loading took 0.25 s and 0.29 s: nobody looked just then.
    assert {"importing", "loading", "capturing"} <= set(states(readings))
    assert readings[-1].phase in ("warming_up", "serving")
    assert all(one.deadline is None or one.deadline > one.at for one in readings)


@pytest.mark.parametrize("server", ["s3k1d4", "s5k1d6", "s3k4d16"])
def test_six_servers_that_start_at_once_are_told_apart_by_their_logs(recordings: Path, server: str) -> None:
    lines = read_log(recordings / "gpu" / "logs" / f"E-server_{server}.log.gz")
    readings = list(play(recordings, "sglang-six-servers-starting", f"server:{server}", "server", lines=lines))
    assert {one.standing for one in readings if one.state != "unknown"} == {Standing.HEALTHY}
    assert {"importing", "loading"} <= set(states(readings))
    assert [one.state for one in readings[5:]].count("unknown") == 0


def test_a_stopped_scheduler_is_convicted_though_its_server_lives(recordings: Path) -> None:
    readings = list(play(recordings, "sglang-scheduler-stopped", "server:s3k1d4", "server"))
    assert (readings[-1].state, readings[-1].standing) == ("stopped", Standing.CONVICTED)
    assert readings[-1].suspects == (2529,)
    assert "sglang::schedul 2529 in state T" in readings[-1].signals[0].words
    # The first second of the recording is before the signal.
    assert readings[0].standing is Standing.HEALTHY
    convicted = next(one for one in readings if one.standing is Standing.CONVICTED)
    assert convicted.at - convicted.since < 15.0


def test_a_failed_probe_convicts_a_stopped_scheduler_as_well(recordings: Path) -> None:
    probes = answers(False, 20.0, 2.0, 30.0)
    readings = list(play(recordings, "sglang-scheduler-stopped", "server:s3k1d4", "server", probes=probes))
    assert (readings[-1].state, readings[-1].standing) == ("stopped", Standing.CONVICTED)
    assert any("503" in signal.words for signal in readings[-1].signals)


@pytest.mark.parametrize("name", ["sglang-idle-1", "sglang-idle-2"])
def test_an_idle_server_that_answers_is_idle(recordings: Path, name: str) -> None:
    label = QUIET[name][0]
    readings = list(play(recordings, name, label, "server", probes=answers(True, 1.0, 0.5)))
    assert {(one.state, one.standing) for one in readings} == {("idle", Standing.HEALTHY)}


def test_the_same_counters_with_nobody_answering_are_not_idle(recordings: Path) -> None:
    """From outside a server that is silently dead looks like one that idles: only the question tells them apart."""
    probes = [*answers(True, 0.1, 0.0), *answers(False, 1.0, 2.0, 4.0, 6.0)]
    readings = list(play(recordings, "sglang-idle-2", "server:s3k1d4", "server", probes=probes))
    assert (readings[-1].state, readings[-1].standing) == ("unresponsive", Standing.CONVICTED)
    assert Standing.ACCUSED in {one.standing for one in readings}


def test_it_serves_again_once_it_goes_on(recordings: Path) -> None:
    probes = answers(True, 1.0, 2.0)
    readings = list(play(recordings, "sglang-recovered", "server:s3k1d4", "server", probes=probes))
    assert {one.standing for one in readings} == {Standing.HEALTHY}
    assert readings[-1].state == "serving"


def test_somebody_else_on_the_gpu_is_not_the_fault_of_the_server(recordings: Path) -> None:
    resting = {"running": 0.0, "queued": 0.0, "forward_passes": 4711.0}
    probes = [Probe("counters", 0.1, True, 0.02, "", resting), *answers(True, 1.0, 0.5)]
    readings = list(play(recordings, "gpu-spin-foreign", "server:s3k1d4", "server", probes=probes))
    assert readings[-1].state == "foreign_gpu_use"
    assert {one.standing for one in readings} == {Standing.HEALTHY}


def test_a_collective_that_one_rank_never_joins_accuses_that_rank(recordings: Path) -> None:
    readings = list(play(recordings, "ddp-2gpu-collective-mismatch", "torchrun:mismatch", "work"))
    assert (readings[-1].state, readings[-1].standing) == ("spin", Standing.ACCUSED)
    # Process 799 sleeps; 798 waits for it at 100 % of a core and of its GPU.
    assert readings[-1].suspects == (799,)
    assert {one.standing for one in readings} == {Standing.HEALTHY, Standing.ACCUSED}


def test_nccl_saying_so_convicts_it(recordings: Path) -> None:
    lines = read_log(recordings / "gpu" / "logs" / "ddp-mismatch.log")
    readings = list(play(recordings, "ddp-2gpu-collective-mismatch", "torchrun:mismatch", "work", lines=lines))
    convicted = [one for one in readings if one.standing is Standing.CONVICTED]
    assert {one.state for one in convicted} == {"spin"}
    assert readings[-1].standing is Standing.CONVICTED
    assert "gave a collective up" in readings[-1].signals[0].words


def otherwise(
    folder: Path, name: str, label: str, rng: random.Random, speeds: tuple[float, ...] = (0.5, 1.0, 2.0)
) -> Iterator[tuple[dict[str, Any], frozenset[int]]]:
    """The same as somebody else would have seen it: once a second, now and then not, on other clocks, of other pids."""
    speed, shift, jitter = rng.choice(speeds), rng.randrange(1, 30000), rng.choice([0.0, 0.1, 0.3])
    first: float | None = None
    due = last = 0.0
    for sample in Player(folder / "gpu" / "telemetry" / f"{name}.jsonl.gz"):
        if first is None:
            first = sample["mono"]
            due = first + rng.random()
        if sample["mono"] < due:
            continue
        due = sample["mono"] + 0.999 / speed
        if rng.random() < 0.05:
            continue
        now = max(last + 0.01, first + (sample["mono"] - first) * speed + (rng.random() - 0.5) * jitter)
        procs = [
            {
                **one,
                "pid": one["pid"] + shift,
                "ppid": one["ppid"] + shift,
                "utime": one["utime"] * speed,
                "stime": one["stime"] * speed,
            }
            for one in sample["procs"]
        ]
        gpus = [
            {**one, "procs": [{**on, "pid": on["pid"] + shift} for on in one["procs"]] if one.get("procs") else []}
            for one in sample["gpu"]
        ]
        gap = {"gap_s": now - last} if last else {}
        of_label = frozenset(pid + shift for pid in members(sample, label))
        yield {**sample, "mono": now, "interval_s": 1.0, "procs": procs, "gpu": gpus, **gap}, of_label
        last = now


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", QUIET)
def test_who_is_well_is_well_however_it_is_looked_at(recordings: Path, name: str, seed: int) -> None:
    label, may, _ = QUIET[name]
    expect: Expect = "server" if label.startswith("server") else "work"
    watch = Watch(label, expect=expect)
    readings = []
    for sample, of_label in otherwise(recordings, name, label, random.Random(f"{name} {seed}")):
        watch.sample(sample, of_label)
        readings.append(watch.judge(sample["mono"]))
    assert {one.standing for one in readings} <= {Standing.HEALTHY, Standing.UNKNOWN}
    # Looked at slowly, a moment in between may look like rest, or like work.
    assert set(states(readings)) <= may | {"unknown", "idle", "serving" if expect == "server" else "starting"}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("name", "label", "expect", "last"),
    [
        ("sglang-scheduler-stopped", "server:s3k1d4", "server", ("stopped", Standing.CONVICTED)),
        ("ddp-2gpu-collective-mismatch", "torchrun:mismatch", "work", ("spin", Standing.ACCUSED)),
    ],
)
def test_what_is_wrong_is_wrong_however_it_is_looked_at(
    recordings: Path, name: str, label: str, expect: Expect, last: tuple[str, Standing], seed: int
) -> None:
    watch = Watch(label, expect=expect)
    readings = []
    for sample, of_label in otherwise(recordings, name, label, random.Random(f"{name} {seed}"), (1.0, 2.0)):
        watch.sample(sample, of_label)
        readings.append(watch.judge(sample["mono"]))
    known = [(one.state, one.standing) for one in readings if one.standing is not Standing.UNKNOWN]
    assert known[-1] == last
