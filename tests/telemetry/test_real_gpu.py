"""The real driver: inventory, samples, and a process of our own that is seen with its memory."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from eagle3ops.telemetry.gpus import gpu_memory_used, inventory
from eagle3ops.telemetry.sampler import Sampler

pytestmark = pytest.mark.gpu

HELD = 2 << 30
WORK = f"""
import torch
held = torch.empty({HELD}, dtype=torch.uint8, device="cuda")
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
print("ready", flush=True)
while True:
    for _ in range(20):
        b = a @ a
    torch.cuda.synchronize()
"""


@pytest.fixture(scope="module")
def worker() -> Iterator["subprocess.Popen[str]"]:
    """A process that multiplies matrices on GPU 0."""
    pytest.importorskip("torch")
    with subprocess.Popen([sys.executable, "-c", WORK], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline().strip() == "ready"
            yield process
        finally:
            process.kill()


def test_inventory_names_every_gpu_of_the_machine() -> None:
    found = inventory()
    assert found.absent is None
    devices = [name for name in os.listdir("/dev") if name.startswith("nvidia") and name[6:].isdigit()]
    assert len(found.gpus) == len(devices)
    for gpu in found.gpus:
        assert gpu.state == "ok"
        assert gpu.uuid is not None
        assert gpu.uuid.startswith("GPU-")
        assert gpu.name
        assert gpu.memory_total
        assert gpu.pci_bus_id
    assert found.driver


def test_our_own_process_is_seen_with_its_memory(worker: "subprocess.Popen[str]") -> None:
    gpu = inventory().gpus[0]
    assert gpu_memory_used([0])[0] >= HELD
    by_pid = {process.pid: process for process in gpu.processes}
    if worker.pid in by_pid:
        process = by_pid[worker.pid]
        assert process.visible
        assert process.name is not None
        assert process.memory_bytes is None or process.memory_bytes >= HELD
    else:
        # Inside a pid namespace the driver's numbers are not ours, and none may be taken for ours.
        assert os.readlink("/proc/self/ns/pid") != "pid:[4026531836]"
        assert not any(process.visible and process.name is None for process in gpu.processes)


def test_samples_of_a_working_gpu(worker: "subprocess.Popen[str]") -> None:
    with Sampler([worker.pid], marked=False) as sampler:
        taken = []
        for _ in range(8):
            taken.append(sampler.sample())
            time.sleep(0.5)
    gpu = taken[-1]["gpu"][0]
    assert gpu["state"] == "ok"
    assert gpu["util"] > 50
    assert gpu["mem_used"] >= HELD
    assert gpu["power_source"] == "energy"
    assert 50 < gpu["power_w"] < 2000
    assert gpu["energy_mj"] > taken[0]["gpu"][0]["energy_mj"]
    assert gpu["sm_mhz"] > 100
    assert 0 < gpu["temp_c"] < 120
    assert gpu["reason_names"] is not None
    assert abs(gpu["power_sample_w"] - gpu["power_w"]) < 200
    assert gpu["pcie_tx_kbs"] is not None
    assert worker.pid in [process["pid"] for process in taken[-1]["procs"]]
    sys.stdout.write(f"{gpu}\ncost {[sample['cost_ms'] for sample in taken]} cpu {[s['cpu_ms'] for s in taken]}\n")
