"""What was the machine doing at this moment? One sample, as a dictionary that JSON can hold.

A sample (schema 1). What is absent is None; counters only ever grow; rates are over the real time between readings.

    schema        1
    n             number of the sample, from 0
    t             wall clock, s          mono      monotonic clock, s      boot    the kernel's id of this boot
    suspended_s   how long the machine slept since the sample before
    interval_s    wanted time between samples
    gap_s         real time since the sample before; None for the first
    late          gap_s > 2 x interval_s: the watcher itself was blind, nothing may be concluded from this gap
    cost_ms       wall time that taking the sample took        cpu_ms   CPU time of this process since the one before
    gpu           list, one entry a GPU:
        i, uuid, name, mig, state ("ok", "lost", "reset required", "no answer")
        util, util_mem            % of time that a kernel ran / that memory was read or written
        mem_used, mem_total       bytes
        energy_mj                 counter, mJ, as it was at energy_mono (mono, s): one GPU a second is asked, in turn
        power_w                   W, the mean between the last readings of the counter, of 1 s or more
        power_source              "energy", or "sample" where power_w is power_sample_w for want of two readings
        power_sample_w            W, the driver's own mean over about the last second, at every look
        sm_mhz, mem_mhz, temp_c (degrees Celsius), pstate (0 is fastest)
        reasons, reason_names     why clocks are what they are: bits, words
        pcie_tx_kbs, pcie_rx_kbs  KiB/s, watched for some 20 ms at pcie_t (wall, s): one GPU a second, in turn
        nvlink_tx_kib, nvlink_rx_kib   counters over all links, KiB      nvlink_tx_kbs, nvlink_rx_kbs   KiB/s
        ecc_volatile, ecc_aggregate    uncorrected errors since the driver was loaded / ever
        xid_last                  {xid, t} of the last event since the sampler started
        recovery                  what the driver advises: "none", "reset the GPU", ...
        procs                     [{pid, mem (bytes), visible, name, user}]; visible false = a number of the host
    gpu_absent    the named reason why `gpu` is empty        gpu_remedy    what to do about it
    xids          [{gpu, xid, t}] events since the sample before
    procs         list, one entry a process:
        pid, start (s after boot), start_ticks, ppid, root (top of its tree), label, run (id), name, cmd, state
        utime, stime              s            cpu, cpu_user, cpu_system   % of one core
        threads, rss (bytes), majflt (counter)
        rchar, wchar, read_bytes, write_bytes  counters, bytes; None for another user's process; and with _s: bytes/s
        vcs, nvcs                 switches of the main thread: it slept, it was preempted
        wakeups_s, preempted_s, majflt_s       of those, per second
        wchan, syscall            kernel function it sleeps in, number of its system call ("running" = none)
        stat_mono                 when state, CPU, memory and threads were read (mono, s): the quiet every other time
        detail_mono               when I/O, switches, wchan and syscall were read (mono, s): not always in this sample
        task                      threads, when asked for (see `procfs.read_threads`)
    procs_left_out  processes beyond the limit
    host          see `host.HostReader.read`, read once a second (host.mono), and `rates`: cpu_percent,
                  iowait_percent, steal_percent of all processors, devices and network in bytes/s
"""

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from eagle3ops.telemetry.gpu_sampling import GpuSampler
from eagle3ops.telemetry.host import HostReader
from eagle3ops.telemetry.portable import PortableTrees
from eagle3ops.telemetry.processes import MAX_PROCESSES, ProcessTrees, available
from eagle3ops.telemetry.rates import Rates

SCHEMA = 1
HOST_EVERY_S = 0.9


class Sampler:
    """Takes samples of this machine. Not for use by several threads.

    Args:
        pids: roots of process trees, as numbers or (number, start ticks).
        paths: folders whose space matters.
        interval_s: time that the caller leaves between samples; decides what is late.
        marked: also the processes of runs, found by the mark in their environment.
        gpu_processes: also the processes on the GPUs.
        labels: names for roots, by process id.
        max_processes: so many are looked at.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        pids: Iterable[int | tuple[int, int]] = (),
        paths: Iterable[str | Path] = (),
        *,
        interval_s: float = 0.5,
        marked: bool = True,
        gpu_processes: bool = True,
        labels: Mapping[int, str] | None = None,
        max_processes: int = MAX_PROCESSES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.interval_s = interval_s
        self.gpus = GpuSampler(clock)
        self.host = HostReader(str(path) for path in paths)
        self.trees: ProcessTrees | PortableTrees
        if available():
            self.trees = ProcessTrees(pids, marked=marked, labels=labels, limit=max_processes, clock=clock)
        else:
            self.trees = PortableTrees(pids, labels=labels)
        self._gpu_processes = gpu_processes
        self._clock = clock
        self._rates = Rates()
        self._boot = boot_id()
        self._n = 0
        self._mono: float | None = None
        self._asleep: float | None = None
        self._cpu = time.process_time()
        self._host: dict[str, Any] | None = None

    def sample(self, *, threads: bool = False, wait_s: float = 0.0) -> dict[str, Any]:
        """Take one sample.

        Args:
            threads: also the busiest threads of each process: costly, not more than once a second.
            wait_s: wait so long for answers about disk space that are due.
        """
        mono, wall = self._clock(), time.time()
        gap = None if self._mono is None else mono - self._mono
        gpus = self.gpus.read()
        if self._host is None or mono - self._host["mono"] >= HOST_EVERY_S:
            self._host = self.host.read(wait_s=wait_s)
        more = self.gpus.visible_pids() if self._gpu_processes else ()
        session = self.gpus.session
        sample: dict[str, Any] = {
            "schema": SCHEMA,
            "n": self._n,
            "t": round(wall, 3),
            "mono": round(mono, 4),
            "boot": self._boot,
            "suspended_s": self._suspended(),
            "interval_s": self.interval_s,
            "gap_s": None if gap is None else round(gap, 4),
            "late": gap is not None and gap > 2 * self.interval_s,
            "gpu": gpus,
            "gpu_absent": session.absent and session.absent.value,
            "gpu_remedy": session.absent and session.absent.remedy,
            "xids": self.gpus.xids,
            "procs": self.trees.read(more=more, threads=threads),
            "procs_left_out": self.trees.left_out,
            "host": dict(self._host),
        }
        self._rates.fill(sample)
        self._n += 1
        self._mono = mono
        cpu = time.process_time()
        sample["cost_ms"] = round(1000 * (self._clock() - mono), 2)
        sample["cpu_ms"], self._cpu = round(1000 * (cpu - self._cpu), 2), cpu
        return sample

    def close(self) -> None:
        """End the session with the driver and give descriptors back."""
        self.gpus.close()
        self.host.close()
        self.trees.close()

    def __enter__(self) -> "Sampler":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _suspended(self) -> float:
        """The boot clock goes on while the machine sleeps, the monotonic one does not."""
        if not hasattr(time, "CLOCK_BOOTTIME"):
            return 0.0
        asleep = time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)
        since, self._asleep = 0.0 if self._asleep is None else asleep - self._asleep, asleep
        return round(max(0.0, since), 2)


def boot_id() -> str | None:
    """The kernel's id of this boot."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return None
