"""Several logs as one: every line once, each log in its own order, by time if there is one; and where a cause is."""

import asyncio
import gzip
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3ops.errors import RequestError
from eagle3ops.forensics import sources
from eagle3ops.hosts.agent import merged as merging
from eagle3ops.hosts.agent import ops_forensics
from eagle3ops.hosts.agent.log_cause import cause_in, find_cause
from eagle3ops.hosts.agent.merged import Clock, Merge, Merges, share
from eagle3ops.hosts.agent.ops_runs import here
from eagle3ops.hosts.client import AgentClient
from eagle3ops.hosts.local import LocalTransport
from eagle3ops.runs.directory import RunDirectory

NOON = time.mktime((2026, 11, 29, 12, 0, 0, 0, 0, -1))
RUN = "20261129-120000-made-aaaa"


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    found = RunDirectory(tmp_path / "runs" / RUN)
    found.logs.mkdir(parents=True)
    (found.path / "request.json").write_text(json.dumps({"job": "pipeline", "stages": [], "cache": "/"}))
    return found


def stamp(second: float) -> str:
    return time.strftime("[%Y-%m-%d %H:%M:%S", time.localtime(NOON + second)) + f",{int(second * 1000) % 1000:03d}]"


def write(run: RunDirectory, name: str, text: str | bytes, written: float = 100.0, mode: str = "wb") -> None:
    with (run.logs / name).open(mode) as file:
        file.write(text if isinstance(text, bytes) else text.encode())
    os.utime(run.logs / name, (NOON + written, NOON + written))


def all_of(merge: Merge) -> list[tuple[str, str]]:
    window = merge.window(0, 10_000)
    names = [merge.names[source] for source in window["sources"]]
    return list(zip(names, window["lines"], strict=True))


def test_lines_stand_in_order_of_time_and_tracebacks_stay_whole(run: RunDirectory) -> None:
    write(run, "a.log", f"begins\n{stamp(1)} one\n{stamp(3)} three\nTraceback\n  File\n{stamp(9)} nine\n")
    write(run, "b.log", f"{stamp(2)} two\n{stamp(3.5)} between\n{stamp(8)} eight\ntorn")
    write(run, "none.log", "no times\nat all\n", written=5)
    merge = Merge(run, ["a.log", "b.log", "none.log", "missing.log"])
    assert [line.split("] ")[-1] for _, line in all_of(merge)] == [
        *("begins", "one", "two", "three", "Traceback", "  File"),
        *("between", "no times", "at all", "eight", "torn", "nine"),
    ]
    window = merge.window(4, 1)
    assert (window["first"], window["total"], window["sources"]) == (4, 12, [0])
    assert (run.logs / "a.log").read_bytes()[window["origin"] :].startswith(b"Traceback")
    assert merge.row_at("b.log", (run.logs / "b.log").read_text().index("between")) == 6


def test_what_is_added_comes_behind_and_a_torn_line_waits_for_its_end(run: RunDirectory) -> None:
    write(run, "a.log", f"{stamp(1)} one\n")
    write(run, "b.log", "")
    merge = Merge(run, ["a.log", "b.log"])
    assert len(all_of(merge)) == 1
    with (run.logs / "a.log").open("a") as file:
        file.write(f"{stamp(4)} four\nto")
    write(run, "b.log", f"{stamp(2)} two\n", mode="ab")
    generation = merge.generation
    assert [line[-3:] for _, line in all_of(merge)] == ["one", "two", "our"]
    assert merge.pending
    with (run.logs / "a.log").open("a") as file:
        file.write("rn\n")
    assert all_of(merge)[-1] == ("a.log", "torn")
    assert not merge.pending
    assert merge.generation == generation


@pytest.mark.parametrize("how", ["shorter", "longer", "another file", "gone"])
def test_a_log_that_is_another_one_begins_the_merge_anew(run: RunDirectory, how: str) -> None:
    write(run, "a.log", f"{stamp(1)} one\n{stamp(2)} two\n")
    write(run, "b.log", f"{stamp(3)} three\n")
    merge = Merge(run, ["a.log", "b.log"])
    all_of(merge)
    generation = merge.generation
    if how in ("another file", "gone"):
        (run.logs / "a.log").unlink()
    if how != "gone":
        write(run, "a.log", "anew\n" * (1 if how == "shorter" else 50))
    lines = all_of(merge)
    assert merge.generation != generation
    assert len(lines) == {"shorter": 2, "gone": 1}.get(how, 51)


def test_only_the_ends_of_much_are_merged_and_that_is_said(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "LEAST", 64)
    write(run, "a.log", "".join(f"{stamp(n)} a {n}\n" for n in range(100)))
    write(run, "b.log", f"{stamp(50)} b\n")
    merge = Merge(run, ["a.log", "b.log"], bound=1000)
    lines = [line for _, line in all_of(merge)]
    assert lines[-1].endswith("a 99")
    assert 10 < len(lines) < 40
    assert set(merge.left_out) == {"a.log"}
    assert merge.window(0, 1)["left_out"]["a.log"] + 1000 >= (run.logs / "a.log").stat().st_size - 100


def test_endless_lines_are_cut(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "AT_ONCE", 256 << 10)
    write(run, "a.log", b"x" * (1 << 20) + b"\nshort\n" + b"y" * (1 << 19))
    (cut, short, torn) = [line for _, line in all_of(Merge(run, ["a.log"]))]
    assert cut.endswith(f"[... {(1 << 20) - merging.LINE_KEPT} more bytes]")
    assert short == "short"
    assert torn.endswith(f"[... {(1 << 19) - merging.LINE_KEPT} more bytes]")


LINE = st.one_of(
    st.binary(max_size=30).map(lambda data: data.replace(b"\n", b"")),
    st.tuples(st.floats(-1e5, 200), st.sampled_from([b" INFO", b" [x", b""])).map(
        lambda said: stamp(said[0]).encode() + said[1]
    ),
)


@given(st.lists(st.lists(LINE, max_size=12), min_size=1, max_size=4), st.integers(1, 60), st.booleans())
@settings(max_examples=40, deadline=None)
def test_every_line_is_there_once_and_in_its_order(
    tmp_path_factory: pytest.TempPathFactory, logs: list[list[bytes]], at_once: int, torn: bool
) -> None:
    run = RunDirectory(tmp_path_factory.mktemp("run"))
    run.logs.mkdir()
    for number, lines in enumerate(logs):
        write(run, f"{number}.log", b"".join(line + b"\n" for line in lines) + (b"torn" if torn else b""))
    merge = Merge(run, [f"{number}.log" for number in range(len(logs))])
    buffers = merging.in_order
    try:
        merging.in_order = lambda given, _: buffers(given, at_once)  # type: ignore[assignment]
        found = all_of(merge)
    finally:
        merging.in_order = buffers
    for number, lines in enumerate(logs):
        wanted = [line.removesuffix(b"\r").decode("utf-8", "replace") for line in lines] + ["torn"] * torn
        assert [line for name, line in found if name == f"{number}.log"] == wanted


@pytest.mark.parametrize(
    ("line", "second"),
    [
        ("[2026-11-29 12:00:05,250] x", 5.25),
        ("2026-11-29T12:00:05.5 x", 5.5),
        ("[2026-11-29 12:00:05 TP3] x", 5.0),
        ("INFO 11-29 12:00:05 [core.py:12] x", 5.0),
        ("(EngineCore_0 pid=123) INFO 11-29 12:00:05 [core.py:12] x", 5.0),
        ("[rank3]:[E1129 12:00:05.500000000 ProcessGroupNCCL.cpp:1] x", 5.5),
        ("12:00:05 INFO x", 5.0),
        ("plain", None),
        ("took [00:12<00:30, 1.2it/s] and 99:99:99", None),
        ("[2026-13-45 12:00:05] x", None),
        ("[2036-11-29 12:00:05] x", None),
        ("", None),
    ],
)
def test_times_as_engines_and_trainers_write_them(line: str, second: float | None) -> None:
    clock = Clock(NOON + 100)
    assert clock.all([line.encode()] * 2) == [None if second is None else NOON + second] * 2


def test_a_zone_is_heeded_and_a_day_that_is_not_said_is_the_last_one() -> None:
    clock = Clock(1_796_000_000.0)
    (zulu, east) = clock.all([b"2026-11-30T00:53:20Z x", b"2026-11-30T02:53:20+02:00 x"])
    assert zulu == east == 1_796_000_000.0
    (late,) = Clock(NOON).all([b"23:00:00 INFO x"])
    assert late == NOON - 13 * 3600


@given(st.lists(st.integers(0, 10_000), max_size=6), st.integers(0, 20_000))
def test_room_is_shared(sizes: list[int], bound: int) -> None:
    room = share(sizes, bound)
    assert room >= merging.LEAST
    assert room == merging.LEAST or sum(min(size, room) for size in sizes) <= max(bound, 0)


def test_names_that_are_none(run: RunDirectory) -> None:
    for names in ([], ["../../x"], ["a\0"], [1], ["a"] * 300):
        with pytest.raises(RequestError):
            Merges().of(run, names)
    merges = Merges(keep=1)
    assert merges.of(run, ["a"]) is merges.of(run, ["a", "a"])


async def test_an_agent_answers_windows_and_searches(run: RunDirectory) -> None:
    write(run, "a.log", "".join(f"{stamp(n)} a {n}\n" for n in range(50)))
    write(run, "b.log", "".join(f"{stamp(n + 0.5)} b {n}\n" for n in range(50)))
    asked: dict[str, Any] = {"run": RUN, "logs": ["a.log", "b.log"]}
    async with await AgentClient.connect(LocalTransport(root=str(run.root))) as client:
        window = await client.call("log.merged", line=-3, count=3, **asked)
        assert [line[-4:] for line in window["lines"]] == ["b 48", "a 49", "b 49"]
        assert (window["sources"], window["first"], window["total"]) == ([1, 0, 1], 97, 100)
        window = await client.call("log.merged", log="b.log", at=0, count=1, **asked)
        assert (window["first"], window["sources"]) == (1, [1])
        items = [
            item async for items in client.stream("log.merged_search", pattern=r"[ab] 7$", **asked) for item in items
        ]
        found = [tuple(one[1:2] + one[5:]) for item in items for one in item["found"]]
        assert found == [(14, 0), (15, 1)]
        with pytest.raises(RequestError, match="not among"):
            await client.call("log.merged", log="c.log", at=0, **asked)
        at = len(stamp(0) + " a 0\n") + 3
        assert (await client.call("log.lines", run=RUN, log="a.log", at=at, count=1))["first"] == 1
        assert (await client.call("log.cause", run=RUN))["log"] is None


def test_the_cause_of_a_failure(run: RunDirectory) -> None:
    events = [
        {"seq": 1, "ts": 1, "stage": "train", "kind": "stage", "data": {"status": "running"}},
        {"seq": 2, "ts": 2, "stage": "train", "kind": "process",
         "data": {"state": "started", "pid": 7, "role": "engine", "log": "logs/engine.log", "offset": 0}},
        {"seq": 3, "ts": 3, "stage": "train", "kind": "process", "data": {"state": "ended", "pid": 7, "code": -9}},
    ]  # fmt: skip
    write(run, "train.log", "fine\nERROR: the engine is gone\n")
    write(run, "engine.log", "fine\nCUDA out of memory\nmore\n")
    run.events_file.write_text("".join(json.dumps(event) + "\n" for event in events))
    failed = {"status": "failed", "log": str(run.logs / "train.log")}
    (run.path / "state.json").write_text(json.dumps({"status": "failed", "stages": {"train": failed}}))
    place = find_cause(run)
    assert place is not None
    assert (place.log, place.offset, place.text) == ("engine.log", 5, "CUDA out of memory")
    pointing = {"seq": 4, "ts": 4, "stage": "train", "kind": "error", "data": {"log": "logs/train.log", "offset": 5}}
    with run.events_file.open("a") as file:
        file.write(json.dumps(pointing) + "\n")
    place = find_cause(run)
    assert place is not None
    assert (place.log, place.offset) == ("engine.log", 5)
    # Where the logs name no cause, what the stage points at counts.
    write(run, "engine.log", "fine\n")
    write(run, "train.log", "fine\nno such luck\n")
    place = find_cause(run)
    assert place is not None
    assert (place.log, place.offset, place.how) == ("train.log", 5, "where the stage's own error points")


def test_a_run_is_diagnosed(run: RunDirectory) -> None:
    write(run, "train.log", "fine\nValueError: no rows\n")
    (run.path / "state.json").write_text(json.dumps({"status": "failed", "stages": {"train": {"status": "failed"}}}))
    found = ops_forensics.diagnose(here(str(run.path.parent.parent)), run=RUN)
    assert (found["run"], found["verdict"]) == (RUN, "failure")
    assert (found["root"]["file"], found["root"]["offset"], found["root"]["line_no"]) == ("train.log", 5, 2)
    # A start that goes on is no hang yet.
    write(run, "train.log", "[2026-04-02 11:00:14 TP0] Load weight end. elapsed=10 s\n")
    (run.path / "state.json").write_text(json.dumps({"status": "running", "stages": {"train": {"status": "running"}}}))
    assert ops_forensics.diagnose(here(str(run.path.parent.parent)), run=RUN)["verdict"] == "no_failure"


def test_of_a_large_log_of_a_run_the_newest_part_is_read(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "NEWEST", 2000)
    write(run, "train.log", "ValueError: long ago\n" + "fine\n" * 5000 + "CUDA out of memory\n" + "fine\n" * 20)
    write(run, "old.log.gz", gzip.compress(b"KeyError: 'lm_head.weight'\n" + b"fine\n" * 5000))
    (run.path / "state.json").write_text(json.dumps({"status": "failed", "stages": {"train": {"status": "failed"}}}))
    found = ops_forensics.diagnose(here(str(run.path.parent.parent)), run=RUN)
    assert (found["root"]["category"], found["root"]["line_no"]) == ("cuda_oom", 5002)
    assert found["root"]["source"].startswith("standard")
    assert "train.log: the first 22.6 KiB of 24.6 KiB were not read" in found["notes"]


def test_the_exception_that_was_raised_first() -> None:
    log = (
        b"x\n[rank3]: Traceback (most recent call last):\n[rank3]:   File\n[rank3]: ValueError: first\n"
        b"\nDuring handling of the above exception, another exception occurred:\n\n"
        b"[rank3]: Traceback (most recent call last):\n[rank3]:   File\n[rank3]: RuntimeError: second\nERROR end\n"
    )
    found = cause_in(log)
    assert found is not None
    assert log[found[0] :].startswith(b"[rank3]: ValueError")
    assert cause_in(b"fine\n") is None
    assert cause_in(b"ok\nERROR one\nERROR two\n") == (3, "the first of the last errors")


@given(st.binary(max_size=300))
def test_a_cause_in_anything(data: bytes) -> None:
    found = cause_in(data + b"\nTraceback (most recent call last):\n" + data)
    assert found is None or 0 <= found[0] <= 2 * len(data) + 40


def test_asking_at_the_same_time(run: RunDirectory) -> None:
    write(run, "a.log", "".join(f"{stamp(n)} a\n" for n in range(2000)))
    merge = Merge(run, ["a.log"])

    async def ask() -> list[dict[str, Any]]:
        return await asyncio.gather(*(asyncio.to_thread(merge.window, -5, 5) for _ in range(8)))

    assert {window["total"] for window in asyncio.run(ask())} == {2000}
