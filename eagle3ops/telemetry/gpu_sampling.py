"""What is each GPU doing now?

What the driver answers at once is read at every look, processes and error counters every 2 s. Two answers are dear:
on an H200 (driver 580) the energy counter takes 3.6 ms of CPU time, and PCIe traffic is watched for 30 ms each way.
Those are asked of one GPU at a time, once a second. (There are PCIe byte counters, fields 197 and 198, but of 32 bits:
at 20 GB/s they wrap five times a second.)
"""

import contextlib
import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from eagle3ops.telemetry.gpus import mig_enabled, process_facts, process_memory
from eagle3ops.telemetry.nvml import GpuLost, Nvml, SessionGone

SLOW_EVERY_S = 2.0
DEAR_EVERY_S = 0.95
XIDS_PER_LOOK = 64

NVLINK_TX, NVLINK_RX, RECOVERY = 138, 139, 230
_ALL_LINKS = 0xFFFFFFFF

REASONS = {
    0x1: "gpu idle",
    0x2: "application clocks",
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
    0x100: "display clocks",
    0x200: "board limit",
    0x400: "reliability",
}
"""Bits of the driver's clock event reasons."""

RECOVERY_ACTIONS = {
    0: "none",
    1: "reset the GPU",
    2: "reboot the node",
    3: "drain peer-to-peer",
    4: "drain and reset",
    5: "recover the IMEX domain",
    6: "reset the bus",
    7: "reboot the system",
}

FIELDS = (
    "uuid",
    "name",
    "mig",
    "util",
    "util_mem",
    "mem_used",
    "mem_total",
    "energy_mj",
    "energy_mono",
    "power_sample_w",
    "sm_mhz",
    "mem_mhz",
    "temp_c",
    "pstate",
    "reasons",
    "reason_names",
    "pcie_tx_kbs",
    "pcie_rx_kbs",
    "pcie_t",
    "nvlink_tx_kib",
    "nvlink_rx_kib",
    "ecc_volatile",
    "ecc_aggregate",
    "recovery",
    "xid_last",
    "procs",
)


def reason_names(bits: int | None) -> list[str] | None:
    """Clock event reasons as words; bits that are not known are named by number."""
    if bits is None:
        return None
    known = [name for bit, name in REASONS.items() if bits & bit]
    rest = bits & ~sum(REASONS)
    return [*known, hex(rest)] if rest else known


@dataclass(slots=True)
class _Gpu:
    index: int
    handle: Any = None
    state: str = "ok"
    fixed: dict[str, Any] = field(default_factory=dict)
    slow: dict[str, Any] = field(default_factory=dict)
    slow_at: float | None = None
    dear: dict[str, Any] = field(default_factory=dict)
    turn_at: float = -1.0
    xid_last: dict[str, Any] | None = None


class GpuSampler:
    """Looks at all GPUs again and again; a driver that comes back is found again."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.session = Nvml(clock)
        self._clock = clock
        self._gpus: list[_Gpu] = []
        self._events: Any = None
        self._dear_at: float | None = None
        self.xids: list[dict[str, Any]] = []
        """Xid events since the last look: gpu (index or None), xid, t (wall clock, seconds)."""

    def read(self) -> list[dict[str, Any]]:
        """One look at every GPU: `i`, `state` and `FIELDS`. Empty while `session.absent` says why."""
        self.xids = []
        if self.session.absent is not None:
            self._gpus, self._events = [], None
            if self.session.open() is not None:
                return []
        try:
            if not self._gpus:
                self._start()
            self._poll_events()
            now = self._clock()
            found = [self._read(gpu, now) for gpu in self._gpus]
            if self._dear_at is None or now - self._dear_at >= DEAR_EVERY_S:
                self._read_dear(found, now)
        except SessionGone as error:
            self._gpus, self._events = [], None
            self.session.forget(error)
            return []
        return found

    def close(self) -> None:
        """End the session."""
        if self._events is not None:
            with contextlib.suppress(SessionGone, GpuLost):
                self.session.ask("nvmlEventSetFree", self._events)
        self._gpus, self._events = [], None
        self.session.close()

    def visible_pids(self) -> set[int]:
        """Processes on any GPU that can be looked at from here."""
        return {process["pid"] for gpu in self._gpus for process in gpu.slow.get("procs") or () if process["visible"]}

    def _start(self) -> None:
        self._gpus = [_Gpu(index) for index in range(self.session.count)]
        self._events = self.session.ask("nvmlEventSetCreate")
        for gpu in self._gpus:
            self._take_up(gpu)

    def _take_up(self, gpu: _Gpu) -> None:
        import pynvml

        ask = self.session.ask
        try:
            gpu.handle = ask("nvmlDeviceGetHandleByIndex", gpu.index)
            if gpu.handle is None:
                gpu.state = "no answer"
                return
            gpu.state = "ok"
            gpu.fixed = {
                "uuid": ask("nvmlDeviceGetUUID", gpu.handle, key=gpu.index),
                "name": ask("nvmlDeviceGetName", gpu.handle, key=gpu.index),
                "mig": mig_enabled(self.session, gpu.handle, gpu.index),
            }
            if self._events is not None:
                ask(
                    "nvmlDeviceRegisterEvents",
                    gpu.handle,
                    pynvml.nvmlEventTypeXidCriticalError,
                    self._events,
                    key=gpu.index,
                )
        except GpuLost as error:
            gpu.state = error.state

    def _read(self, gpu: _Gpu, now: float) -> dict[str, Any]:
        record: dict[str, Any] = {"i": gpu.index, "state": gpu.state, **dict.fromkeys(FIELDS)}
        slow_due = gpu.slow_at is None or now - gpu.slow_at >= SLOW_EVERY_S
        if gpu.state != "ok" and slow_due:
            gpu.slow_at = now
            self._take_up(gpu)
        record.update(gpu.fixed, xid_last=gpu.xid_last)
        if gpu.handle is None or gpu.state != "ok":
            return {**record, "state": gpu.state}
        try:
            self._read_fast(gpu, record)
            if slow_due or not gpu.slow:
                gpu.slow_at = now
                self._read_slow(gpu)
        except GpuLost as error:
            gpu.state, gpu.slow, gpu.dear = error.state, {}, {}
            return {**dict.fromkeys(record), "i": gpu.index, "state": gpu.state, "xid_last": gpu.xid_last, **gpu.fixed}
        record.update(gpu.slow)
        record.update(gpu.dear)
        return {**record, "state": gpu.state}

    def _read_fast(self, gpu: _Gpu, record: dict[str, Any]) -> None:
        import pynvml

        ask, handle, key = self.session.ask, gpu.handle, gpu.index
        rates = ask("nvmlDeviceGetUtilizationRates", handle, key=key)
        if rates is not None:
            record["util"], record["util_mem"] = int(rates.gpu), int(rates.memory)
        memory = ask("nvmlDeviceGetMemoryInfo", handle, key=key)
        if memory is not None:
            record["mem_used"], record["mem_total"] = int(memory.used), int(memory.total)
        milliwatts = ask("nvmlDeviceGetPowerUsage", handle, key=key)
        record["power_sample_w"] = None if milliwatts is None else milliwatts / 1000
        record["sm_mhz"] = ask("nvmlDeviceGetClockInfo", handle, pynvml.NVML_CLOCK_SM, key=(key, "sm"))
        record["mem_mhz"] = ask("nvmlDeviceGetClockInfo", handle, pynvml.NVML_CLOCK_MEM, key=(key, "memory"))
        record["temp_c"] = ask("nvmlDeviceGetTemperature", handle, pynvml.NVML_TEMPERATURE_GPU, key=key)
        record["pstate"] = ask("nvmlDeviceGetPerformanceState", handle, key=key)
        bits = ask("nvmlDeviceGetCurrentClocksEventReasons", handle, key=key)
        if bits is None:  # a driver before 535
            bits = ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle, key=key)
        record["reasons"], record["reason_names"] = bits, reason_names(bits)
        fields = ((NVLINK_TX, _ALL_LINKS), (NVLINK_RX, _ALL_LINKS), (RECOVERY, 0))
        values = ask("nvmlDeviceGetFieldValues", handle, fields, key=key)
        if values is not None:
            sent, received, action = (_field(value) for value in values)
            record["nvlink_tx_kib"], record["nvlink_rx_kib"] = sent, received
            record["recovery"] = None if action is None else RECOVERY_ACTIONS.get(action, f"action {action}")

    def _read_slow(self, gpu: _Gpu) -> None:
        import pynvml

        ask, handle, key = self.session.ask, gpu.handle, gpu.index
        error = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
        memory = process_memory(self.session, handle, key, mig=gpu.fixed.get("mig"))
        gpu.slow = {
            "ecc_volatile": ask(
                "nvmlDeviceGetTotalEccErrors", handle, error, pynvml.NVML_VOLATILE_ECC, key=(key, "volatile")
            ),
            "ecc_aggregate": ask(
                "nvmlDeviceGetTotalEccErrors", handle, error, pynvml.NVML_AGGREGATE_ECC, key=(key, "aggregate")
            ),
            "procs": [process_facts(pid, memory[pid]) for pid in sorted(memory)],
        }

    def _read_dear(self, records: list[dict[str, Any]], now: float) -> None:
        """Ask the GPU that was asked longest ago, and any that is new for the first reading of its counter."""
        waiting = [gpu for gpu in self._gpus if gpu.state == "ok" and gpu.handle is not None]
        if not waiting:
            return
        self._dear_at = now
        oldest = min(waiting, key=lambda gpu: gpu.turn_at)
        oldest.turn_at = now
        for gpu in waiting:
            if gpu is oldest or not gpu.dear:
                self._ask_dear(gpu, bus=gpu is oldest)
                records[gpu.index].update(gpu.dear)

    def _ask_dear(self, gpu: _Gpu, *, bus: bool) -> None:
        import pynvml

        ask, handle, key = self.session.ask, gpu.handle, gpu.index
        try:
            energy = ask("nvmlDeviceGetTotalEnergyConsumption", handle, key=key)
            gpu.dear |= {"energy_mj": energy, "energy_mono": None if energy is None else self._clock()}
            if bus:
                sent, received = pynvml.NVML_PCIE_UTIL_TX_BYTES, pynvml.NVML_PCIE_UTIL_RX_BYTES
                gpu.dear["pcie_tx_kbs"] = ask("nvmlDeviceGetPcieThroughput", handle, sent, key=key)
                gpu.dear["pcie_rx_kbs"] = ask("nvmlDeviceGetPcieThroughput", handle, received, key=key)
                gpu.dear["pcie_t"] = time.time()
        except GpuLost as error:
            gpu.state, gpu.dear = error.state, {}

    def _poll_events(self) -> None:
        if self._events is None:
            return
        by_address = {_address(gpu.handle): gpu for gpu in self._gpus if gpu.handle is not None}
        for _ in range(XIDS_PER_LOOK):
            try:
                event = self.session.ask("nvmlEventSetWait_v2", self._events, 0)
            except GpuLost:
                return
            if event is None:
                return
            gpu, xid, now = by_address.get(_address(event.device)), int(event.eventData), time.time()
            self.xids.append({"gpu": None if gpu is None else gpu.index, "xid": xid, "t": now})
            if gpu is not None:
                gpu.xid_last = {"xid": xid, "t": now}


def _field(value: Any) -> int | None:
    """A field value by the type that the driver says it has."""
    import pynvml

    if value.nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    names = {
        pynvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
        pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
        pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
        pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
        pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
        pynvml.NVML_VALUE_TYPE_SIGNED_INT: "siVal",
    }
    name = names.get(value.valueType)
    return None if name is None else int(getattr(value.value, name))


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value
