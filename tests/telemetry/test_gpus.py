"""GPUs: what they say, what they do not say, and how they go away."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pynvml
import pytest
from fake_driver import Clock, FakeDriver

from eagle3ops.telemetry.gpu_sampling import GpuSampler, reason_names
from eagle3ops.telemetry.gpus import gpu_memory_used, inventory
from eagle3ops.telemetry.nvml import REOPEN_AFTER_S, Absent
from eagle3ops.telemetry.sampler import Sampler


def test_no_library_is_a_named_state(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> Any:
        raise OSError("libnvidia-ml.so.1: cannot open shared object file")

    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "CDLL", missing)
    found = inventory()
    assert found.gpus == ()
    assert found.absent == Absent.NO_LIBRARY
    assert found.remedy
    assert gpu_memory_used([0]) == {}


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        (9, Absent.NOT_LOADED),
        (18, Absent.MISMATCH),
        (4, Absent.NO_PERMISSION),
        (999, Absent.NO_ANSWER),
        (1234567, Absent.NO_ANSWER),
    ],
)
def test_a_driver_that_does_not_start_is_named(driver: FakeDriver, code: int, absent: Absent) -> None:
    driver.say(f"init {code}")
    found = inventory()
    assert (found.gpus, found.absent) == ((), absent)
    assert found.remedy


def test_no_device_is_named(driver: FakeDriver) -> None:
    driver.say(count=0)
    assert inventory().absent == Absent.NO_DEVICE


def test_inventory(driver: FakeDriver) -> None:
    driver.say("0.name NVIDIA H200", "0.mem_used 7000", f"1.process {os.getpid()} 4096", "1.process 4194303 17")
    found = inventory()
    assert found.absent is None
    assert (found.driver, found.cuda) == ("580.0.fake", "13.0")
    first, second = found.gpus
    assert (first.name, first.uuid, first.memory_used, first.pci_bus_id) == (
        "NVIDIA H200",
        "GPU-fake-0",
        7000,
        "00000000:01:00.0",
    )
    assert first.processes == ()
    here, elsewhere = second.processes
    me = psutil.Process()
    assert (here.pid, here.name, here.user, here.memory_bytes) == (me.pid, me.name(), me.username(), 4096)
    assert here.visible
    assert (elsewhere.pid, elsewhere.name, elsewhere.visible) == (4194303, None, False)
    assert "not visible" in str(elsewhere)
    assert gpu_memory_used([0, 1, 7]) == {0: 7000, 1: 0}


def test_a_lost_gpu_does_not_hide_the_other(driver: FakeDriver) -> None:
    driver.say("0.lost 1", "1.mem_used 5")
    first, second = inventory().gpus
    assert (first.state, first.uuid, second.state) == ("lost", None, "ok")
    assert gpu_memory_used([0, 1]) == {1: 5}


def test_a_name_that_is_no_text(driver: FakeDriver) -> None:
    driver.answers.write_bytes(b"count 1\n0.name \xff\xfe\n")
    assert inventory().gpus[0].name is None


UNSUPPORTED = {
    "nvmlDeviceGetUtilizationRates": {"util", "util_mem"},
    "nvmlDeviceGetMemoryInfo": {"mem_used", "mem_total"},
    "nvmlDeviceGetTotalEnergyConsumption": {"energy_mj", "energy_mono"},
    "nvmlDeviceGetPowerUsage": {"power_sample_w"},
    "nvmlDeviceGetPcieThroughput": {"pcie_tx_kbs", "pcie_rx_kbs"},
    "nvmlDeviceGetClockInfo": {"sm_mhz", "mem_mhz"},
    "nvmlDeviceGetTemperature": {"temp_c"},
    "nvmlDeviceGetPerformanceState": {"pstate"},
    "nvmlDeviceGetCurrentClocksEventReasons": {"reasons", "reason_names"},
    "nvmlDeviceGetFieldValues": {"nvlink_tx_kib", "nvlink_rx_kib", "recovery"},
    "nvmlDeviceGetTotalEccErrors": {"ecc_volatile", "ecc_aggregate"},
    "nvmlDeviceGetMigMode": {"mig"},
    "nvmlDeviceGetUUID": {"uuid"},
}
FIELDS_138 = [f"0.field.{number} 5" for number in (138, 139, 230)]


@pytest.mark.parametrize("code", [3, 4, 13, 999], ids=["unsupported", "forbidden", "absent", "unknown"])
@pytest.mark.parametrize("function", UNSUPPORTED)
def test_what_one_gpu_does_not_say_is_none(driver: FakeDriver, function: str, code: int) -> None:
    driver.say(*FIELDS_138, count=1)
    (whole,) = GpuSampler().read()
    driver.say(*FIELDS_138, f"0.error.{function} {code}", count=1)
    (found,) = GpuSampler().read()
    missing = {name for name, value in found.items() if value is None and whole[name] is not None}
    assert missing == UNSUPPORTED[function]
    assert found["state"] == "ok"


def test_power_falls_back_to_the_drivers_own(driver: FakeDriver) -> None:
    driver.say("0.error.nvmlDeviceGetTotalEnergyConsumption 3", "0.power_mw 123456", count=1)
    with Sampler(marked=False) as sampler:
        (gpu,) = sampler.sample()["gpu"]
    assert (gpu["power_w"], gpu["power_source"]) == (123.456, "sample")


def test_power_and_links_come_from_counters_over_real_time(driver: FakeDriver, clock: Clock) -> None:
    driver.say("0.energy_mj 1000000", "0.field.138 1000", "0.field.139 0", "0.power_mw 77000", count=1)
    with Sampler(marked=False, clock=clock) as sampler:
        (first,) = sampler.sample()["gpu"]
        assert (first["power_w"], first["power_source"]) == (77.0, "sample")
        clock.now += 2.0
        driver.say("0.energy_mj 2200000", "0.field.138 21000", "0.field.139 200", count=1)
        (second,) = sampler.sample()["gpu"]
        clock.now += 2.0
        driver.say("0.energy_mj 5", "0.power_mw 55000", count=1)
        (third,) = sampler.sample()["gpu"]
    assert (second["power_w"], second["power_source"]) == (600.0, "energy")
    assert (second["nvlink_tx_kbs"], second["nvlink_rx_kbs"]) == (10000.0, 100.0)
    assert (third["power_w"], third["power_source"]) == (55.0, "sample"), "a counter that went backwards says nothing"


def test_power_holds_until_the_counter_is_read_again(driver: FakeDriver, clock: Clock) -> None:
    told = []
    with Sampler(marked=False, clock=clock) as sampler:
        for step in range(9):
            driver.say(f"0.energy_mj {100_000 * step * step}", "0.power_mw 5000", count=1)
            told.append(sampler.sample()["gpu"][0]["power_w"])
            clock.now += 0.5
    # Read at every second look: 0, 400, 1600, 3600 and 6400 J, a second apart.
    assert told == [5.0, 5.0, 400.0, 400.0, 1200.0, 1200.0, 2000.0, 2000.0, 2800.0]


def test_reasons_and_recovery_have_names(driver: FakeDriver) -> None:
    driver.say("0.reasons 0x44", "0.field.230 2", "1.field.230 99")
    first, second = GpuSampler().read()
    assert first["reason_names"] == ["software power cap", "hardware thermal slowdown"]
    assert (first["recovery"], second["recovery"]) == ("reboot the node", "action 99")
    assert reason_names(0x1 | 1 << 40) == ["gpu idle", hex(1 << 40)]


def test_dear_answers_are_asked_of_one_gpu_at_a_time(driver: FakeDriver, clock: Clock) -> None:
    driver.say("0.pcie_tx_kbs 5", "1.pcie_tx_kbs 6", "2.pcie_tx_kbs 7", count=3)
    sampler = GpuSampler(clock)
    buses, counters = [], []
    for _ in range(4):
        found = sampler.read()
        buses.append([gpu["pcie_tx_kbs"] for gpu in found])
        counters.append([gpu["energy_mono"] for gpu in found])
        clock.now += 1.0
    assert buses == [[5, None, None], [5, 6, None], [5, 6, 7], [5, 6, 7]]
    # The first reading is of all, so that there is something to compare with.
    assert counters == [[1000.0] * 3, [1000.0, 1001.0, 1000.0], [1000.0, 1001.0, 1002.0], [1003.0, 1001.0, 1002.0]]


def test_a_gpu_that_falls_off_the_bus_and_comes_back(driver: FakeDriver, clock: Clock) -> None:
    sampler = GpuSampler(clock)
    assert [gpu["state"] for gpu in sampler.read()] == ["ok", "ok"]
    driver.say("1.lost 1", "0.util 7")
    clock.now += 3
    found = sampler.read()
    assert [(gpu["state"], gpu["util"]) for gpu in found] == [("ok", 7), ("lost", None)]
    assert found[1]["uuid"] == "GPU-fake-1", "which one it was stays known"
    driver.say("1.util 9")
    clock.now += 3
    assert [(gpu["state"], gpu["util"]) for gpu in sampler.read()] == [("ok", 0), ("ok", 9)]


def test_a_driver_that_is_unloaded_and_loaded_again(driver: FakeDriver, clock: Clock) -> None:
    sampler = GpuSampler(clock)
    assert len(sampler.read()) == 2
    driver.say("session 9", "init 9")
    assert sampler.read() == []
    assert sampler.session.absent is Absent.NOT_LOADED
    driver.say(count=3)
    assert sampler.read() == [], "it is not asked again at once"
    clock.now += REOPEN_AFTER_S + 1
    assert len(sampler.read()) == 3
    assert sampler.session.absent is None
    assert not sampler.session.stale


def test_an_updated_driver_needs_a_new_process(driver: FakeDriver, clock: Clock) -> None:
    sampler = GpuSampler(clock)
    sampler.read()
    driver.say("session 18", "init 18")
    assert sampler.read() == []
    assert sampler.session.absent is Absent.MISMATCH
    assert sampler.session.stale


def test_a_mismatch_from_the_start_is_not_stale(driver: FakeDriver) -> None:
    driver.say("init 18")
    sampler = GpuSampler()
    assert sampler.read() == []
    assert not sampler.session.stale, "a new process would find the same"


def test_each_xid_is_told_once_and_of_the_right_gpu(driver: FakeDriver) -> None:
    sampler = GpuSampler()
    sampler.read()
    assert sampler.xids == []
    driver.say("xid 1 79", "xid 0 31")
    sampler.read()
    assert [(event["gpu"], event["xid"]) for event in sampler.xids] == [(1, 79), (0, 31)]
    sampler.read()
    assert sampler.xids == []


def test_xids_are_told_of_a_gpu_that_is_already_lost(driver: FakeDriver) -> None:
    sampler = GpuSampler()
    sampler.read()
    driver.say("1.lost 1", "xid 1 79")
    found = sampler.read()
    assert found[1]["state"] == "lost"
    assert [(event["gpu"], event["xid"]) for event in sampler.xids] == [(1, 79)]
    assert found[1]["xid_last"]["xid"] == 79
    assert found[0]["xid_last"] is None


def test_processes_on_a_gpu_are_watched_with_what_they_started(driver: FakeDriver) -> None:
    with subprocess.Popen(["sh", "-c", "sleep 100 & wait"], start_new_session=True) as parent:
        driver.say(f"0.process {parent.pid} 1000")
        with Sampler(marked=False) as sampler:
            names: set[str] = set()
            # A child is called like its parent until it has become what it is to be.
            for _ in range(200):
                names = {process["name"] for process in sampler.sample()["procs"]}
                if "sleep" in names:
                    break
                time.sleep(0.02)
        os.killpg(parent.pid, 9)
    assert names == {"sh", "sleep"}


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root and unshare")
def test_a_number_of_the_host_means_nothing_in_another_pid_namespace(driver: FakeDriver) -> None:
    driver.say("0.process 1 1000", count=1)
    code = "import json; from eagle3ops.telemetry.gpus import inventory; p = inventory().gpus[0].processes[0];"
    code += "print(json.dumps([p.pid, p.name, p.visible]))"
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", code]
    done = subprocess.run(command, env=driver.environment(), capture_output=True, text=True, check=False)
    if "Operation not permitted" in done.stderr:
        pytest.skip("no new namespaces here")
    assert done.returncode == 0, done.stderr
    # There is a process 1 in there, but it is not the one that the driver means.
    assert json.loads(done.stdout) == [1, None, False]


def test_the_marks_of_both_rooms_are_the_same() -> None:
    from eagle3ops.runs.processes import RUN_VARIABLE, SUPERVISOR_VARIABLE
    from eagle3ops.telemetry.processes import RUN_MARK, SUPERVISOR_MARK

    assert (RUN_MARK, SUPERVISOR_MARK) == (RUN_VARIABLE, SUPERVISOR_VARIABLE)


def test_the_library_is_found_the_usual_way(driver: FakeDriver) -> None:
    code = "from eagle3ops.telemetry.gpus import inventory; print(len(inventory().gpus))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=driver.environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "2"
    assert Path(driver.folder, "libnvidia-ml.so.1").exists()
