"""Which incidents does a sample of the machine show? A pure function of one sample (schema: `telemetry.sampler`).

When they began is for whoever looks again and again to remember: of one sample only the present is known.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from eagle3ops.watchdog.incidents.incident import Evidence, Incident, Remedy, incident_id
from eagle3ops.words import human_bytes, plain

DISK_SHARE, DISK_BYTES = 0.03, 5 << 30
"""A file system with less free than either is nearly full."""
MEMORY_SHARE = 0.05
STALL_PERCENT = 30.0
"""Of the last 10 s in which some process waited for memory."""
_HOT = ("hardware slowdown", "hardware thermal slowdown", "software thermal slowdown", "hardware power brake")

XIDS = {
    13: "a program on the GPU made an error: most often a defect of a kernel",
    31: "a program on the GPU touched memory that is not its own",
    43: "a program on the GPU stopped it; the GPU itself is well",
    45: "work on the GPU was ended, most often after another error or a kill",
    48: "a memory error that could not be corrected",
    63: "a damaged row of memory is taken out of use at the next reset",
    64: "a damaged row of memory could not be taken out of use",
    74: "an error on NVLink",
    79: "the GPU has fallen off the bus",
    92: "many memory errors were corrected",
    94: "a memory error that was contained: only the program that met it ended",
    95: "a memory error that was not contained",
    119: "the GPU's own processor does not answer",
    120: "the GPU's own processor failed",
}
_GRAVE = frozenset({48, 64, 74, 79, 94, 95, 119, 120})


def machine_incidents(sample: object) -> list[Incident]:
    """What is wrong with the machine now; nothing for what is no sample."""
    if not isinstance(sample, Mapping) or (t := _number(sample.get("t"))) is None:
        return []
    boot = str(sample.get("boot"))
    found = [one for gpu in _mappings(sample.get("gpu")) for one in _gpu(gpu, t, boot)]
    host = sample.get("host")
    if isinstance(host, Mapping):
        found += _disks(host, t, boot)
        found += _memory(host, t, boot)
    return found


def _gpu(gpu: Mapping[Any, Any], t: float, boot: str) -> Iterable[Incident]:
    name = f"GPU {plain(gpu.get('i'))}"
    key = str(gpu.get("uuid") or gpu.get("i"))
    look = Remedy("see what runs on it", "gpus")
    state, advice = _text(gpu.get("state")), _text(gpu.get("recovery"))
    if state not in ("", "ok"):
        yield Incident(
            id=incident_id(boot, key, "gpu", state), kind="gpu", severity="error", title=f"{name}: {state}",
            first=t, last=t, explanation="The driver no longer gets an answer from it as it should.",
            evidence=(Evidence(f"the driver says: {state}"),),
            remedies=(look, Remedy("see what the driver says", command="nvidia-smi -q")),
        )  # fmt: skip
    if advice not in ("", "none"):
        yield Incident(
            id=incident_id(boot, key, "advice", advice), kind="gpu", severity="error",
            title=f"{name}: the driver advises: {advice}", first=t, last=t,
            explanation="Nothing new should be started on it before that is done.",
            evidence=(Evidence(f"recovery action: {advice}"),), remedies=(look,),
        )  # fmt: skip
    last = gpu.get("xid_last")
    xid = _number(last.get("xid")) if isinstance(last, Mapping) else None
    if xid is not None and isinstance(last, Mapping):
        code, at = int(xid), _number(last.get("t"))
        when = t if at is None else at
        yield Incident(
            id=incident_id(boot, key, "xid", code, int(when)), kind="xid",
            severity="error" if code in _GRAVE else "warn", title=f"{name}: Xid {code}", first=when, last=when,
            explanation=f"The driver reported: {XIDS.get(code, 'an error that has no words here')}.",
            evidence=(Evidence(f"Xid {code} on {name}"),),
            remedies=(look, Remedy("see the kernel's own words", command="sudo dmesg | grep -i xid")),
        )  # fmt: skip
    errors = _number(gpu.get("ecc_volatile"))
    if errors:
        yield Incident(
            id=incident_id(boot, key, "ecc"), kind="ecc", severity="error",
            title=f"{name}: {errors:.0f} memory errors that could not be corrected", first=t, last=t,
            explanation="What was computed with that memory may be wrong.", count=max(1, int(errors)),
            evidence=(Evidence(f"{errors:.0f} since the driver was loaded"),),
            remedies=(look, Remedy("see which", command="nvidia-smi -q -d ECC,ROW_REMAPPER")),
        )  # fmt: skip
    reasons = gpu.get("reason_names")
    hot = [name for name in reasons if name in _HOT] if isinstance(reasons, list | tuple) else []
    if hot:
        temperature = _number(gpu.get("temp_c"))
        told = f" at {temperature:.0f} degrees C" if temperature is not None else ""
        yield Incident(
            id=incident_id(boot, key, "throttled"), kind="throttled", severity="warn",
            title=f"{name} is slowed down: {', '.join(map(plain, hot))}", first=t, last=t,
            explanation="Too hot, or short of power: figures measured meanwhile are too low.",
            evidence=(Evidence(f"the driver's reasons: {', '.join(map(plain, hot))}{told}"),), remedies=(look,),
        )  # fmt: skip


def _disks(host: Mapping[Any, Any], t: float, boot: str) -> Iterable[Incident]:
    disks = host.get("disks")
    places: dict[tuple[float, float], list[str]] = {}
    for path, disk in disks.items() if isinstance(disks, Mapping) else ():
        facts = disk if isinstance(disk, Mapping) else {}
        total, free = _number(facts.get("total")), _number(facts.get("free"))
        if total and free is not None and ((free < DISK_BYTES and free / total < 0.5) or free / total < DISK_SHARE):
            # One file system under several names is one incident.
            places.setdefault((total, free), []).append(plain(path))
    shm = host.get("shm")
    total, free = (_number(shm.get(name)) for name in ("total", "free")) if isinstance(shm, Mapping) else (None, None)
    if total and free is not None and free / total < MEMORY_SHARE:
        places.setdefault((total, free), []).append("/dev/shm")
    for (total, free), paths in places.items():
        place = min(paths, key=lambda path: (len(path), path))
        empty = free < min(total * 0.005, 256 << 20)
        yield Incident(
            id=incident_id(boot, "disk", place), kind="disk-pressure", severity="error" if empty else "warn",
            title=f"{place} is {'full' if empty else 'nearly full'}: {human_bytes(free)} free", first=t, last=t,
            explanation="A stage that writes there fails when it is full; what it has finished is kept.",
            evidence=(Evidence(f"{human_bytes(free)} free of {human_bytes(total)}"),),
            remedies=(
                Remedy("see what old runs and outputs would go", command="eagle3ops runs gc"),
                Remedy("see the machine", "gpus"),
            ),
        )  # fmt: skip


def _memory(host: Mapping[Any, Any], t: float, boot: str) -> Iterable[Incident]:
    memory, psi = host.get("memory"), host.get("psi")
    facts = memory if isinstance(memory, Mapping) else {}
    total, available = _number(facts.get("total")), _number(facts.get("available"))
    stall = None
    if isinstance(psi, Mapping) and isinstance(kinds := psi.get("memory"), Mapping):
        some = kinds.get("some")
        stall = _number(some.get("avg10")) if isinstance(some, Mapping) else None
    short = bool(total and available is not None and available / total < MEMORY_SHARE)
    if not short and (stall is None or stall < STALL_PERCENT):
        return
    told = [f"{human_bytes(available)} available of {human_bytes(total)}"] if total and available is not None else []
    told += [f"processes waited for memory in {stall:.0f} % of the last 10 s"] if stall is not None else []
    yield Incident(
        id=incident_id(boot, "memory"), kind="memory-pressure", severity="error" if short else "warn",
        title=f"memory is short: {told[0]}", first=t, last=t,
        explanation="When it is used up, the kernel kills the process that uses most.",
        evidence=tuple(map(Evidence, told)), remedies=(Remedy("see which process uses it", "gpus"),),
    )  # fmt: skip


def _number(value: object) -> float | None:
    sound = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
    return float(value) if sound else None  # type: ignore[arg-type]


def _text(value: object) -> str:
    return plain(value) if isinstance(value, str) else ""


def _mappings(value: object) -> list[Mapping[Any, Any]]:
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list | tuple) else []
