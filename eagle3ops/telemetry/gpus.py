"""Which GPUs does this machine have, and who uses them?"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from eagle3ops.telemetry.nvml import GpuLost, Nvml, SessionGone

INITIAL_PID_NAMESPACE = "pid:[4026531836]"
"""The kernel's fixed number of the namespace in which NVML counts its process ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """A process with a compute context on a GPU."""

    pid: int
    """As the driver counts: the host's number, which means nothing inside another pid namespace."""
    name: str | None
    user: str | None
    memory_bytes: int | None
    visible: bool
    """False: no process here has this number, it belongs to another container or to the host."""

    def __str__(self) -> str:
        """For people: `python3 (pid 12, user ann)`."""
        if not self.visible:
            return f"pid {self.pid}, not visible here"
        return f"{self.name or '?'} (pid {self.pid}, user {self.user or '?'})"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """One GPU. What it cannot say is None."""

    index: int
    uuid: str | None
    name: str | None
    memory_total: int | None
    """Bytes."""
    pci_bus_id: str | None
    processes: tuple[GpuProcess, ...]
    memory_used: int | None = None
    """Bytes, of all processes together, in every container."""
    mig: bool | None = None
    """Is it cut into instances (MIG)?"""
    state: str = "ok"
    """"ok", "lost" (fell off the bus), "reset required" or "no answer"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """The GPUs of this machine, or why there are none."""

    gpus: tuple[GpuFacts, ...]
    absent: str | None
    """Named reason when there is none: a value of `nvml.Absent`."""
    remedy: str | None = None
    detail: str = ""
    """The driver library's own words about `absent`."""
    driver: str | None = None
    """Version of the driver."""
    cuda: str | None = None
    """Newest CUDA that the driver can serve."""


def inventory() -> Inventory:
    """Ask the driver once. Never raises for want of a GPU, a driver or a permission."""
    session = Nvml()
    if (absent := session.open()) is not None:
        return _nothing(session)
    try:
        cuda = session.ask("nvmlSystemGetCudaDriverVersion_v2")
        return Inventory(
            gpus=tuple(facts(session, index) for index in range(session.count)),
            absent=absent,
            driver=session.ask("nvmlSystemGetDriverVersion"),
            cuda=None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
        )
    except SessionGone as error:
        session.forget(error)
        return _nothing(session)
    finally:
        session.close()


def _nothing(session: Nvml) -> Inventory:
    absent = session.absent
    return Inventory(gpus=(), absent=absent and absent.value, remedy=absent and absent.remedy, detail=session.detail)


def facts(session: Nvml, index: int) -> GpuFacts:
    """What one GPU says about itself.

    Raises:
        SessionGone: the driver went away.
    """
    try:
        handle = session.ask("nvmlDeviceGetHandleByIndex", index)
        if handle is None:
            raise GpuLost("no answer")
        memory = session.ask("nvmlDeviceGetMemoryInfo", handle, key=index)
        pci = session.ask("nvmlDeviceGetPciInfo", handle, key=index)
        return GpuFacts(
            index=index,
            uuid=session.ask("nvmlDeviceGetUUID", handle, key=index),
            name=session.ask("nvmlDeviceGetName", handle, key=index),
            memory_total=None if memory is None else int(memory.total),
            memory_used=None if memory is None else int(memory.used),
            pci_bus_id=None if pci is None else _text(pci.busId),
            processes=processes(session, handle, index),
            mig=mig_enabled(session, handle, index),
        )
    except GpuLost as error:
        return GpuFacts(
            index=index, uuid=None, name=None, memory_total=None, pci_bus_id=None, processes=(), state=error.state
        )


def gpu_memory_used(indices: Iterable[int]) -> dict[int, int]:
    """Bytes in use on each GPU, by every process of the host. A GPU that does not say is left out."""
    session = Nvml()
    used: dict[int, int] = {}
    if session.open() is not None:
        return used
    try:
        for index in indices:
            try:
                handle = session.ask("nvmlDeviceGetHandleByIndex", index)
                memory = None if handle is None else session.ask("nvmlDeviceGetMemoryInfo", handle)
            except GpuLost:
                continue
            if memory is not None:
                used[index] = int(memory.used)
    except SessionGone as error:
        session.forget(error)
    finally:
        session.close()
    return used


def mig_enabled(session: Nvml, handle: Any, index: int) -> bool | None:
    """Is the GPU cut into instances? None where it cannot be."""
    mode = session.ask("nvmlDeviceGetMigMode", handle, key=index)
    return None if mode is None else bool(mode[0])


def processes(session: Nvml, handle: Any, index: int) -> tuple[GpuProcess, ...]:
    """Processes with a compute context on the GPU, those of its instances included, by process id."""
    memory = process_memory(session, handle, index, mig=mig_enabled(session, handle, index))
    return tuple(_describe(pid, memory[pid]) for pid in sorted(memory))


def process_memory(session: Nvml, handle: Any, index: int, *, mig: bool | None) -> dict[int, int | None]:
    """Bytes by process id; None for what the driver does not say."""
    found: dict[int, int | None] = {}
    for device in [handle, *(_instances(session, handle, index) if mig else ())]:
        for process in session.ask("nvmlDeviceGetComputeRunningProcesses", device, key=index) or ():
            used = process.usedGpuMemory
            found[int(process.pid)] = None if used is None else int(used) + (found.get(int(process.pid)) or 0)
    return found


def _instances(session: Nvml, handle: Any, index: int) -> list[Any]:
    count = session.ask("nvmlDeviceGetMaxMigDeviceCount", handle, key=index) or 0
    devices = [session.ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, number) for number in range(count)]
    return [device for device in devices if device is not None]


def _describe(pid: int, memory: int | None) -> GpuProcess:
    if not is_visible(pid):
        return GpuProcess(pid=pid, name=None, user=None, memory_bytes=memory, visible=False)
    import psutil

    name = user = None
    try:
        process = psutil.Process(pid)
        name = process.name()
        user = process.username()
    except (psutil.Error, KeyError, OSError):
        # It ended meanwhile, or its user has no name here: what was read stands.
        pass
    return GpuProcess(pid=pid, name=name, user=user, memory_bytes=memory, visible=True)


def process_facts(pid: int, memory: int | None) -> dict[str, Any]:
    """The same for a sample: pid, mem (bytes), visible, name, user."""
    process = _describe(pid, memory)
    return {"pid": pid, "mem": memory, "visible": process.visible, "name": process.name, "user": process.user}


def is_visible(pid: int) -> bool:
    """Is the process that the driver calls `pid` the one that has this number here?"""
    if not os.path.exists(f"/proc/{pid}"):
        return False
    try:
        if os.readlink("/proc/self/ns/pid") == INITIAL_PID_NAMESPACE:
            return True
        # Elsewhere the number may by chance be that of a process which has nothing to do with any GPU.
        folder = f"/proc/{pid}/fd"
        return any(_target(f"{folder}/{entry}").startswith("/dev/nvidia") for entry in os.listdir(folder))
    except OSError:
        return False


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""


def _text(value: Any) -> str:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else str(value)
