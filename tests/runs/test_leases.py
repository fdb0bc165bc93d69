"""Is a GPU held by one run at a time, and never by a dead one?"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lease_world import FILE_VARIABLE, look, write_gpus
from toy_world import Toy

from eagle3ops.errors import Eagle3opsError, Refused
from eagle3ops.runs.directory import RunDirectory
from eagle3ops.runs.keys import stage_keys
from eagle3ops.runs.leases import acquire, leases_folder, visible_gpus
from eagle3ops.runs.processes import identify
from eagle3ops.spec.load import parse_pipeline

FOREIGN = {"pid": 4242, "name": "python3", "user": "bob", "memory_bytes": 3 << 30, "visible": True}
HIDDEN = {"pid": 777, "name": None, "user": None, "memory_bytes": 1 << 30, "visible": False}


class Machine:
    """A lease folder, some GPUs, and processes that hold them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.leases = folder / "leases"
        self.leases.mkdir(mode=0o700)
        self.gpus = write_gpus(folder / "gpus.json", 4)
        self.processes: list[subprocess.Popen[str]] = []
        self.others: list[int] = []

    def start(self, name: str, wanted: int, *more: str, **environment: str) -> subprocess.Popen[str]:
        script = Path(__file__).parent / "lease_world.py"
        process = subprocess.Popen(
            [sys.executable, str(script), name, str(wanted), str(self.gpus), *more],
            env=os.environ | {"EAGLE3OPS_LEASES": str(self.leases)} | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        return process

    def take(self, name: str, wanted: int, *more: str, **environment: str) -> dict[str, Any]:
        process = self.start(name, wanted, *more, **environment)
        return self.answer(process)

    def answer(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        assert process.stdout is not None
        found: dict[str, Any] = json.loads(process.stdout.readline())
        if "child" in found:
            self.others.append(found["child"])
        return found

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()
        for pid in self.others:
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    made = Machine(tmp_path)
    monkeypatch.setenv("EAGLE3OPS_LEASES", str(made.leases))
    yield made
    made.close()


def test_gpus_are_given_once_and_come_back(machine: Machine) -> None:
    first = machine.take("one", 1)
    assert first["gpus"] == [0]
    assert first["environment"] == {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert machine.take("two", 2)["gpus"] == [1, 2]
    refused = machine.take("three", 2)["refused"]
    assert "2 GPUs are wanted" in refused
    for index, name in ((0, "one"), (1, "two"), (2, "two")):
        assert f"GPU {index} is leased by run {name} (pid " in refused
    # What was refused has let go of the one that it could have had.
    assert machine.take("four", 1)["gpus"] == [3]
    two = machine.processes[1]
    assert two.communicate()[0] == "released\n"
    assert machine.take("five", 2)["gpus"] == [1, 2]


def test_all_at_once_nobody_gets_the_same(machine: Machine) -> None:
    started = [machine.start(f"run{number}", 1 + number % 2) for number in range(8)]
    answers = [machine.answer(process) for process in started]
    given = [index for answer in answers for index in answer.get("gpus", [])]
    assert len(given) == len(set(given))
    assert len(given) in (3, 4)
    assert all("leased by run" in answer["refused"] for answer in answers if "gpus" not in answer)


def test_the_lease_of_a_killed_holder_is_free(machine: Machine) -> None:
    assert machine.take("one", 4)["gpus"] == [0, 1, 2, 3]
    machine.processes[0].kill()
    machine.processes[0].wait()
    assert machine.take("two", 4)["gpus"] == [0, 1, 2, 3]


def test_a_lock_that_outlives_its_owner_is_taken_over(machine: Machine) -> None:
    assert machine.take("one", 2, "inherit")["gpus"] == [0, 1]
    assert "leased by run one" in machine.take("early", 3)["refused"]
    machine.processes[0].kill()
    machine.processes[0].wait()
    assert identify(machine.others[0]) is not None
    second = machine.take("two", 3)
    assert second["gpus"] == [0, 1, 2]
    assert second["notes"] == [
        f"GPU {index}: the lease of run one, whose supervisor is dead, is taken over" for index in (0, 1)
    ]
    assert "leased by run two" in machine.take("three", 2)["refused"]
    # The heir of the dead one ends, and nothing changes for the living.
    os.kill(machine.others.pop(), signal.SIGKILL)
    assert "leased by run two" in machine.take("four", 2)["refused"]


def test_a_holder_that_lets_go_is_not_held_up_by_its_heirs(machine: Machine) -> None:
    assert machine.take("one", 4, "inherit")["gpus"] == [0, 1, 2, 3]
    assert machine.processes[0].communicate()[0] == "released\n"
    assert identify(machine.others[0]) is not None
    assert machine.take("two", 4)["gpus"] == [0, 1, 2, 3]


def test_a_living_holder_keeps_its_gpu_whatever_became_of_its_lock(machine: Machine) -> None:
    assert machine.take("one", 1)["gpus"] == [0]
    for lock in machine.leases.glob("GPU-*.lock"):
        lock.unlink()
    assert machine.take("two", 1)["gpus"] == [1]


@pytest.mark.parametrize("content", ["", "nonsense", "[]", '{"pid": 1}', '{"pid": "x", "start": null, "boot": 5}'])
def test_a_damaged_file_is_no_holder(machine: Machine, content: str) -> None:
    for index in range(4):
        (machine.leases / f"GPU-{index:04d}-toy.json").write_text(content)
    assert machine.take("one", 4)["gpus"] == [0, 1, 2, 3]


def test_gpus_that_others_use_are_refused_with_their_names(machine: Machine) -> None:
    write_gpus(machine.gpus, 4, gpu0={"processes": [FOREIGN]}, gpu2={"processes": [HIDDEN]})
    assert machine.take("one", 2)["gpus"] == [1, 3]
    refused = machine.take("two", 1)["refused"]
    assert "GPU 0 is used by python3 (pid 4242, user bob) with 3.0 GiB" in refused
    assert "GPU 2 is used by pid 777" in refused
    assert "not visible here with 1.0 GiB" in refused
    assert "GPU 1 is leased by run one" in refused


def test_own_processes_are_not_foreign_and_others_are_shared_on_demand_only(machine: Machine) -> None:
    write_gpus(machine.gpus, 1, gpu0={"processes": [FOREIGN]})
    run = RunDirectory(machine.folder / "runs" / "r")
    with pytest.raises(Refused, match="python3") as refusal:
        acquire(1, run, look=lambda: look(machine.gpus), wait_s=0.3)
    assert refusal.value.exit_code == 6
    own = acquire(1, run, own=lambda: {4242}, look=lambda: look(machine.gpus))
    assert own is not None
    own.release()
    shared = acquire(1, run, forced=True, look=lambda: look(machine.gpus), wait_s=0.0)
    assert shared is not None
    assert "python3 (pid 4242" in shared.notes[0]
    shared.release()
    shared.release()
    assert not list(machine.leases.glob("*.json"))


def test_a_process_that_is_about_to_end_is_waited_for(machine: Machine) -> None:
    write_gpus(machine.gpus, 1, gpu0={"processes": [FOREIGN]})
    asked: list[int] = []

    def ending() -> Any:
        asked.append(1)
        if len(asked) == 3:
            write_gpus(machine.gpus, 1)
        return look(machine.gpus)

    held = acquire(1, RunDirectory(machine.folder / "runs" / "r"), look=ending, wait_s=60.0)
    assert held is not None
    held.refresh()
    held.release()
    assert len(asked) == 3


def test_cuda_visible_devices_restricts_the_choice(machine: Machine) -> None:
    assert machine.take("one", 1, CUDA_VISIBLE_DEVICES="2,1")["gpus"] == [1]
    assert machine.take("two", 1, CUDA_VISIBLE_DEVICES="GPU-0002")["gpus"] == [2]
    assert machine.take("three", 1, CUDA_VISIBLE_DEVICES="")["gpus"] is None
    assert machine.take("four", 1, CUDA_VISIBLE_DEVICES="-1,3")["gpus"] is None
    assert (
        "2 GPUs are wanted (engine.gpus), none is visible" in machine.take("4", 2, CUDA_VISIBLE_DEVICES="")["refused"]
    )
    assert (
        "3 GPUs are wanted (engine.gpus), 2 are visible"
        in machine.take("five", 3, CUDA_VISIBLE_DEVICES="0,3")["refused"]
    )


@given(st.text(alphabet="0123,GPU-toy 9", max_size=30) | st.text(max_size=20))
def test_any_value_of_the_variable_leaves_some_of_the_gpus(value: str) -> None:
    gpus = [look_one(index) for index in range(3)]
    chosen = visible_gpus(gpus, value)
    assert [gpu.index for gpu in chosen] == sorted({gpu.index for gpu in chosen})
    assert visible_gpus(gpus, None) == gpus


def look_one(index: int) -> Any:
    from eagle3ops.telemetry.gpus import GpuFacts

    return GpuFacts(
        index=index, uuid=f"GPU-{index:04d}-toy", name=None, memory_total=None, pci_bus_id=None, processes=()
    )


def test_a_folder_that_others_may_write_to_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "leases"
    monkeypatch.setenv("EAGLE3OPS_LEASES", str(folder))
    assert leases_folder() == folder
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o777)
    with pytest.raises(Eagle3opsError, match="only this user"):
        leases_folder()
    folder.chmod(0o700)
    link = tmp_path / "link"
    link.symlink_to(folder)
    monkeypatch.setenv("EAGLE3OPS_LEASES", str(link))
    with pytest.raises(Eagle3opsError, match="only this user"):
        leases_folder()
    (tmp_path / "file").touch()
    monkeypatch.setenv("EAGLE3OPS_LEASES", str(tmp_path / "file"))
    with pytest.raises(Eagle3opsError, match="cannot hold"):
        leases_folder()


def test_how_many_gpus_is_no_part_of_what_a_stage_makes(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    from eagle3ops import jobs

    text = "schema: 1\nname: toy\ntarget: {model: none}\nengine: {gpus: %d, dtype: %s}\n"
    keys = [
        stage_keys(parse_pipeline(text % (gpus, dtype), "test", jobs.specs()), jobs)
        for gpus, dtype in ((1, "float32"), (4, "float32"), (1, "float16"))
    ]
    assert keys[0] == keys[1]
    assert keys[0]["generate"] != keys[2]["generate"]


@pytest.mark.gpu
def test_on_a_real_gpu_a_stranger_is_refused_until_it_has_gone(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    run = RunDirectory(machine.folder / "runs" / "r")
    held = acquire(1, run)
    assert held is not None
    assert held.environment()["CUDA_VISIBLE_DEVICES"] == "0"
    assert held.gpus[0].uuid
    held.release()
    program = "import torch, sys; x = torch.ones(1 << 28, device='cuda'); print('there', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as stranger:
        assert stranger.stdout is not None
        assert stranger.stdout.readline() == b"there\n"
        # By name, or in a container by the host's number, which is not the one that it has here.
        with pytest.raises(Refused, match=r"GPU 0 is used by .*pid \d+"):
            acquire(1, run, wait_s=0.0)
        shared = acquire(1, run, forced=True, wait_s=0.0)
        assert shared is not None
        assert len(shared.notes) == 1
        shared.release()
        stranger.kill()
    again = acquire(1, run, wait_s=60.0)
    assert again is not None
    again.release()


class GpuToy:
    """The toy world with GPUs."""

    def __init__(self, toy: Toy) -> None:
        self.toy = toy
        self.gpus = write_gpus(toy.folder / "gpus.json", 2)
        self.leases = toy.folder / "leases"
        self.leases.mkdir(mode=0o700)

    def job(self, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        more = {"EAGLE3OPS_JOBS": "gpu_toy_jobs", FILE_VARIABLE: str(self.gpus), "EAGLE3OPS_LEASES": str(self.leases)}
        kept = {name: value for name, value in self.toy.environment.items() if name != "CUDA_VISIBLE_DEVICES"}
        return subprocess.run(
            [sys.executable, "-m", "eagle3ops", "--job", "pipeline", "--spec", "toy.yaml", *arguments],
            cwd=self.toy.folder,
            env=kept | more | environment,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def leases_told(self) -> list[dict[str, Any]]:
        return [event["data"] for event in self.toy.events() if event["kind"] == "lease"]


@pytest.fixture
def gpu_toy(toy: Toy) -> GpuToy:
    return GpuToy(toy)


def test_a_run_leases_before_its_first_gpu_stage_and_proves_that_memory_is_back(gpu_toy: GpuToy) -> None:
    run = gpu_toy.job("--set", "engine.gpus=2")
    assert run.returncode == 0, run.stderr
    assert "sees 0,1 by PCI_BUS_ID" in run.stderr
    taken, returned = gpu_toy.leases_told()
    assert [gpu["index"] for gpu in taken["gpus"]] == [0, 1]
    assert (taken["state"], returned["state"]) == ("taken", "returned")
    kinds = [(event["kind"], event["stage"]) for event in gpu_toy.toy.events()]
    assert kinds.index(("lease", "use")) > kinds.index(("metric", "make"))
    assert kinds[-1] == ("run", None)
    assert not list(gpu_toy.leases.glob("*.json"))
    # Done already: nothing is leased, nothing said.
    assert gpu_toy.job("--set", "engine.gpus=2").returncode == 0
    assert gpu_toy.leases_told() == []


def test_memory_that_is_not_given_back_is_said_with_who_holds_it(gpu_toy: GpuToy) -> None:
    after = write_gpus(gpu_toy.toy.folder / "after.json", 2, gpu0={"used": 3 << 30, "processes": [FOREIGN]})
    run = gpu_toy.job(TOY_GPUS_AFTER=str(after))
    assert run.returncode == 0
    assert gpu_toy.leases_told()[-1]["state"] == "memory kept"
    assert "GPU 0: 2.0 GiB more than before the run, held by python3 (pid 4242, user bob)" in run.stderr


@pytest.mark.parametrize("settings", [("engine.device=cpu",), ("engine.gpus=0",)])
def test_a_run_without_gpus_leases_none_and_sees_none(gpu_toy: GpuToy, settings: tuple[str, ...]) -> None:
    run = gpu_toy.job(*(word for setting in settings for word in ("--set", setting)))
    assert run.returncode == 0, run.stderr
    assert "sees  by None" in run.stderr
    assert gpu_toy.leases_told() == []


def test_a_gpu_in_use_refuses_the_run_with_exit_code_6(gpu_toy: GpuToy) -> None:
    write_gpus(gpu_toy.gpus, 1, gpu0={"processes": [FOREIGN]})
    run = gpu_toy.job()
    assert run.returncode == 6
    assert "GPU 0 is used by python3 (pid 4242, user bob) with 3.0 GiB" in run.stderr
    assert gpu_toy.toy.last().state()["exit_code"] == 6
    shared = gpu_toy.job("--yes")
    assert shared.returncode == 0, shared.stderr
    assert "GPU 0 is used by python3" in shared.stderr


def test_what_no_gpu_can_hold_is_refused_before_anything_starts(gpu_toy: GpuToy) -> None:
    run = gpu_toy.job(TOY_GPU_NEED=str(81 << 30))
    assert run.returncode == 6
    assert "GPU memory: use is forecast to need 81.0 GiB on one GPU; 2 here, the largest has 80.0 GiB" in run.stderr
    assert gpu_toy.job(TOY_GPU_NEED=str(79 << 30)).returncode == 0
