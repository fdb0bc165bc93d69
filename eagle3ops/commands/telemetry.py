"""What do `telemetry show`, `record` and `play` print?"""

import asyncio
import json as jsonlib
import sys
import time
from argparse import Namespace
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

from eagle3ops.errors import ExitCode, RequestError
from eagle3ops.telemetry.recording import Player, Recorder
from eagle3ops.telemetry.sampler import Sampler
from eagle3ops.telemetry.sampler_process import FAST_HZ, watched_paths
from eagle3ops.telemetry.shared import watch
from eagle3ops.words import plain

Samples = AsyncGenerator[dict[str, Any], None]

TOP_PROCESSES = 15
_SHOW_APART_S = 1.0


def telemetry(args: Namespace, *, json: bool) -> int:
    """`eagle3ops telemetry show|record|play`. Returns an exit code.

    Raises:
        Eagle3opsError: a file cannot be read or written, a process is not there, no samples come.
    """
    if args.telemetry_command == "record":
        return _record(Path(args.file), hz=args.hz, seconds=args.seconds, pids=args.pid or [])
    if args.telemetry_command == "play":
        return _play(Path(args.file), json=json)
    return _show(json=json)


def _write(text: str) -> None:
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader (`head`) has seen enough; Python would complain once more when it closes the stream at exit.
        sys.stdout = None
        raise SystemExit(ExitCode.DONE) from None


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    for row in [header, *rows]:
        _write("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _show(*, json: bool) -> int:
    with Sampler(paths=watched_paths(), interval_s=_SHOW_APART_S) as sampler:
        sampler.sample(wait_s=2.0)
        time.sleep(_SHOW_APART_S)  # rates need two looks
        sample = sampler.sample()
    if json:
        _write(jsonlib.dumps(sample, indent=2, ensure_ascii=False, default=str))
    else:
        _show_gpus(sample)
        _show_host(sample)
        _show_processes(sample)
    return ExitCode.DONE


def _show_gpus(sample: Mapping[str, Any]) -> None:
    if not sample["gpu"]:
        _write(f"GPUs: none: {plain(sample['gpu_absent'] or 'not recorded')}")
        if sample["gpu_remedy"]:
            _write(f"  -> {plain(sample['gpu_remedy'])}")
        return
    rows = []
    for gpu in sample["gpu"]:
        users = ", ".join(_gpu_user(process) for process in gpu["procs"] or ())
        limits = ", ".join(name for name in gpu["reason_names"] or () if name != "gpu idle")
        rows.append(
            [
                str(gpu["i"]),
                plain(gpu["name"] or "?"),
                plain(gpu["state"]),
                _number(gpu["util"], "%"),
                f"{_size(gpu['mem_used'])} / {_size(gpu['mem_total'])}",
                _number(gpu["power_w"], "W"),
                _number(gpu["sm_mhz"], "MHz"),
                _number(gpu["temp_c"], "C"),
                limits or "-",
                plain(users) or "-",
            ]
        )
    _table(["gpu", "name", "state", "busy", "memory", "power", "clock", "temp", "held back by", "processes"], rows)
    for gpu in sample["gpu"]:
        if gpu["recovery"] not in (None, "none"):
            _write(f"gpu {gpu['i']}: the driver advises: {plain(gpu['recovery'])}")
        if gpu["ecc_volatile"]:
            _write(f"gpu {gpu['i']}: {gpu['ecc_volatile']} uncorrected memory errors since the driver was loaded")
        if gpu["mig"]:
            _write(f"gpu {gpu['i']}: cut into instances (MIG); busy and clock may be unknown")
    for event in sample["xids"]:
        _write(f"gpu {event.get('gpu')}: Xid {event.get('xid')}")


def _gpu_user(process: Mapping[str, Any]) -> str:
    if not process["visible"]:
        return f"pid {process['pid']}, not visible here ({_size(process['mem'])})"
    return f"{process['name'] or '?'} {process['pid']} ({_size(process['mem'])})"


def _show_host(sample: Mapping[str, Any]) -> None:
    host = sample["host"]
    rates = host.get("rates") or {}
    cpu, memory, load = host["cpu"] or {}, host["memory"] or {}, host["load"]
    words = [f"cpu {_number(rates.get('cpu_percent'), '%')} of {cpu.get('count', '?')} cores"]
    if load:
        words.append("load " + " ".join(f"{value:.2f}" for value in load))
    if rates.get("iowait_percent"):
        words.append(f"waiting for disks {rates['iowait_percent']} %")
    _write(", ".join(words))
    if memory:
        _write(
            f"memory {_size(memory.get('available'))} available of {_size(memory.get('total'))}, "
            f"swap {_size(memory.get('swap_free'))} free of {_size(memory.get('swap_total'))}"
        )
    if host["shm"]:
        _write(f"/dev/shm {_size(host['shm'].get('free'))} free of {_size(host['shm'].get('total'))}")
    for path, disk in (host["disks"] or {}).items():
        reason = disk.get("reason")
        space = f"{_size(disk.get('free'))} free of {_size(disk.get('total'))}"
        _write(f"disk {plain(path)}: {plain(reason) if reason else space}")
    group = host["cgroup"] or {}
    if group.get("memory_limit") is not None:
        _write(f"control group: memory {_size(group.get('memory_used'))} of {_size(group['memory_limit'])}")
    if group.get("cpu_limit") is not None:
        _write(
            f"control group: {group['cpu_limit']:g} cores, held back {group.get('cpu_throttled_s') or 0:.0f} s so far"
        )
    if group.get("oom_kills"):
        _write(f"control group: {group['oom_kills']} processes were killed for want of memory")
    for name, kinds in (host["psi"] or {}).items():
        if (waiting := ((kinds or {}).get("some") or {}).get("avg10")) is not None and waiting >= 1:
            _write(f"pressure: {waiting:.0f} % of the last 10 s something waited for {name}")
    for source, reason in (host["reasons"] or {}).items():
        _write(f"{plain(source)} not known: {plain(reason)}")


def _show_processes(sample: Mapping[str, Any]) -> None:
    processes = sorted(sample["procs"], key=lambda process: -(process["cpu"] or 0.0))
    if not processes:
        _write("processes: no run is going on, and none on a GPU is visible")
        return
    rows = [
        [
            str(process["pid"]),
            plain(process["label"] or "-"),
            plain(process["state"] or "?"),
            _number(process["cpu"], "%"),
            _number(process["wakeups_s"], "/s"),
            _size(process["rss"]),
            str(process["threads"]),
            plain(process["wchan"] or "-"),
            plain(process["cmd"] or process["name"] or "?")[:60],
        ]
        for process in processes[:TOP_PROCESSES]
    ]
    _table(["pid", "run", "state", "cpu", "wakes", "memory", "threads", "waits in", "command"], rows)
    more = len(processes) - len(rows) + sample["procs_left_out"]
    if more:
        _write(f"and {more} more")


def _record(path: Path, *, hz: float, seconds: float | None, pids: Sequence[int]) -> int:
    for pid in pids:
        if not _exists(pid):
            raise RequestError(f"there is no process {pid}")
    with Recorder(path) as recorder:
        sys.stderr.write(f"{path}: recording {hz:g} samples a second; end it with Ctrl-C\n")
        try:
            asyncio.run(_record_until(recorder, _samples(hz, pids), seconds))
        except KeyboardInterrupt:
            # How a recording without --seconds is meant to end.
            sys.stderr.write("\n")
    sys.stderr.write(f"{path}: {recorder.samples} samples\n  look at them: eagle3ops telemetry play {path}\n")
    return ExitCode.DONE


async def _record_until(
    recorder: Recorder, samples: AsyncGenerator[dict[str, Any], None], seconds: float | None
) -> None:
    try:
        async with asyncio.timeout(seconds), aclosing(samples) as feed:
            async for sample in feed:
                recorder.write(sample)
    except TimeoutError:
        return


async def _samples(hz: float, pids: Sequence[int]) -> Samples:
    if not pids and hz <= FAST_HZ:
        async with aclosing(watch(hz)) as feed:
            async for sample in feed:
                yield sample
    with Sampler(pids, paths=watched_paths(), interval_s=1 / hz) as sampler:
        due = time.monotonic()
        while True:
            yield sampler.sample()
            due = max(due + 1 / hz, time.monotonic())
            await asyncio.sleep(due - time.monotonic())


def _exists(pid: int) -> bool:
    import psutil

    return psutil.pid_exists(pid)


def _play(path: Path, *, json: bool) -> int:
    player = Player(path)
    found = 0
    if json:
        for sample in player:
            found += 1
            _write(jsonlib.dumps(sample, ensure_ascii=False, default=str))
    else:
        rows = list(_rows(player))
        found = len(rows)
        _table(["time", "phase", "gpu busy", "gpu power", "gpu memory", "cpu", "processes", "note"], rows)
    if player.bad_lines:
        sys.stderr.write(f"{path}: {player.bad_lines} lines are no samples and were passed over\n")
    if player.torn:
        sys.stderr.write(f"{path}: the end is missing\n")
    if not found:
        raise RequestError(f"{path}: holds no sample", remedy="make one: eagle3ops telemetry record FILE")
    return ExitCode.DONE


def _rows(player: Player) -> Iterator[list[str]]:
    """One row a second: the means over the samples in it."""
    group: list[dict[str, Any]] = []
    for sample in player:
        if group and int(sample["t"]) != int(group[0]["t"]):
            yield _row(group)
            group = []
        group.append(sample)
    if group:
        yield _row(group)


def _row(group: Sequence[Mapping[str, Any]]) -> list[str]:
    last = group[-1]
    notes = []
    if any(sample["late"] for sample in group):
        notes.append("the sampler was late")
    notes += [f"gpu {gpu['i']} {plain(gpu['state'])}" for gpu in last["gpu"] if gpu["state"] != "ok"]
    notes += [f"Xid {event.get('xid')} on gpu {event.get('gpu')}" for sample in group for event in sample["xids"]]
    if not last["gpu"] and last["gpu_absent"]:
        notes.append(plain(last["gpu_absent"]))
    cpu = [sum(process["cpu"] or 0.0 for process in sample["procs"]) for sample in group]
    return [
        time.strftime("%H:%M:%S", time.localtime(max(0.0, min(last["t"], 4e9)))),
        plain(last["phase"] or "-"),
        _each_gpu(group, "util", "%"),
        _each_gpu(group, "power_w", "W"),
        " ".join(_size(gpu["mem_used"]) for gpu in last["gpu"]) or "-",
        f"{sum(cpu) / len(cpu):.0f} %",
        str(len(last["procs"])),
        ", ".join(notes),
    ]


def _each_gpu(group: Sequence[Mapping[str, Any]], key: str, unit: str) -> str:
    words = []
    for gpu in group[-1]["gpu"]:
        same = (other for sample in group for other in sample["gpu"] if other["i"] == gpu["i"])
        values = [other[key] for other in same if other[key] is not None]
        words.append(f"{sum(values) / len(values):.0f}" if values else "?")
    return f"{' '.join(words)} {unit}" if words else "-"


def _number(value: float | None, unit: str) -> str:
    return "?" if value is None else f"{value:,.0f} {unit}"


def _size(value: float | None) -> str:
    if value is None:
        return "?"
    return f"{value / 1e9:.1f} GB" if value >= 1e9 else f"{value / 1e6:.0f} MB"
