"""The host's figures, its control group and its disks."""

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3ops.telemetry import processes, space
from eagle3ops.telemetry.cgroup import parse_memberships, parse_mounts, read_cgroup
from eagle3ops.telemetry.host import (
    HostReader,
    _read_portable,
    parse_cpu,
    parse_diskstats,
    parse_load,
    parse_memory,
    parse_network,
    parse_psi,
)
from eagle3ops.telemetry.rates import Rates
from eagle3ops.telemetry.space import Space


@pytest.mark.skipif(not processes.available(), reason="needs a procfs")
def test_this_machine() -> None:
    reader = HostReader(["/", "/nowhere/at/all"])
    found = reader.read(wait_s=30)
    reader.close()
    assert found["cpu"]["count"] == os.cpu_count()
    assert 0 < found["cpu"]["busy_s"] < found["cpu"]["total_s"]
    assert 0 < found["memory"]["available"] <= found["memory"]["total"]
    assert len(found["load"]) == 3
    root, nowhere = found["disks"]["/"], found["disks"]["/nowhere/at/all"]
    assert 0 <= root["free"] <= root["total"]
    assert nowhere["total"] == root["total"], "a folder that is not there yet will be on the disk of its parent"
    assert found["cgroup"]["version"] in (1, 2, None)


def test_psutil_has_the_same_shape() -> None:
    reader = HostReader()
    native, portable = reader.read(), _read_portable({})
    reader.close()
    assert set(native) == set(portable)
    assert set(native["cpu"]) == set(portable["cpu"])
    assert set(native["memory"]) == set(portable["memory"])


def test_an_absent_source_is_none_with_a_reason(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text("cpu  10 0 10 80 0 0 0 0 0 0\ncpu0 10 0 10 80 0 0 0 0 0 0\nintr 5\n")
    found = HostReader(proc=tmp_path, sys_root=tmp_path).read()
    assert found["cpu"]["count"] == 1
    assert found["psi"] is None
    assert found["memory"] is None
    assert {"psi cpu", "psi io", "psi memory", "memory", "load", "network", "devices"} <= set(found["reasons"])
    assert "cannot be read" in found["cgroup"]["reason"]


def test_rates_of_the_host() -> None:
    rates = Rates()

    def host(mono: float, busy: float, received: int) -> dict[str, Any]:
        return {
            "mono": mono,
            "boot": "b",
            "gpu": [],
            "procs": [],
            "host": {
                "mono": mono,
                "cpu": {"busy_s": busy, "iowait_s": 0.0, "steal_s": 0.0, "total_s": 4 * mono},
                "network": {"eth0": {"received": received, "sent": 0}},
                "devices": None,
            },
        }

    rates.fill(host(10.0, 1.0, 100))
    second = host(12.0, 3.0, 2100)
    rates.fill(second)
    assert second["host"]["rates"]["cpu_percent"] == 25.0
    assert second["host"]["rates"]["network"] == {"eth0": {"received_s": 1000.0, "sent_s": 0.0}}
    assert second["host"]["rates"]["devices"] == {}


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text + "\n")


def fake_proc(tmp_path: Path, memberships: str, mounts: str) -> Path:
    write(tmp_path / "proc/self", cgroup=memberships, mountinfo=mounts)
    return tmp_path / "proc"


def test_version_2_takes_the_smallest_limit_on_the_way_up(tmp_path: Path) -> None:
    mount = tmp_path / "cg"
    write(mount / "pod", memory__max="5000", cpu__max="150000 100000", pids__max="max")
    write(
        mount / "pod/run",
        memory__max="max",
        memory__current="1234",
        memory__events="low 0\noom 3\noom_kill 2",
        cpu__max="400000 100000",
        cpu__stat="usage_usec 5\nnr_throttled 7\nthrottled_usec 2500000",
        pids__current="9",
        pids__max="100",
    )
    proc = fake_proc(tmp_path, "0::/pod/run", f"30 23 0:26 / {mount} rw - cgroup2 cgroup2 rw")
    assert read_cgroup(proc=proc) == {
        "version": 2,
        "reason": None,
        "memory_used": 1234,
        "memory_limit": 5000,
        "oom_kills": 2,
        "cpu_limit": 1.5,
        "cpu_throttled_s": 2.5,
        "cpu_periods_throttled": 7,
        "pids": 9,
        "pids_limit": 100,
    }


def test_version_1_and_a_path_of_the_host_that_is_not_mounted(tmp_path: Path) -> None:
    memory, cpu = tmp_path / "memory", tmp_path / "cpu"
    write(
        memory,
        memory__usage_in_bytes="77",
        memory__limit_in_bytes="9223372036854771712",
        memory__oom_control="oom_kill_disable 0\nunder_oom 0\noom_kill 4",
    )
    write(
        cpu, cpu__cfs_quota_us="-1", cpu__cfs_period_us="100000", cpu__stat="nr_throttled 1\nthrottled_time 3000000000"
    )
    proc = fake_proc(
        tmp_path,
        "4:memory:/docker/abc\n2:cpu,cpuacct:/docker/abc\n0::/",
        f"1 2 0:1 /docker/abc {memory} rw - cgroup cgroup rw,memory\n"
        f"3 2 0:2 /docker/abc {cpu} rw - cgroup cgroup rw,cpu,cpuacct",
    )
    found = read_cgroup(proc=proc)
    assert (found["version"], found["memory_used"], found["memory_limit"], found["oom_kills"]) == (1, 77, None, 4)
    assert (found["cpu_limit"], found["cpu_throttled_s"], found["pids"]) == (None, 3.0, None)


def test_a_disk_that_does_not_answer_is_said_to_be_stalled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(space, "STALLED_AFTER_S", 0.05)
    monkeypatch.setattr(space, "ASK_EVERY_S", 0.0)
    disks = Space([str(tmp_path)])
    monkeypatch.setattr(subprocess, "Popen", _stopped_at_birth(subprocess.Popen))
    disks.read()
    monkeypatch.undo()
    monkeypatch.setattr(space, "STALLED_AFTER_S", 0.05)
    found = disks.read(wait_s=0.2)
    assert "does not answer" in found[str(tmp_path)]["reason"]
    assert found[str(tmp_path)]["free"] is None
    (question,) = disks._questions
    disks.read()
    assert disks._questions == [question], "a path that hangs is not asked once more"
    os.kill(question.process.pid, signal.SIGCONT)
    assert disks.read(wait_s=30)[str(tmp_path)]["reason"] is None
    disks.close()


def _stopped_at_birth(popen: Callable[..., Any]) -> Callable[..., Any]:
    """Stands for a process that hangs in a dead mount: it has been started and does not go on."""

    def go(*args: Any, **options: Any) -> Any:
        process = popen(*args, **options)
        process.send_signal(signal.SIGSTOP)
        return process

    return go


def test_closing_ends_the_question(monkeypatch: pytest.MonkeyPatch) -> None:
    disks = Space(["/"])
    disks.read()
    pids = [question.process.pid for question in disks._questions]
    disks.close()
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


WORDS = ["cpu", "cpu0", "MemTotal:", "some", "avg10=1e5", "avg10=1.2.3", "x", "-1", "7", "eth0:", " - ", "\n"]


@given(st.text(max_size=300) | st.lists(st.sampled_from(WORDS), max_size=60).map(" ".join))
def test_no_text_upsets_the_parsers(text: str) -> None:
    parsers: list[Callable[[str], Any]] = [parse_cpu, parse_load, parse_memory, parse_diskstats, parse_network]
    for parse in [*parsers, parse_psi, parse_memberships, parse_mounts]:
        parse(text)


def test_figures_of_a_real_kernel_are_read() -> None:
    assert parse_memory("MemTotal: 100 kB\nMemAvailable: 50 kB\n")["available"] == 51200
    assert parse_load("1.74 1.20 0.51 2/243 99\n") == [1.74, 1.2, 0.51]
    assert parse_psi("some avg10=0.50 avg60=0.06 avg300=0.11 total=1737136\nfull avg10=0.00 avg60=0 avg300=0 total=1")[
        "some"
    ] == {"avg10": 0.5, "avg60": 0.06, "avg300": 0.11, "total": 1737136.0}
    disk = " 259 0 nvme0n1 10 0 80 5 20 0 160 7 0 33 12 0 0 0 0 0 0\n 7 0 loop0 1 0 8 0 0 0 0 0 0 0 0\n"
    assert parse_diskstats(disk) == {"nvme0n1": {"read": 40960, "written": 81920, "busy_ms": 33}}
    network = " face |bytes\n    lo: 5 0 0 0 0 0 0 0 5 0\n  eth0: 100 1 0 0 0 0 0 0 200 2 0 0 0 0 0 0\n"
    assert parse_network(network) == {"eth0": {"received": 100, "sent": 200}}
