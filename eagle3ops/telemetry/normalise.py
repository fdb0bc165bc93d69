"""What does any recorded line mean in the schema of `sampler`?

Known besides our own is the older form: `load`, `meminfo` and `psi` beside `gpu`, load averages as text, memory in
KiB, `power_w` of one moment, `procs` of a GPU as pairs, `task` as lists. Anything may come: a value of the wrong kind
becomes None, an entry of the wrong shape is left out, and what is not a sample at all gives None.
"""

import math
from collections.abc import Mapping
from typing import Any

from eagle3ops.telemetry.gpu_sampling import FIELDS, reason_names
from eagle3ops.telemetry.host import MEMORY_KEYS, parse_psi
from eagle3ops.telemetry.sampler import SCHEMA

_GPU_TEXT = ("uuid", "name", "recovery")
_PROCESS_NUMBERS = (
    "pid",
    "ppid",
    "start",
    "start_ticks",
    "root",
    "utime",
    "stime",
    "threads",
    "rss",
    "majflt",
    "detail_majflt",
    "rchar",
    "wchar",
    "read_bytes",
    "write_bytes",
    "vcs",
    "nvcs",
    "stat_mono",
    "detail_mono",
)
_PROCESS_TEXT = ("label", "run", "name", "cmd", "state", "wchan", "syscall")
_HOST_KEYS = ("mono", "load", "cpu", "memory", "shm", "disks", "devices", "network", "cgroup", "psi", "reasons")
_HOST_COUNTERS = ("devices", "network")


def normalise(data: Any) -> dict[str, Any] | None:
    """The sample in schema 1, without rates (see `rates.Rates`); None when it holds no time or no list of GPUs."""
    if not isinstance(data, dict) or not isinstance(data.get("gpu"), list):
        return None
    mono, wall = _number(data.get("mono")), _number(data.get("t"))
    if mono is None or wall is None:
        return None
    found = dict(data)
    for key in ("load", "meminfo", "psi"):
        found.pop(key, None)
    found.update(
        schema=SCHEMA,
        n=_number(data.get("n")),
        t=wall,
        mono=mono,
        boot=_text(data.get("boot")),
        suspended_s=_number(data.get("suspended_s")) or 0.0,
        interval_s=_number(data.get("interval_s")),
        gap_s=_number(data.get("gap_s")),
        late=data.get("late") is True,
        cost_ms=_number(data.get("cost_ms")),
        cpu_ms=_number(data.get("cpu_ms")),
        phase=_text(data.get("phase")),
        gpu=[_gpu(gpu, mono) for gpu in _dicts(data["gpu"]) if _number(gpu.get("i")) is not None],
        gpu_absent=_text(data.get("gpu_absent")),
        gpu_remedy=_text(data.get("gpu_remedy")),
        xids=_dicts(data.get("xids")),
        procs=_processes(data.get("procs"), mono),
        procs_left_out=_number(data.get("procs_left_out")) or 0,
        host=_host(data, mono),
    )
    return found


def _gpu(gpu: Mapping[str, Any], mono: float) -> dict[str, Any]:
    found: dict[str, Any] = {"i": gpu["i"], "state": _text(gpu.get("state")) or "ok"}
    for name in FIELDS:
        found[name] = _text(gpu.get(name)) if name in _GPU_TEXT else _number(gpu.get(name))
    found["mig"] = gpu.get("mig") if isinstance(gpu.get("mig"), bool) else None
    found["xid_last"] = gpu.get("xid_last") if isinstance(gpu.get("xid_last"), dict) else None
    bits = found["reasons"]
    found["reason_names"] = reason_names(bits) if isinstance(bits, int) and bits >= 0 else None
    if "energy_mono" not in gpu and found["energy_mj"] is not None:
        # The older form reads the counter at every look.
        found["energy_mono"] = mono
    if found["power_sample_w"] is None and gpu.get("power_source") != "energy":
        found["power_sample_w"] = _number(gpu.get("power_w"))
    found["procs"] = None
    if isinstance(gpu.get("procs"), list):
        found["procs"] = [process for entry in gpu["procs"] if (process := _gpu_process(entry)) is not None]
    return found


def _gpu_process(entry: Any) -> dict[str, Any] | None:
    if isinstance(entry, list) and len(entry) == 2:
        entry = {"pid": entry[0], "mem": entry[1], "visible": True}
    if not isinstance(entry, dict) or _number(entry.get("pid")) is None:
        return None
    return {
        "pid": entry["pid"],
        "mem": _number(entry.get("mem")),
        "visible": entry.get("visible") is True,
        "name": _text(entry.get("name")),
        "user": _text(entry.get("user")),
    }


def _processes(entries: Any, mono: float) -> list[dict[str, Any]]:
    found: dict[Any, dict[str, Any]] = {}
    for entry in _dicts(entries):
        process: dict[str, Any] = {name: _number(entry.get(name)) for name in _PROCESS_NUMBERS}
        process.update({name: _text(entry.get(name)) for name in _PROCESS_TEXT})
        if process["pid"] is None or process["start"] is None:
            continue
        if "detail_mono" not in entry:
            # The older form reads everything at every look.
            process["detail_mono"], process["detail_majflt"] = mono, process["majflt"]
        if "stat_mono" not in entry:
            process["stat_mono"] = mono
        if isinstance(entry.get("task"), list):
            process["task"] = [thread for item in entry["task"] if (thread := _thread(item)) is not None]
        found[process["pid"], process["start"]] = process
    return list(found.values())


def _thread(item: Any) -> dict[str, Any] | None:
    if isinstance(item, list) and len(item) == 5:
        ticks = _number(item[3])
        item = dict(zip(("tid", "name", "state", "cpu_s", "wchan"), item, strict=True))
        item["cpu_s"] = None if ticks is None else ticks / 100
    if not isinstance(item, dict) or _number(item.get("tid")) is None:
        return None
    thread: dict[str, Any] = {name: _number(item.get(name)) for name in ("tid", "cpu_s", "vcs", "nvcs")}
    return {**thread, **{name: _text(item.get(name)) for name in ("name", "state", "wchan", "syscall")}}


def _host(data: Mapping[str, Any], mono: float) -> dict[str, Any]:
    given = data.get("host")
    found: dict[str, Any] = dict.fromkeys(_HOST_KEYS)
    if isinstance(given, dict):
        found["mono"] = _number(given.get("mono"))
        for name in ("cpu", "memory", "shm"):
            values = given.get(name)
            found[name] = {key: _number(value) for key, value in values.items()} if isinstance(values, dict) else None
        for name in ("disks", "cgroup", "psi", "reasons"):
            found[name] = given[name] if isinstance(given.get(name), dict) else None
        for name in _HOST_COUNTERS:
            found[name] = _counters(given.get(name))
        found["load"] = _numbers(given.get("load"))
        return found
    found["mono"] = mono
    found["load"] = _numbers(data.get("load"))
    memory = data.get("meminfo")
    if isinstance(memory, dict):
        kib = {ours: _number(memory.get(theirs)) for theirs, ours in MEMORY_KEYS.items()}
        found["memory"] = {name: None if value is None else int(value * 1024) for name, value in kib.items()}
    pressure = data.get("psi")
    if isinstance(pressure, dict):
        found["psi"] = {
            name: parse_psi("\n".join(line for line in lines if isinstance(line, str)))
            for name, lines in pressure.items()
            if isinstance(lines, list)
        }
    return found


def _counters(value: Any) -> dict[str, dict[str, Any]] | None:
    if not isinstance(value, dict):
        return None
    return {
        name: {key: _number(number) for key, number in counters.items()}
        for name, counters in value.items()
        if isinstance(counters, dict)
    }


def _numbers(value: Any) -> list[float] | None:
    if not isinstance(value, list):
        return None
    numbers = [_number(item) for item in value[:3]]
    return [number for number in numbers if number is not None] if None not in numbers else None


def _number(value: Any) -> Any:
    """A finite number, also when it was written as text; None for anything else."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return value if math.isfinite(value) and abs(value) < 1e300 else None
    except OverflowError:
        return None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []
