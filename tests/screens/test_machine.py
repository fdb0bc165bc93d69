"""What is made of samples: those of a real host, made ones, and whatever else may come."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from eagle3ops.screens.feeds.machine import (
    CELLS,
    HZ,
    PER_CELL,
    SILENT_S,
    History,
    Machine,
    ProcessRow,
    read_sample,
)
from eagle3ops.screens.gpus.process_names import role_of
from eagle3ops.screens.gpus.process_table import process_detail, process_head, process_line
from eagle3ops.screens.gpus.process_tree import ORDERS, tree
from eagle3ops.screens.gpus.tables import gpu_table, host_lines, strip_lines
from eagle3ops.screens.widgets.cells import Line, pair
from eagle3ops.screens.widgets.glyphs import ASCII, BLOCKS, Glyphs, bar, history_line
from eagle3ops.screens.widgets.lines import changed
from eagle3ops.telemetry.recording import Player

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
GPU_KEYS = ("i", "uuid", "name", "state", "mig", "util", "mem_used", "mem_total", "power_w", "power_source", "temp_c",
            "energy_mono", "power_sample_w", "reason_names", "xid_last", "ecc_volatile", "recovery", "pcie_t",
            "pcie_tx_kbs", "sm_mhz", "mem_mhz", "nvlink_rx_kbs", "procs")  # fmt: skip
PROCESS_KEYS = ("pid", "ppid", "start", "run", "label", "name", "cmd", "state", "cpu", "rss", "stat_mono",
                "detail_mono", "read_bytes_s", "wakeups_s", "wchan", "syscall", "threads")  # fmt: skip
HOST_KEYS = ("mono", "cpu", "memory", "psi", "shm", "disks", "rates")


def any_of(keys: tuple[str, ...]) -> st.SearchStrategy[dict[str, Any]]:
    value = JSON | st.integers(0, 4) | st.sampled_from(["ok", "S", "energy", "a\x1b[31m漢"])
    return st.dictionaries(st.sampled_from(keys), value, max_size=9)


SAMPLES = st.fixed_dictionaries(
    {"t": st.floats(0, 1e6) | JSON, "mono": st.floats(0, 1e6) | JSON},
    optional={
        "gpu": st.lists(any_of(GPU_KEYS), max_size=3) | JSON,
        "procs": st.lists(any_of(PROCESS_KEYS), max_size=6) | JSON,
        "host": any_of(HOST_KEYS) | JSON,
        "late": JSON,
        "gap_s": JSON,
        "boot": JSON,
        "gpu_absent": JSON,
        "procs_left_out": JSON,
    },
)


def text(lines: list[Line]) -> str:
    return "\n".join("".join(part for part, _ in line) for line in lines)


def everything(machine: Machine, width: int, glyphs: Glyphs, stale: str = "") -> list[Line]:
    """All lines of all panes."""
    head, lines = gpu_table(machine, width, glyphs)
    found = [head, *lines, process_head(width, glyphs)]
    assert machine.snapshot is not None
    for order in ORDERS:
        found += [
            process_line(one, width, glyphs, stale=bool(stale)) for one in tree(machine.snapshot.processes, order)
        ]
    found += host_lines(machine.snapshot, width, glyphs, stale=bool(stale))
    return [*found, *strip_lines(machine, width, stale, glyphs)]


@given(st.lists(SAMPLES | JSON, min_size=1, max_size=4), st.sampled_from([78, 120, 158, 250]))
def test_whatever_comes_is_drawn_or_passed_over(samples: list[Any], width: int) -> None:
    machine = Machine()
    for at, sample in enumerate(samples):
        machine.take(sample, float(at))
    if machine.snapshot is None:
        return
    for line in everything(machine, width, BLOCKS):
        drawn = "".join(part for part, _ in line)
        assert drawn.isprintable()
    for process in machine.snapshot.processes:
        assert "\x1b" not in process_detail(process, 0.0)
    machine.stale(9.0, "connected")


def gpu(i: int = 0, **known: Any) -> dict[str, Any]:
    return {"i": i, "uuid": f"GPU-{i}", "name": "NVIDIA H200", "state": "ok"} | known


def sample(n: int = 0, **known: Any) -> dict[str, Any]:
    return {"t": 1e9 + n / HZ, "mono": 100 + n / HZ, "boot": "b", "gpu": [], "procs": [], "host": {}} | known


def process(pid: int, ppid: int | None = None, **known: Any) -> dict[str, Any]:
    return {"pid": pid, "ppid": ppid, "start": float(pid), "name": f"p{pid}", "run": "r", "state": "S"} | known


def machine_of(*samples: dict[str, Any]) -> Machine:
    machine = Machine()
    for at, one in enumerate(samples):
        assert machine.take(one, at / 2)
    return machine


@pytest.mark.parametrize("width", [78, 158])
def test_absent_is_a_dash_and_never_zero(width: int) -> None:
    head, lines = gpu_table(machine_of(sample(gpu=[gpu()])), width, BLOCKS)
    assert "0 %" not in text(lines)
    assert "0 W" not in text(lines)
    assert text(lines).count(" -") >= 5
    _, lines = gpu_table(machine_of(sample(gpu=[gpu(util=0, power_w=0.0)])), width, BLOCKS)
    assert "0 %" in text(lines)
    assert "0 W" in text(lines)
    assert cell_len(text([head])) <= width


@pytest.mark.parametrize("width", [78, 158])
def test_the_state_of_each_gpu_is_in_words(width: int) -> None:
    machine = machine_of(
        sample(
            gpu=[
                gpu(0, util=97, reason_names=["gpu idle"]),
                gpu(1, reason_names=["software power cap"]),
                gpu(2, state="lost"),
                gpu(3, mig=True),
                gpu(4, xid_last={"xid": 79, "t": 1.0}),
            ]
        )
    )
    _, lines = gpu_table(machine, width, BLOCKS)
    ok, capped, lost, mig, xid = map(text, ([line] for line in lines))
    assert " ok " in ok
    assert ("throttled: software power cap" if width > 100 else "sw power cap") in capped
    assert " lost " in lost
    assert " MIG " in mig
    assert " Xid 79 " in xid
    assert {cell_len(text([line])) for line in lines} == {width}


def test_no_gpu_has_a_reason_and_a_remedy() -> None:
    machine = machine_of(sample(gpu_absent="no NVIDIA driver library", gpu_remedy="install the driver"))
    assert text(gpu_table(machine, 78, BLOCKS)[1]) == "No GPU: no NVIDIA driver library\n→ install the driver"
    assert text(strip_lines(machine, 78, "", BLOCKS)).rstrip() == "GPUs: no NVIDIA driver library"


def test_power_of_a_counter_read_long_ago_gives_way_to_the_driver_s_own() -> None:
    one = gpu(power_w=500.0, power_source="energy", energy_mono=92.0, power_sample_w=300.0)
    found = read_sample(sample(gpu=[one]))
    assert found is not None
    assert (found.gpus[0].power_w, found.gpus[0].power_age) == (300.0, 0.0)
    found = read_sample(sample(gpu=[one | {"power_sample_w": None}]))
    assert found is not None
    assert (found.gpus[0].power_w, found.gpus[0].power_age) == (500.0, 8.0)


def test_history_is_bounded_and_shows_gaps() -> None:
    history = History()
    for value in range(3 * CELLS * PER_CELL):
        history.add(float(value))
    assert len(history.last(10 * CELLS)) == 10 * CELLS
    assert sum(value is not None for value in history.last(10 * CELLS)) <= CELLS + 1
    machine = machine_of(*(sample(n, gpu=[gpu(util=50)]) for n in range(2 * PER_CELL)))
    before = machine.snapshot
    assert before is not None
    assert machine.util(before.gpus[0], 4) == [None, None, 50.0, 50.0]
    machine.take(sample(3 * PER_CELL, gpu=[gpu(util=50)]), 99.0)
    assert machine.util(before.gpus[0], 5) == [None, 50.0, 50.0, None, 50.0]
    machine.take(sample(1, boot="another", gpu=[gpu(util=70)]), 100.0)
    assert machine.util(before.gpus[0], 2) == [None, 70.0]


def test_a_history_line_tells_zero_from_absent() -> None:
    assert history_line([None, 0.0, 50.0, 100.0], 100.0, BLOCKS) == " ▁▅█"
    assert history_line([None, 0.0, 50.0, 100.0], 100.0, ASCII) == " _=#"
    assert bar(0.5, 4, ASCII) == "##.."
    assert bar(None, 4, BLOCKS) == "    "
    assert ASCII.levels.isascii()


def test_what_is_old_says_so() -> None:
    machine = machine_of(sample(gpu=[gpu()]))
    assert machine.stale(SILENT_S - 0.1, "connected") == ""
    assert machine.stale(SILENT_S + 1, "connected") == "read 4 s ago"
    assert "not connected" in machine.stale(0.1, "waiting")
    machine.failure = ("the sampler is stalled", "")
    assert "stalled" in machine.stale(9.0, "connected")
    late = machine_of(sample(late=True, gap_s=3.25))
    assert late.stale(0.0, "connected") == "read late, after 3.2 s without a look"
    looks = {look for line in everything(late, 158, BLOCKS, "read late")[2:] for _, look in line}
    assert "stale" in looks


def test_children_stand_under_their_parents_run_by_run() -> None:
    found = read_sample(
        sample(
            procs=[
                process(1),
                process(3, 1),
                process(2, 1, cpu=99.0),
                process(4, 2),
                process(9, None, run="s"),
                process(8, 1, run=None),
            ]
        )
    )
    assert found is not None
    lines = [process_line(one, 78, BLOCKS, stale=False) for one in tree(found.processes)]
    assert [text([line]).split("  ")[0].rstrip() for line in lines] == [
        "run r: 4 processes",
        "p1",
        "├ p2",
        "│ └ p4",
        "└ p3",
        "run s: 1 process",
        "p9",
        "other processes on the GPUs: 1 process",
        "p8",
    ]
    by_age = [one.process.pid for one in tree(found.processes, "age") if one.process]
    assert by_age == [1, 2, 4, 3, 9, 8]


@given(
    st.lists(st.tuples(st.integers(0, 9), st.none() | st.integers(0, 9), st.sampled_from(["r", "s", ""])), max_size=12)
)
def test_every_process_stands_in_the_tree_once(links: list[tuple[int, int | None, str]]) -> None:
    found = read_sample(sample(procs=[process(pid, ppid, run=run) for pid, ppid, run in links]))
    assert found is not None
    for order in ORDERS:
        pids = [one.process.pid for one in tree(found.processes, order) if one.process]
        assert sorted(pids) == sorted({pid for pid, _, _ in links})


def one_process(**known: Any) -> ProcessRow:
    found = read_sample(sample(procs=[process(7, **known)], gpu=known.pop("gpu", [])))
    assert found is not None
    return found.processes[0]


def test_states_and_stale_details_are_in_words() -> None:
    for letter, word in (("D", "disk wait"), ("T", "stopped"), ("Z", "zombie")):
        found = read_sample(sample(procs=[process(7, state=letter)]))
        assert found is not None
        assert f"{letter} {word}" in text([process_line(tree(found.processes)[1], 78, BLOCKS, stale=False)])
    old = one_process(detail_mono=94.0, read_bytes_s=2048.0, wchan="futex_wait", cmd="python train.py", syscall="202")
    told = process_detail(old, 1.0)
    assert "stale: read 7 s ago" in told
    assert "in futex_wait, syscall 202" in told
    assert told.endswith("\npython train.py")
    line = process_line(tree([old])[1], 158, BLOCKS, stale=False)
    assert any("~2.0 KiB/s" in part and look == "stale" for part, look in line)


def test_processes_on_gpus() -> None:
    users = [{"pid": 7, "mem": 2**30, "visible": True}, {"pid": 8, "mem": 2**31, "visible": False}]
    found = read_sample(sample(gpu=[gpu(0, procs=users), gpu(1, procs=users[:1])], procs=[process(7), process(8)]))
    assert found is not None
    here, other = found.processes
    assert (here.gpu_memory, here.gpus) == (2.0**31, (0, 1))
    assert (other.gpu_memory, other.gpus) == (None, ()), "the same number here is another process"
    found = read_sample(sample(gpu=[gpu(0, procs=users)]))
    assert found is not None
    assert [(one.pid, one.visible) for one in found.processes] == [(8, False)]
    assert "another container" in process_detail(found.processes[-1], 0.0)


@given(
    st.lists(st.sampled_from(["a", "b", "漢", "cc"]), max_size=8),
    st.lists(st.sampled_from(["a", "漢", "d"]), max_size=8),
)
def test_what_changed_in_a_line_is_inside_the_span(old: list[str], new: list[str]) -> None:
    before, after = (tuple((part, "plain") for part in parts) for parts in (old, new))
    span = changed(before, after)
    one, other = "".join(old), "".join(new)
    if span is None:
        assert one == other
        return
    left, right = span
    assert 0 <= left <= right <= max(cell_len(one), cell_len(other))
    if cell_len(one) == cell_len(other) and one != other:
        assert right > left


def test_pairs_have_one_unit() -> None:
    assert pair(12 * 2**30, 140.4 * 2**30) == "12.0/140.4 GiB"
    assert pair(None, 2**20, "/s") == "-/1.0 MiB/s"
    assert pair(None, None) == "-"
    assert pair(0, 0) == "0/0 B"


@pytest.mark.recordings
def test_recordings_of_a_real_host_are_drawn(recordings: Path) -> None:
    folder = recordings / "gpu" / "telemetry"
    for name, facts in json.loads((folder / "labels.json").read_text()).items():
        machine = Machine()
        for at, one in enumerate(Player(folder / f"{name}.jsonl.gz")):
            assert machine.take(one, at / 2)
        snapshot = machine.snapshot
        assert snapshot is not None
        assert len(snapshot.gpus) == facts["gpus"]
        for width in (78, 158):
            head, lines = gpu_table(machine, width, BLOCKS)
            assert {cell_len(text([line])) for line in [head, *lines]} == {width}, name
            everything(machine, width, ASCII)


@pytest.mark.recordings
def test_a_stopped_scheduler_is_seen(recordings: Path) -> None:
    machine = Machine()
    for at, one in enumerate(Player(recordings / "gpu" / "telemetry" / "sglang-scheduler-stopped.jsonl.gz")):
        machine.take(one, at / 2)
        if at == 40:
            break
    assert machine.snapshot is not None
    branches = tree(machine.snapshot.processes)
    assert "T stopped" in text([process_line(one, 78, BLOCKS, stale=False) for one in branches])
    stopped = next(one.process for one in branches if one.process and one.process.state == "T")
    assert "in do_signal_stop" in process_detail(stopped, 0.0)


@pytest.mark.parametrize(
    ("name", "command", "role"),
    [
        ("python", "/venv/bin/python -m eagle3ops.runs.stage /root/runs/r train 4a26", "train"),
        (
            "python3.12",
            "python3.12 -u -m sglang.launch_server --port 1",
            "sglang.launch_server",
        ),
        ("python", "python /srv/train.py --lr 1", "train.py"),
        ("python", "python -c import time", "python"),
        ("python", "", "python"),
        ("python", "python -m", "python"),
        ("sleep", "sleep 1000", "sleep"),
    ],
)
def test_an_interpreter_is_called_by_what_it_runs(name: str, command: str, role: str) -> None:
    assert role_of(name, command) == role
