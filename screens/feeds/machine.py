"""What is known of a machine's GPUs and processes, and how old is it? Made from samples, without a terminal.

A sample is what `telemetry.sampler` describes. It comes from another machine, so anything may stand in it: a value of
the wrong kind is None, as one that is absent, and never 0.
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, overload

from eagle3ops.screens.feeds.values import mapping, number
from eagle3ops.screens.gpus.process_names import role_of
from eagle3ops.words import plain

HZ = 1.0
"""Samples a second that a console asks for: as many as it paints."""
STALE_S = 2.0
"""What was read so long before the rest looks stale."""
SILENT_S = 3.0
"""Without a sample for longer, all of it looks stale: two of them are missing."""
PER_CELL = 2
"""Samples in one cell of a history."""
CELL_S = PER_CELL / HZ
CELLS = 120
"""Cells of history kept."""

_NOT_THROTTLED = {"gpu idle", "application clocks", "sync boost", "display clocks"}
"""Reasons for the present clocks that nobody needs to look into."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRow:
    """One GPU. None is what it does not say."""

    index: int
    key: str
    """The same in every sample."""
    name: str
    state: str
    mig: bool
    throttled: tuple[str, ...]
    """Why its clocks are lower than they could be."""
    trouble: tuple[str, ...]
    """What else to look into: Xid events, memory errors, what the driver advises."""
    util: float | None
    mem_used: float | None
    mem_total: float | None
    power_w: float | None
    power_age: float
    """Seconds between the reading of the power and the sample."""
    sm_mhz: float | None
    mem_mhz: float | None
    temp_c: float | None
    pcie: tuple[float | None, float | None]
    """Sent and received, bytes/s."""
    pcie_age: float
    nvlink: tuple[float | None, float | None]

    @property
    def words(self) -> str:
        """The state for people."""
        if self.state != "ok":
            return ", ".join([self.state, *self.trouble])
        words = ["MIG"] if self.mig else []
        if self.throttled:
            words.append("throttled: " + ", ".join(self.throttled))
        return ", ".join([*words, *self.trouble]) or "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRow:
    """One process."""

    pid: int
    ppid: int | None
    start: float
    run: str
    """Empty for a process that belongs to no run."""
    role: str
    command: str
    state: str
    """The kernel's letter."""
    cpu: float | None
    """% of one core."""
    threads: float | None
    rss: float | None
    reads: float | None
    """Bytes/s, from disk."""
    writes: float | None
    wakeups: float | None
    wchan: str
    syscall: str
    age: float
    """Seconds between the reading of its state and CPU and the sample."""
    detail_age: float | None
    """The same for I/O, wake-ups and wchan; None when they were never read."""
    gpu_memory: float | None = None
    gpus: tuple[int, ...] = ()
    """Indices of the GPUs that it uses."""
    visible: bool = True
    """False: the driver names it, but it lives in another container."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The last sample, read."""

    t: float
    mono: float
    gpus: tuple[GpuRow, ...]
    absent: str
    """Why there are no GPUs."""
    remedy: str
    processes: Sequence[ProcessRow]
    left_out: int
    host: Mapping[str, Any]
    host_age: float
    late: bool
    gap_s: float | None


@dataclass(slots=True)
class History:
    """The means of a figure over `PER_CELL` samples each, oldest first."""

    _cells: "deque[float | None]" = field(default_factory=lambda: deque(maxlen=CELLS))
    _open: list[float | None] = field(default_factory=list)

    def add(self, value: float | None) -> None:
        """One more sample."""
        if len(self._open) == PER_CELL:
            self._cells.append(_mean(self._open))
            self._open = []
        self._open.append(value)

    def skip(self, cells: int) -> None:
        """Nothing was seen for so long."""
        if self._open:
            self._cells.append(_mean(self._open))
            self._open = []
        self._cells.extend([None] * min(cells, CELLS))

    def last(self, count: int) -> list[float | None]:
        """The newest cells, padded at the front with None to `count`."""
        cells = [*self._cells, *([_mean(self._open)] if self._open else [])][-count:] if count > 0 else []
        return [None] * (count - len(cells)) + cells

    def highest(self) -> float:
        """The highest mean that is kept, or 0."""
        return max((value for value in self.last(CELLS) if value is not None), default=0.0)


class Machine:
    """Takes samples and keeps the last one and a bounded history."""

    def __init__(self) -> None:
        self.snapshot: Snapshot | None = None
        self.version = 0
        """Grows with every sample."""
        self.failure: tuple[str, str] | None = None
        """Why no samples come, and what to do about it."""
        self._taken_at = 0.0
        self._boot: str | None = None
        self._util: dict[str, History] = {}
        self._power: dict[str, History] = {}

    def take(self, sample: object, now: float) -> bool:
        """Learn from one sample, received at `now` (monotonic, s). Returns False for what is no sample."""
        snapshot = read_sample(sample)
        if snapshot is None:
            return False
        boot = _text(sample.get("boot")) if isinstance(sample, Mapping) else ""
        before = self.snapshot
        if boot != self._boot or (before is not None and snapshot.mono < before.mono):
            self._util, self._power, before = {}, {}, None
        self._boot = boot
        missed = 0 if before is None else int((snapshot.mono - before.mono) / CELL_S)
        self._util = {gpu.key: self._util.get(gpu.key) or History() for gpu in snapshot.gpus}
        self._power = {gpu.key: self._power.get(gpu.key) or History() for gpu in snapshot.gpus}
        for gpu in snapshot.gpus:
            for history, value in ((self._util[gpu.key], gpu.util), (self._power[gpu.key], gpu.power_w)):
                if missed:
                    history.skip(missed)
                history.add(value)
        self.snapshot, self._taken_at, self.failure = snapshot, now, None
        self.version += 1
        return True

    def util(self, gpu: GpuRow, count: int) -> list[float | None]:
        """The newest cells of its utilisation, in %."""
        return self._util[gpu.key].last(count) if gpu.key in self._util else [None] * count

    def power(self, gpu: GpuRow, count: int) -> list[float | None]:
        """The newest cells of its power, in W."""
        return self._power[gpu.key].last(count) if gpu.key in self._power else [None] * count

    def power_top(self) -> float:
        """A scale for the power of all GPUs: the highest that was seen, rounded up to 100 W."""
        return 100.0 * math.ceil(max((one.highest() for one in self._power.values()), default=0.0) / 100)

    def age(self, now: float) -> float:
        """Seconds since the last sample came."""
        return max(0.0, now - self._taken_at)

    def stale(self, now: float, link: str) -> str:
        """Why the figures must look stale, in words; empty when they are fresh. `link` is the kind of its state."""
        if self.snapshot is None:
            return ""
        age, late = self.age(now), self.snapshot.late
        if link != "connected":
            return f"read {age:.0f} s ago, not connected"
        if age > SILENT_S:
            why = f": {self.failure[0]}" if self.failure else ""
            return f"read {age:.0f} s ago{why}"
        if late:
            gap = self.snapshot.gap_s
            return "read late" + (f", after {gap:.1f} s without a look" if gap is not None else "")
        return ""


def read_sample(sample: object) -> Snapshot | None:
    """A sample in the words of this module; None for what holds no time."""
    if not isinstance(sample, Mapping):
        return None
    t, mono = number(sample.get("t")), number(sample.get("mono"))
    if t is None or mono is None:
        return None
    gpus = sorted((gpu for one in _mappings(sample.get("gpu")) if (gpu := _gpu(one, t, mono))), key=lambda g: g.index)
    # Two of one key would share one history.
    by_key = {gpu.key: gpu for gpu in gpus}
    host = mapping(sample.get("host"))
    return Snapshot(
        t=t,
        mono=mono,
        gpus=tuple(by_key.values()),
        absent=_text(sample.get("gpu_absent")),
        remedy=_text(sample.get("gpu_remedy")),
        processes=_WhenAsked(sample, mono),
        left_out=_whole(sample.get("procs_left_out")) or 0,
        host=host,
        host_age=_since(number(host.get("mono")), mono),
        late=sample.get("late") is True,
        gap_s=number(sample.get("gap_s")),
    )


def _gpu(gpu: Mapping[Any, Any], t: float, mono: float) -> GpuRow | None:
    index = _whole(gpu.get("i"))
    if index is None:
        return None
    # The mean over the energy counter is the better figure, but with several GPUs it is seconds old.
    power, power_age = number(gpu.get("power_w")), 0.0
    if gpu.get("power_source") == "energy":
        power_age = _since(number(gpu.get("energy_mono")), mono)
        sampled = number(gpu.get("power_sample_w"))
        if power_age > STALE_S and sampled is not None:
            power, power_age = sampled, 0.0
    trouble = []
    xid = mapping(gpu.get("xid_last"))
    if (code := _whole(xid.get("xid"))) is not None:
        trouble.append(f"Xid {code}")
    if (errors := _whole(gpu.get("ecc_volatile"))) is not None and errors > 0:
        trouble.append(f"{errors} memory errors")
    advice = _text(gpu.get("recovery"))
    if advice not in ("", "none"):
        trouble.append(f"driver advises: {advice}")
    return GpuRow(
        index=index,
        key=_text(gpu.get("uuid")) or str(index),
        name=_text(gpu.get("name")),
        state=_text(gpu.get("state")) or "ok",
        mig=gpu.get("mig") is True,
        throttled=tuple(name for name in _texts(gpu.get("reason_names")) if name not in _NOT_THROTTLED),
        trouble=tuple(trouble),
        util=number(gpu.get("util")),
        mem_used=number(gpu.get("mem_used")),
        mem_total=number(gpu.get("mem_total")),
        power_w=power,
        power_age=power_age,
        sm_mhz=number(gpu.get("sm_mhz")),
        mem_mhz=number(gpu.get("mem_mhz")),
        temp_c=number(gpu.get("temp_c")),
        pcie=(_kib(gpu.get("pcie_tx_kbs")), _kib(gpu.get("pcie_rx_kbs"))),
        pcie_age=_since(number(gpu.get("pcie_t")), t),
        nvlink=(_kib(gpu.get("nvlink_tx_kbs")), _kib(gpu.get("nvlink_rx_kbs"))),
    )


class _WhenAsked(Sequence[ProcessRow]):
    """The processes of a sample, read when somebody looks at them: most samples pass while nobody does."""

    def __init__(self, sample: Mapping[Any, Any], mono: float) -> None:
        self._sample, self._mono = sample, mono
        self._rows: tuple[ProcessRow, ...] | None = None

    @property
    def rows(self) -> tuple[ProcessRow, ...]:
        """All of them."""
        if self._rows is None:
            self._rows, self._sample = tuple(_processes(self._sample, self._mono)), {}
        return self._rows

    @overload
    def __getitem__(self, at: int) -> ProcessRow: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[ProcessRow]: ...

    def __getitem__(self, at: int | slice) -> ProcessRow | Sequence[ProcessRow]:
        return self.rows[at]

    def __len__(self) -> int:
        return len(self.rows)


def _processes(sample: Mapping[Any, Any], mono: float) -> Iterator[ProcessRow]:
    memory: dict[int, float | None] = {}
    users: dict[int, list[int]] = {}
    hidden: dict[int, str] = {}
    for gpu in _mappings(sample.get("gpu")):
        for user in _mappings(gpu.get("procs")):
            pid, index = _whole(user.get("pid")), _whole(gpu.get("i"))
            if pid is None or index is None:
                continue
            used = number(user.get("mem"))
            memory[pid] = memory.get(pid) if used is None else used + (memory.get(pid) or 0.0)
            users.setdefault(pid, []).append(index)
            if user.get("visible") is not True:
                hidden[pid] = _text(user.get("name"))
    seen = set()
    for one in _mappings(sample.get("procs")):
        pid = _whole(one.get("pid"))
        if pid is None or pid in seen:
            continue
        seen.add(pid)
        ours = pid not in hidden
        yield _process(pid, one, mono, memory.get(pid) if ours else None, tuple(users.get(pid, ())) if ours else ())
    for pid, name in hidden.items():
        if pid not in seen:
            yield ProcessRow(
                pid=pid, ppid=None, start=0.0, run="", role=name or "not visible here", command="", state="",
                cpu=None, threads=None, rss=None, reads=None, writes=None, wakeups=None, wchan="", syscall="", age=0.0,
                detail_age=None, gpu_memory=memory.get(pid), gpus=tuple(users[pid]), visible=False,
            )  # fmt: skip


def _process(
    pid: int, one: Mapping[Any, Any], mono: float, gpu_memory: float | None, gpus: tuple[int, ...]
) -> ProcessRow:
    read_at = number(one.get("detail_mono"))
    run, role, command = _names(*(word if isinstance(word := one.get(key), str) else "" for key in _NAMES))
    return ProcessRow(
        pid=pid,
        ppid=_whole(one.get("ppid")),
        start=number(one.get("start")) or 0.0,
        run=run,
        role=role,
        command=command,
        state=_word(one.get("state"))[:1],
        cpu=number(one.get("cpu")),
        threads=number(one.get("threads")),
        rss=number(one.get("rss")),
        reads=number(one.get("read_bytes_s")),
        writes=number(one.get("write_bytes_s")),
        wakeups=number(one.get("wakeups_s")),
        wchan=_word(one.get("wchan")),
        syscall=_word(one.get("syscall")),
        age=_since(number(one.get("stat_mono")), mono),
        detail_age=None if read_at is None else max(0.0, mono - read_at),
        gpu_memory=gpu_memory,
        gpus=gpus,
    )


_NAMES = ("run", "label", "name", "cmd")


@lru_cache(maxsize=2048)
def _names(run: str, label: str, name: str, command: str) -> tuple[str, str, str]:
    """Run, role and command for people; a process keeps them, so they are worth keeping from sample to sample."""
    run, label, command = plain(run), plain(label), plain(command)
    return run, label if label not in ("", run) else role_of(plain(name), command) or "?", command


@lru_cache(maxsize=1024)
def _harmless(word: str) -> str:
    return plain(word)


def _word(value: object) -> str:
    """A text of which many processes have the same one."""
    return _harmless(value) if isinstance(value, str) else ""


def _whole(value: object) -> int | None:
    found = number(value)
    return None if found is None else int(found)


def _text(value: object) -> str:
    return plain(value) if isinstance(value, str) else ""


def _texts(value: object) -> list[str]:
    return [plain(one) for one in value if isinstance(one, str)] if isinstance(value, list | tuple) else []


def _mappings(value: object) -> Iterable[Mapping[Any, Any]]:
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list | tuple) else []


def _kib(value: object) -> float | None:
    found = number(value)
    return None if found is None else 1024 * found


def _since(read_at: float | None, now: float) -> float:
    return 0.0 if read_at is None else max(0.0, now - read_at)


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
