"""How fast did the counters of two samples move?

Works on samples just taken and on recorded ones alike. Every rate is over the real time between two readings of the
same GPU, process (pid and start) or device; None where there is no earlier reading or a counter went backwards.
"""

from collections import deque
from collections.abc import Mapping
from typing import Any

PROCESS_RATES = (
    "cpu_user",
    "cpu_system",
    "cpu",
    "wakeups_s",
    "preempted_s",
    "rchar_s",
    "wchar_s",
    "read_bytes_s",
    "write_bytes_s",
    "majflt_s",
)
GPU_RATES = ("power_w", "power_source", "nvlink_tx_kbs", "nvlink_rx_kbs")

_CPU_RATES = ("cpu_user", "cpu_system", "cpu")
_DETAIL_RATES = {
    "wakeups_s": "vcs",
    "preempted_s": "nvcs",
    "rchar_s": "rchar",
    "wchar_s": "wchar",
    "read_bytes_s": "read_bytes",
    "write_bytes_s": "write_bytes",
    "majflt_s": "detail_majflt",
}
_MIN_S = 1e-3
"""Below this a rate is noise."""
POWER_S = 0.9
"""Power is the mean over at least so long, if there is so much: the driver moves its energy counter in steps, and
over 0.1 s a steady 123 W read 95 to 176 W, over 1 s 119 to 127 W."""


class Rates:
    """Adds rates to one sample after another, in place."""

    def __init__(self) -> None:
        self._mono: float | None = None
        self._boot: Any = None
        self._gpus: dict[Any, Mapping[str, Any]] = {}
        self._energy: dict[Any, deque[tuple[float, Any]]] = {}
        self._processes: dict[tuple[Any, Any], Mapping[str, Any]] = {}
        self._host: Mapping[str, Any] = {}

    def fill(self, sample: dict[str, Any]) -> None:
        """Add the rates; the sample is kept as the earlier reading of the next one."""
        mono: float = sample["mono"]
        boot = sample.get("boot")
        if boot != self._boot or (self._mono is not None and mono < self._mono):
            # Another boot or another recording: nothing can be compared.
            self._mono, self._gpus, self._energy, self._processes, self._host = None, {}, {}, {}, {}
        seconds = None if self._mono is None else mono - self._mono
        if seconds is not None and seconds < _MIN_S:
            seconds = None
        for gpu in sample["gpu"]:
            _gpu(gpu, self._gpus.get(_gpu_key(gpu), {}), seconds)
            _power(gpu, self._energy.setdefault(_gpu_key(gpu), deque()))
        processes = {(process["pid"], process["start"]): process for process in sample["procs"]}
        for key, process in processes.items():
            _process(process, self._processes.get(key, {}))
        host = sample.get("host")
        if host:
            _host(host, self._host)
            self._host = host
        self._mono, self._boot = mono, boot
        self._gpus = {_gpu_key(gpu): gpu for gpu in sample["gpu"]}
        self._processes = processes


def _gpu_key(gpu: Mapping[str, Any]) -> Any:
    return gpu.get("uuid") or gpu.get("i")


def _rate(new: Any, old: Any, seconds: float | None) -> float | None:
    if new is None or old is None or seconds is None or new < old:
        return None
    return 0.0 if new == old else round(float(new - old) / seconds, 3)


def _gpu(gpu: dict[str, Any], before: Mapping[str, Any], seconds: float | None) -> None:
    for way in ("tx", "rx"):
        gpu[f"nvlink_{way}_kbs"] = _rate(gpu.get(f"nvlink_{way}_kib"), before.get(f"nvlink_{way}_kib"), seconds)


def _power(gpu: dict[str, Any], readings: deque[tuple[float, Any]]) -> None:
    """`readings` are those of the last second, and the youngest that is older."""
    energy, read_at = gpu.get("energy_mj"), gpu.get("energy_mono")
    if energy is None or read_at is None:
        readings.clear()
    elif not readings or (read_at > readings[-1][0] and energy >= readings[-1][1]):
        readings.append((read_at, energy))
    elif (read_at, energy) != readings[-1]:
        readings.clear()
        readings.append((read_at, energy))
    while len(readings) > 2 and readings[-1][0] - readings[1][0] >= POWER_S:
        readings.popleft()
    if len(readings) > 1 and readings[-1][0] - readings[0][0] >= _MIN_S:
        milliwatts = float(readings[-1][1] - readings[0][1]) / (readings[-1][0] - readings[0][0])
        gpu["power_w"], gpu["power_source"] = round(milliwatts / 1000, 2), "energy"
        return
    sampled = gpu.get("power_sample_w")
    gpu["power_w"], gpu["power_source"] = sampled, None if sampled is None else "sample"


def _process(process: dict[str, Any], before: Mapping[str, Any]) -> None:
    looked_at, looked_before = process["stat_mono"], before.get("stat_mono")
    if looked_at is not None and looked_at == looked_before:
        for name in _CPU_RATES:
            process[name] = before[name]
    else:
        seconds = _apart(looked_at, looked_before)
        user = _percent(process["utime"], before.get("utime"), seconds)
        system = _percent(process["stime"], before.get("stime"), seconds)
        process["cpu_user"], process["cpu_system"] = user, system
        process["cpu"] = None if user is None or system is None else round(user + system, 1)
    read_at, read_before = process["detail_mono"], before.get("detail_mono")
    if read_at is not None and read_at == read_before:
        for name in _DETAIL_RATES:
            process[name] = before[name]
        return
    apart = _apart(read_at, read_before)
    for name, counter in _DETAIL_RATES.items():
        process[name] = _rate(process[counter], before.get(counter), apart)


def _apart(now: float | None, before: float | None) -> float | None:
    return None if now is None or before is None or now - before < _MIN_S else now - before


def _percent(now: Any, then: Any, seconds: float | None) -> float | None:
    rate = _rate(now, then, seconds)
    return None if rate is None else round(100 * rate, 1)


def _host(host: dict[str, Any], before: Mapping[str, Any]) -> None:
    if host.get("mono") is not None and host.get("mono") == before.get("mono"):
        host["rates"] = before.get("rates")
        return
    now, then = host.get("mono"), before.get("mono")
    seconds = None if now is None or then is None or now - then < _MIN_S else now - then
    rates: dict[str, Any] = {"cpu_percent": None, "iowait_percent": None, "steal_percent": None}
    cpu, cpu_before = host.get("cpu") or {}, before.get("cpu") or {}
    total = _rate(cpu.get("total_s"), cpu_before.get("total_s"), 1.0)
    if total:
        for name in ("busy", "iowait", "steal"):
            share = _rate(cpu.get(f"{name}_s"), cpu_before.get(f"{name}_s"), total)
            rates["cpu_percent" if name == "busy" else f"{name}_percent"] = (
                None if share is None else round(100 * share, 1)
            )
    for source in ("devices", "network"):
        earlier = before.get(source) or {}
        rates[source] = {
            name: {f"{key}_s": _rate(value, earlier.get(name, {}).get(key), seconds) for key, value in counters.items()}
            for name, counters in (host.get(source) or {}).items()
        }
    host["rates"] = rates
