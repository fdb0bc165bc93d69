"""Process trees: who belongs to them, and what real processes look like."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_driver import Clock
from hypothesis import given
from hypothesis import strategies as st

from eagle3ops.telemetry import processes
from eagle3ops.telemetry.portable import PortableTrees
from eagle3ops.telemetry.processes import RUN_MARK, YOUNG_S, ProcessTrees
from eagle3ops.telemetry.procfs import (
    hide_secrets,
    parse_cmdline,
    parse_io,
    parse_mark,
    parse_stat,
    parse_switches,
    parse_word,
    read_threads,
)
from eagle3ops.telemetry.rates import Rates

pytestmark = pytest.mark.skipif(not processes.available(), reason="needs a procfs")

Start = Callable[..., "subprocess.Popen[bytes]"]
PATIENCE_S = 30.0


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts processes that are ended, with their group, after the test."""
    started: list[subprocess.Popen[bytes]] = []

    def go(*command: str, **options: Any) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen(command, start_new_session=True, **options)
        started.append(process)
        return process

    yield go
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", "-c", code)


def until(look: Callable[[], Any]) -> Any:
    """What `look` finds once it finds something; fails when it never does."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        found = look()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError("it never came to that")


def one(trees: ProcessTrees, pid: int) -> dict[str, Any]:
    return next((record for record in trees.read() if record["pid"] == pid), {})


def test_a_tree_with_grandchildren_in_sessions_of_their_own(start: Start, clock: Clock) -> None:
    root = start("sh", "-c", "setsid sh -c 'sleep 100 & wait' & sleep 200 & wait")
    trees = ProcessTrees([root.pid], labels={root.pid: "server"}, clock=clock)

    def found() -> list[dict[str, Any]]:
        clock.now += 1
        records = trees.read()
        return records if sorted(record["name"] for record in records) == ["sh", "sh", "sleep", "sleep"] else []

    records = until(found)
    assert {record["root"] for record in records} == {root.pid}
    assert {record["label"] for record in records} == {"server"}
    for record in records:
        if record["pid"] != root.pid and record["ppid"] != root.pid:
            os.kill(record["pid"], signal.SIGKILL)
    trees.close()


def test_a_process_stays_in_its_tree_when_its_parent_dies(start: Start, clock: Clock) -> None:
    root = start("sh", "-c", "sh -c 'sleep 100 & wait' & wait")
    trees = ProcessTrees([root.pid], clock=clock)

    def sleeper() -> int:
        clock.now += 1
        return next((record["pid"] for record in trees.read() if record["name"] == "sleep"), 0)

    child = until(sleeper)
    parent = one(trees, child)["ppid"]
    os.kill(parent, signal.SIGKILL)
    until(lambda: one(trees, child).get("ppid") not in (parent, None))
    clock.now += 10
    assert one(trees, child)["root"] == root.pid
    trees.close()


def test_what_ends_is_left_out_and_gives_its_descriptor_back(start: Start, clock: Clock) -> None:
    before = len(os.listdir("/proc/self/fd"))
    started = [start("sleep", "100") for _ in range(20)]
    trees = ProcessTrees([process.pid for process in started], clock=clock)
    assert len(trees.read()) == 20
    for process in started[:15]:
        process.kill()
        process.wait()
    assert sorted(record["pid"] for record in trees.read()) == sorted(process.pid for process in started[15:])
    trees.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_number_with_another_start_is_another_process(start: Start) -> None:
    process = start("sleep", "100")
    (record,) = ProcessTrees([process.pid]).read()
    assert ProcessTrees([(process.pid, record["start_ticks"] + 1)]).read() == []
    assert [found["pid"] for found in ProcessTrees([(process.pid, record["start_ticks"])]).read()] == [process.pid]


def test_processes_of_runs_are_found_by_their_mark(start: Start, clock: Clock) -> None:
    trees = ProcessTrees(marked=True, clock=clock)
    mine = f"/nowhere/runs/test-{os.getpid()}"

    def found() -> list[dict[str, Any]]:
        clock.now += YOUNG_S / 2
        return [record for record in trees.read() if record["run"] == Path(mine).name]

    assert found() == []
    marked = start("sh", "-c", "env -i sleep 100 & wait", env={**os.environ, RUN_MARK: mine})
    start("sleep", "100")
    records = until(lambda: records if len(records := found()) == 2 and records[1]["name"] == "sleep" else None)
    # The child without an environment is found through its parent; the process without a mark is not.
    assert [record["root"] for record in records] == [marked.pid, marked.pid]
    assert mine in trees.run_dirs
    trees.close()


def test_too_many_are_counted(start: Start) -> None:
    started = [start("sleep", "100") for _ in range(5)]
    trees = ProcessTrees([process.pid for process in started], limit=3)
    assert len(trees.read()) == 3
    assert trees.left_out == 2
    trees.close()


def test_details_are_read_in_turn_and_at_once_for_the_new(
    start: Start, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "DETAILS_PER_SAMPLE", 2)
    started = [start("sleep", "100") for _ in range(4)]
    trees = ProcessTrees([process.pid for process in started], clock=clock)
    assert [record["detail_mono"] for record in trees.read()] == [1000.0] * 4
    clock.now = 1001.0
    assert sorted(record["detail_mono"] for record in trees.read()) == [1000.0, 1000.0, 1001.0, 1001.0]
    clock.now = 1002.0
    assert sorted(record["detail_mono"] for record in trees.read()) == [1001.0, 1001.0, 1002.0, 1002.0]
    trees.close()


def test_the_quiet_are_looked_at_every_other_time_and_their_end_is_seen_at_once(start: Start, clock: Clock) -> None:
    process = start("sleep", "1000")
    trees = ProcessTrees([process.pid], clock=clock)
    until(lambda: one(trees, process.pid).get("state") == "S")
    looked = []
    for _ in range(processes.QUIET_LOOKS + 6):
        clock.now += 1
        looked.append(one(trees, process.pid)["stat_mono"] == clock.now)
    assert sorted(looked[-4:]) == [False, False, True, True]
    process.kill()
    process.wait()
    clock.now += 1
    assert trees.read() == []
    trees.close()


def test_a_busy_an_idle_and_a_polling_process_differ(start: Start) -> None:
    busy = start(*python("while True: pass"))
    idle = start("sleep", "1000")
    polling = start(*python("import time\nwhile True: time.sleep(.01)"))
    trees, rates = ProcessTrees([busy.pid, idle.pid, polling.pid]), Rates()

    def look() -> dict[int, dict[str, Any]]:
        sample = {"mono": time.monotonic(), "boot": "x", "gpu": [], "procs": trees.read()}
        rates.fill(sample)
        return {record["pid"]: record for record in sample["procs"]}  # type: ignore[attr-defined]

    look()

    def told() -> dict[int, dict[str, Any]] | None:
        time.sleep(0.2)
        found = look()
        ready = found[busy.pid]["cpu"] and found[polling.pid]["wakeups_s"] and found[polling.pid]["wchan"] != "0"
        return found if ready else None

    found = until(told)
    assert found[busy.pid]["cpu_user"] > 0
    assert (found[busy.pid]["state"], found[busy.pid]["syscall"]) == ("R", "running")
    assert (found[idle.pid]["cpu"], found[idle.pid]["wakeups_s"], found[idle.pid]["state"]) == (0.0, 0.0, "S")
    assert "nanosleep" in found[idle.pid]["wchan"]
    trees.close()


def test_a_stopped_and_a_blocked_process(start: Start) -> None:
    stopped = start("sleep", "1000")
    blocked = start("sh", "-c", "exec cat /dev/zero", stdout=subprocess.PIPE)
    stopped.send_signal(signal.SIGSTOP)
    trees = ProcessTrees([stopped.pid, blocked.pid])
    until(lambda: one(trees, stopped.pid).get("state") == "T")
    # A full pipe that nobody drains.
    until(lambda: "pipe" in (one(trees, blocked.pid).get("wchan") or ""))
    record = one(trees, blocked.pid)
    assert record["cmd"] == "cat /dev/zero"
    assert record["syscall"] not in ("running", None)
    trees.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a process of another user to look from")
def test_another_users_process_has_no_io(start: Start) -> None:
    process = start("sleep", "100")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setuid(65534)
            os.write(writing, json.dumps(ProcessTrees([process.pid]).read()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        (record,) = json.loads(pipe.read())
    os.waitpid(child, 0)
    assert [record[name] for name in ("rchar", "read_bytes", "syscall")] == [None] * 3
    assert (record["name"], record["threads"]) == ("sleep", 1)
    assert record["vcs"] is not None


def test_threads_by_cpu(start: Start) -> None:
    code = (
        "import threading, time\nthreading.Thread(target=lambda: [0 for _ in iter(int, 1)]).start()\ntime.sleep(1000)"
    )
    process = start(*python(code))
    busiest = until(lambda: (read_threads(process.pid, 1) or [{"tid": process.pid}])[0]["tid"] != process.pid)
    assert busiest
    found = read_threads(process.pid)
    assert len(found) == 2
    assert found[0]["cpu_s"] >= found[1]["cpu_s"]
    assert found[1]["tid"] == process.pid
    (record,) = ProcessTrees([process.pid]).read(threads=True)
    assert len(record["task"]) == 2
    process.kill()
    process.wait()
    assert read_threads(process.pid) == []


def test_psutil_gives_the_same_fields(start: Start) -> None:
    process = start("sh", "-c", "sleep 100 & wait")
    native = ProcessTrees([process.pid])
    until(lambda: len(PortableTrees([process.pid]).read()) == 2)
    portable = PortableTrees([process.pid]).read()
    records = native.read()
    assert [record["pid"] for record in portable] == [record["pid"] for record in records]
    assert all(set(one_) == set(other) for one_, other in zip(portable, records, strict=True))
    assert PortableTrees([4194303]).read() == []


def test_secrets_do_not_show() -> None:
    words = [
        "serve",
        "--api-key",
        "abc",
        "--hf-token=hf_abcdefghijkl",
        "hf_abcdefghijklmnop",
        "--port",
        "1",
        "PASSWORD=x",
    ]
    assert hide_secrets(words) == [
        "serve",
        "--api-key",
        "***",
        "--hf-token=***",
        "hf_***",
        "--port",
        "1",
        "PASSWORD=***",
    ]
    assert hide_secrets(["--token", "--verbose"]) == ["--token", "--verbose"]
    assert parse_cmdline(b"a\0--token\0x\0") == "a --token ***"


names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)


@given(names, st.sampled_from("RSDZTtXI"), st.integers(0, 2**22), st.integers(0, 2**40), st.integers(0, 2**63 - 1))
def test_any_name_may_stand_in_stat(name: str, state: str, ppid: int, ticks: int, start_ticks: int) -> None:
    text = f"7 ({name}) {state} {ppid} 7 7 0 -1 4194560 1 2 3 4 {ticks} 9 0 0 20 0 5 0 {start_ticks} 8192 77 18446744\n"
    found = parse_stat(text.encode())
    assert found is not None
    assert (found.name, found.state, found.ppid, found.user_ticks, found.start_ticks) == (
        name,
        state,
        ppid,
        ticks,
        start_ticks,
    )
    assert (found.majflt, found.system_ticks, found.threads, found.rss_pages) == (3, 9, 5, 77)


@given(st.binary(max_size=300))
def test_no_bytes_upset_the_parsers(data: bytes) -> None:
    for parse in (parse_stat, parse_switches, parse_io, parse_word, parse_cmdline):
        parse(data)
    parse_stat(b"1 (x) " + data)
    parse_io(b"rchar: " + data)
    parse_switches(b"\nvoluntary_ctxt_switches:" + data)
    parse_mark(data, RUN_MARK)


def test_figures_of_a_real_kernel_are_read() -> None:
    status = b"Name:\tx\nvoluntary_ctxt_switches:\t150\nnonvoluntary_ctxt_switches:\t545\n"
    assert parse_switches(status) == (150, 545)
    io = b"rchar: 1\nwchar: 2\nsyscr: 3\nsyscw: 4\nread_bytes: 5\nwrite_bytes: 6\ncancelled_write_bytes: 7\n"
    assert parse_io(io) == {"rchar": 1, "wchar": 2, "read_bytes": 5, "write_bytes": 6}
    assert parse_io(None) == dict.fromkeys(("rchar", "wchar", "read_bytes", "write_bytes"))
    assert parse_word(b"202 0x7f 0x0\n") == "202"
    assert parse_mark(b"A=1\0EAGLE3OPS_RUN_DIR=/r/x\0", RUN_MARK) == "/r/x"
    assert parse_mark(None, RUN_MARK) is None
