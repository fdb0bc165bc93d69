"""The state model on a machine made of numbers: every state, what convicts, and what must not."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eagle3ops.watchdog.judge.deadlines import Deadlines
from eagle3ops.watchdog.judge.states import STATES
from eagle3ops.watchdog.judge.watch import Expect, Watch
from eagle3ops.watchdog.state import Probe, Reading, Standing

MB = 1e6


@dataclass
class Process:
    """Counters of one process, and how fast they move."""

    pid: int
    ppid: int = 0
    name: str = "python3"
    state: str = "S"
    wchan: str = "do_epoll_wait"
    cpu: float = 0.0
    """Cores."""
    wakeups: float = 0.0
    read: float = 0.0
    """Bytes a second."""
    cmd: str = ""
    start: float = 10.0
    totals: dict[str, float] = field(default_factory=lambda: {"cpu": 3.0, "vcs": 100.0, "read": 1e8})

    def look(self, seconds: float) -> dict[str, Any]:
        self.totals["cpu"] += self.cpu * seconds
        self.totals["vcs"] += self.wakeups * seconds
        self.totals["read"] += self.read * seconds
        return {
            "pid": self.pid,
            "ppid": self.ppid,
            "start": self.start,
            "name": self.name,
            "cmd": self.cmd,
            "state": self.state,
            "utime": self.totals["cpu"],
            "stime": 0.0,
            "vcs": self.totals["vcs"],
            "rchar": self.totals["read"],
            "read_bytes": 0,
            "wchar": 1000,
            "majflt": 0,
            "wchan": self.wchan,
            "syscall": "232",
        }


class Machine:
    """A machine with one subject, seen once a second."""

    def __init__(self, *processes: Process, expect: Expect = "server", at: float = 1000.0, **more: Any) -> None:
        self.processes = list(processes)
        self.watch = Watch("server", expect=expect, **more)
        self.at = at
        self.gpus: list[dict[str, Any]] = []
        self.host: dict[str, Any] = {}
        self.extra: dict[str, Any] = {}
        self.readings: list[Reading] = []
        self.n = 0

    def sample(self, seconds: float = 1.0) -> dict[str, Any]:
        self.at += seconds
        self.n += 1
        return {
            "schema": 1,
            "n": self.n,
            "t": 1.8e9 + self.at,
            "mono": self.at,
            "boot": "b",
            "suspended_s": 0.0,
            "interval_s": 1.0,
            "gap_s": seconds,
            "late": False,
            "gpu": copy.deepcopy(self.gpus),
            "xids": [],
            "procs": [process.look(seconds) for process in self.processes],
            "host": self.host,
            **self.extra,
        }

    def run(self, seconds: float, each: Callable[[float], None] | None = None) -> Reading:
        """Look and judge once a second; `each` is called before every look."""
        for _ in range(int(seconds)):
            if each is not None:
                each(self.at)
            self.watch.sample(self.sample(), frozenset(process.pid for process in self.processes))
            self.readings.append(self.watch.judge(self.at))
        return self.readings[-1]

    def say(self, text: str) -> None:
        self.watch.line("engine.log", text, self.at)

    def answer(self, ok: bool | None, seconds: float = 0.1, name: str = "generate", **facts: float) -> None:
        self.watch.probe(Probe(name, self.at - seconds, ok, seconds, "words of the probe", facts))

    @property
    def standings(self) -> set[Standing]:
        return {one.standing for one in self.readings}


def gpu(index: int = 0, util: float = 0.0, power: float = 120.0, **more: Any) -> dict[str, Any]:
    found = {"i": index, "name": "H200", "state": "ok", "util": util, "util_mem": 0, "power_w": power}
    return {**found, "mem_used": 50e9, "pcie_rx_kbs": 0, "reason_names": [], "procs": None, **more}


def told(reading: Reading) -> tuple[str, Standing]:
    return reading.state, reading.standing


LOADING = "[2026-11-30 02:46:14] Load weight begin. avail mem=139.13 GB"
LOADED = "[2026-11-30 02:46:14] Load weight end. elapsed=0.29 s, type=LlamaForCausalLM"
READY = "[2026-11-30 02:46:30] The server is fired up and ready to roll!"
JIT = "Using /root/.cache/torch_extensions as PyTorch extensions root..."
STOPPED: dict[str, Any] = {"state": "T", "wchan": "do_signal_stop"}
FUTEX: dict[str, Any] = {"wchan": "futex_do_wait"}


# ---------------------------------------------------------------- 30 minutes of each without an alarm


def test_the_question_of_the_watchdog_is_no_work() -> None:
    machine = Machine(Process(1, cpu=1.0))
    machine.say(READY)
    machine.run(30)
    for _ in range(4):
        machine.say("[2026-11-30 02:47:00] Prefill batch, #new-seq: 1, #new-token: 1, #cached-token: 0")
        machine.answer(True, 0.5)
        assert told(machine.run(1)) == ("idle", Standing.HEALTHY)
        machine.run(9)
    assert {one.state for one in machine.readings[-40:]} == {"idle"}


def test_half_an_hour_of_idling_is_no_fault() -> None:
    machine = Machine(Process(1), Process(2, 1, wchan="poll_schedule_timeout.constprop.0", wakeups=0.1))
    machine.say(READY)
    machine.run(1800, lambda at: machine.answer(True) if int(at) % 30 == 0 else None)
    assert machine.standings == {Standing.HEALTHY}
    assert {one.state for one in machine.readings[1:]} == {"idle"}
    quiet = Machine(Process(1), expect="any")
    quiet.run(1800)
    assert quiet.standings == {Standing.HEALTHY}


def test_half_an_hour_of_loading_is_no_fault_while_bytes_come() -> None:
    machine = Machine(Process(1, wchan="folio_wait_bit_common", state="D", cpu=0.05, read=60 * MB))
    machine.say(LOADING)
    machine.run(1800)
    assert machine.standings == {Standing.HEALTHY}
    assert {one.state for one in machine.readings} == {"loading"}


def test_a_load_that_shows_in_gpu_memory_only_is_no_fault() -> None:
    machine = Machine(Process(1, cpu=0.005))
    machine.gpus = [gpu(mem_used=0.0)]
    machine.say(LOADING)

    def grow(at: float) -> None:
        machine.gpus[0]["mem_used"] += 80 * MB

    machine.run(1200, grow)
    assert machine.standings == {Standing.HEALTHY}


def test_half_an_hour_of_compiling_is_no_fault_and_an_hour_is() -> None:
    machine = Machine(Process(1, wchan="do_wait"), Process(2, 1, "cicc", "R", "0", cpu=1.0))
    machine.say(JIT)
    machine.run(1800)
    assert machine.standings == {Standing.HEALTHY}
    assert {one.state for one in machine.readings} == {"compiling"}
    assert told(machine.run(1200)) == ("overdue", Standing.CONVICTED)


def test_bursts_and_long_steps_are_no_fault() -> None:
    trainer = Process(1, cpu=1.0, state="R", wchan="0")
    machine = Machine(trainer, expect="work")
    machine.gpus = [gpu()]

    def burst(at: float) -> None:
        on = int(at) % 30 < 4
        machine.gpus[0].update(util=90.0 if on else 0.0, power_w=400.0 if on else 125.0)
        trainer.cpu = 1.0 if on else 0.0
        if int(at) % 60 == 0:
            machine.say(f"step {int(at)}/9000 loss 3.1")

    machine.run(1800, burst)
    assert machine.standings == {Standing.HEALTHY}
    assert {one.state for one in machine.readings[90:]} == {"working"}


def test_a_scheduler_that_polls_for_half_an_hour_is_no_fault() -> None:
    machine = Machine(Process(1, wakeups=10.0), Process(2, 1, "sglang::scheduler", "R", "0", cpu=1.01))
    machine.gpus = [gpu(power=122.0)]
    machine.say(READY)
    machine.run(1800, lambda at: machine.answer(True, 1.0, running=0.0, queued=0.0) if int(at) % 30 == 0 else None)
    assert machine.standings == {Standing.HEALTHY}
    assert machine.readings[-1].state == "idle"


# ---------------------------------------------------------------- faults


def test_loaded_and_then_dead_is_accused_and_convicted_by_its_deadline() -> None:
    machine = Machine(Process(1), Process(2, 1, **FUTEX), Process(3, 1, **FUTEX))
    machine.gpus = [gpu(procs=[{"pid": 2, "mem": 9, "visible": True}])]
    machine.say(LOADED)
    assert told(machine.run(150)) == ("loading", Standing.HEALTHY)
    reading = machine.run(45)
    assert told(reading) == ("deadlock", Standing.CONVICTED)
    assert reading.phase == "allocating"
    assert reading.suspects == (2, 3)
    assert {"cpu", "wakeups", "gpu_util", "log_silent"} <= {signal.name for signal in reading.signals}
    assert "nothing moves in allocating" in reading.title


def test_a_loop_in_a_start_is_called_spinning() -> None:
    machine = Machine(Process(1, state="R", wchan="0", cpu=1.0))
    machine.say(LOADED)
    assert told(machine.run(175)) == ("loading", Standing.HEALTHY)
    assert told(machine.run(20)) == ("spin", Standing.CONVICTED)


def test_a_stale_lock_is_accused_by_its_pulse_and_convicted_by_who_finds_the_lock() -> None:
    machine = Machine(Process(1), Process(2, 1, wchan="hrtimer_nanosleep", wakeups=10.0, cpu=0.002))
    machine.say(JIT)
    assert told(machine.run(80)) == ("stale_lock", Standing.ACCUSED)
    assert machine.readings[-1].suspects == (2,)
    machine.watch.fact("file_lock", "/root/.cache/lock is 40 min old and nobody holds it", machine.at)
    assert told(machine.run(1)) == ("stale_lock", Standing.CONVICTED)
    assert "40 min" in machine.readings[-1].signals[0].words


def test_without_a_finder_the_deadline_convicts_a_stale_lock() -> None:
    machine = Machine(Process(1, wchan="hrtimer_nanosleep", wakeups=10.0, cpu=0.002))
    machine.say(JIT)
    assert told(machine.run(195)) == ("stale_lock", Standing.CONVICTED)


def test_a_launcher_that_looks_after_its_ranks_waits_for_no_lock() -> None:
    launcher = Process(1, wchan="hrtimer_nanosleep", wakeups=10.0, cpu=0.003)
    machine = Machine(launcher, Process(2, 1, state="R", wchan="0", cpu=0.01), expect="work")
    machine.run(100)
    assert "stale_lock" not in {one.state for one in machine.readings}


@pytest.mark.parametrize(
    ("change", "state", "seconds"),
    [
        (STOPPED, "stopped", 14),
        ({"state": "S", "wchan": "anon_pipe_write"}, "blocked_pipe", 40),
        ({"state": "Z", "wchan": "0"}, "half_dead", 36),
    ],
)
def test_what_needs_no_interpretation_convicts_by_itself(change: dict[str, str], state: str, seconds: int) -> None:
    worker = Process(2, 1, "sglang::scheduler", "R", "0", cpu=1.0)
    machine = Machine(Process(1, wakeups=10.0), worker)
    machine.say(READY)
    machine.run(10)
    for name, value in {**change, "cpu": 0.0}.items():
        setattr(worker, name, value)
    reading = machine.run(seconds)
    assert told(reading) == (state, Standing.CONVICTED)
    assert reading.suspects == (2,)
    for name, value in {"state": "R", "wchan": "0", "cpu": 1.0}.items():
        setattr(worker, name, value)
    assert machine.run(1).standing is Standing.HEALTHY


def test_helpers_and_debuggers_are_no_evidence() -> None:
    worker = Process(2, 1, "sglang::scheduler", "R", "0", cpu=1.0)
    machine = Machine(Process(1), worker, Process(3, 1, "nvidia-smi", "Z", "0"), Process(4, 1, "ptxas", "Z", "0"))
    machine.say(READY)
    machine.run(20)
    worker.state, worker.cpu = "t", 0.0
    machine.run(30)
    assert machine.standings == {Standing.HEALTHY}


def test_taking_the_evidence_changes_nothing() -> None:
    worker = Process(2, 1, "sglang::scheduler", "S", "anon_pipe_write")
    machine = Machine(Process(1, wakeups=10.0), worker)
    machine.say(READY)
    assert told(machine.run(40)) == ("blocked_pipe", Standing.CONVICTED)
    worker.state, worker.wchan, worker.wakeups = "t", "ptrace_stop", 3.0
    machine.run(3)
    worker.state, worker.wchan, worker.wakeups = "S", "anon_pipe_write", 0.0
    machine.run(20)
    assert {told(one) for one in machine.readings[35:]} == {("blocked_pipe", Standing.CONVICTED)}


def test_a_stopped_process_beside_answers_is_accused_only() -> None:
    replica = Process(2, 1, "sglang::schedul", "T", "do_signal_stop")
    machine = Machine(Process(1, wakeups=10.0), replica)
    machine.say(READY)
    machine.run(5)
    machine.run(120, lambda at: machine.answer(True))
    assert told(machine.readings[-1]) == ("stopped", Standing.ACCUSED)
    assert machine.readings[-1].suspects == (2,)


def test_batches_in_the_log_of_one_process_acquit_no_other() -> None:
    worker = Process(2, 1, "sglang::detoken")
    machine = Machine(Process(1, wakeups=10.0), worker, Process(3, 1, "sglang::schedul", "R", "0", cpu=1.0))
    machine.say(READY)
    machine.run(10)
    worker.state = "T"
    batch = "[2026-11-30 02:46:37] Decode batch, #running-req: 1, #token: 72"
    assert told(machine.run(8, lambda at: machine.say(batch))) == ("stopped", Standing.ACCUSED)
    machine.answer(False, 20.0)
    assert told(machine.run(1)) == ("stopped", Standing.CONVICTED)
    assert told(machine.run(30, lambda at: machine.say(batch))) == ("stopped", Standing.CONVICTED)


def test_a_threshold_at_which_it_wavers_makes_no_second_incident() -> None:
    polls = Process(1, wakeups=2.0)
    machine = Machine(polls)
    machine.say(LOADED)

    def waver(at: float) -> None:
        polls.cpu = 0.01 if int(at) % 40 < 20 else 0.03

    machine.run(400, waver)
    convicted = [one for one in machine.readings if one.standing is Standing.CONVICTED]
    assert len(convicted) > 200
    assert len({(one.state, one.since) for one in convicted}) == 1


def test_ranks_that_crash_and_start_again_are_not_still() -> None:
    machine = Machine(Process(1), Process(2, 1))
    machine.say("[2026-11-30 02:46:10] Init torch distributed begin.")

    def replace(at: float) -> None:
        if int(at) % 5 == 0:
            machine.processes[1] = Process(int(at), 1, cpu=0.01)

    assert told(machine.run(200, replace)) == ("overdue", Standing.CONVICTED)


def test_a_dead_child_of_work_that_goes_on_is_no_fault() -> None:
    machine = Machine(Process(1), Process(2, 1, cpu=0.5), expect="work")
    machine.run(5)
    machine.processes[1].state, machine.processes[1].cpu = "Z", 0.0
    machine.run(300, lambda at: machine.say(f"step {int(at)}") if int(at) % 10 == 0 else None)
    assert machine.standings == {Standing.HEALTHY}


def test_a_disk_that_does_not_answer() -> None:
    machine = Machine(Process(1, state="D", wchan="rpc_wait_bit_killable"))
    machine.say(LOADING)
    assert told(machine.run(45)) == ("disk_wait", Standing.ACCUSED)
    assert told(machine.run(150)) == ("disk_wait", Standing.CONVICTED)


def test_a_slow_load_is_said_and_never_convicted() -> None:
    machine = Machine(Process(1, read=4 * MB, cpu=0.02))
    machine.say(LOADING)
    assert told(machine.run(1200)) == ("slow_load", Standing.ACCUSED)
    assert Standing.CONVICTED not in machine.standings


def test_a_load_of_known_size_has_a_ceiling() -> None:
    machine = Machine(Process(1, read=60 * MB, cpu=0.05), size_bytes=1e9)
    machine.say(LOADING)
    machine.run(590)
    assert machine.standings == {Standing.HEALTHY}
    assert told(machine.run(20)) == ("overdue", Standing.CONVICTED)


def test_a_slow_import_is_given_time_while_it_reads() -> None:
    machine = Machine(Process(1, state="R", wchan="0", cpu=0.5, read=1 * MB))
    machine.say("server_args={'model_path': 'x'}")
    machine.run(175)
    assert machine.standings == {Standing.HEALTHY}
    assert told(machine.run(180)) == ("overdue", Standing.ACCUSED)
    assert told(machine.run(250)) == ("overdue", Standing.CONVICTED)


def test_gpus_that_spin_while_one_idles_accuse_its_rank() -> None:
    ranks = [Process(10 + i, 1, state="R", wchan="0", cpu=1.0) for i in range(4)]
    machine = Machine(Process(1), *ranks, expect="work")
    machine.gpus = [gpu(i, procs=[{"pid": 10 + i, "mem": 1, "visible": True}]) for i in range(4)]
    machine.run(30)
    for i in range(3):
        machine.gpus[i].update(util=100.0, power_w=126.0)
    ranks[3].cpu, ranks[3].state, ranks[3].wchan = 0.0, "S", "hrtimer_nanosleep"
    reading = machine.run(60)
    assert told(reading) == ("spin", Standing.ACCUSED)
    assert reading.suspects == (13,)
    ranks[3].cpu = 0.9
    reading = machine.run(60)
    assert told(reading) == ("straggler", Standing.HEALTHY)
    assert reading.suspects == (13,)


def test_real_work_is_no_spin_whatever_the_utilisation() -> None:
    machine = Machine(Process(1, state="R", wchan="0", cpu=1.0), expect="work")
    machine.gpus = [gpu(0), gpu(1)]
    machine.run(30)
    machine.gpus = [gpu(0, 100.0, 141.0), gpu(1, 0.0, 121.0)]
    machine.run(120)
    assert machine.standings == {Standing.HEALTHY}


def test_gpu_errors() -> None:
    machine = Machine(Process(1, cpu=0.5))
    machine.gpus = [gpu()]
    machine.run(10)
    machine.extra = {"xids": [{"gpu": 0, "xid": 79, "t": 1.0}]}
    assert told(machine.run(1)) == ("xid", Standing.CONVICTED)
    lost = Machine(Process(1, cpu=0.5))
    lost.gpus = [gpu()]
    lost.run(10)
    lost.gpus[0]["state"] = "lost"
    assert told(lost.run(20)) == ("gpu_lost", Standing.CONVICTED)
    torn_down = Machine(Process(1, cpu=0.5))
    torn_down.gpus = [gpu()]
    torn_down.run(10)
    torn_down.extra = {"xids": [{"gpu": 0, "xid": 45, "t": 1.0}]}
    torn_down.run(1)
    torn_down.extra = {}
    assert told(torn_down.run(1)) == ("xid", Standing.ACCUSED)
    assert torn_down.run(90).standing is Standing.HEALTHY


def test_memory_and_space() -> None:
    machine = Machine(Process(1, cpu=0.1), Process(2, 1, cpu=0.5))
    machine.host = {"cgroup": {"oom_kills": 3}}
    machine.run(10)
    del machine.processes[1]
    machine.host = {"cgroup": {"oom_kills": 4}}
    assert told(machine.run(1)) == ("host_oom", Standing.CONVICTED)
    full = Machine(Process(1, cpu=0.1))
    full.host = {"shm": {"total": 64 << 20, "free": 0}}
    assert told(full.run(15)) == ("shm_full", Standing.ACCUSED)
    full.host = {"disks": {"/data": {"total": 1 << 40, "free": 4096, "inodes": 10, "inodes_free": 5}}}
    assert told(full.run(15)) == ("disk_full", Standing.ACCUSED)


def test_a_throttled_gpu_is_told_and_accuses_nobody() -> None:
    machine = Machine(Process(1, cpu=1.0), expect="work")
    machine.gpus = [gpu(0, 99.0, 650.0, reason_names=["hardware thermal slowdown"])]
    assert told(machine.run(80)) == ("throttled", Standing.HEALTHY)


def test_what_the_log_says_outright() -> None:
    machine = Machine(Process(1, cpu=0.1))
    machine.say(READY)
    machine.run(10)
    machine.say("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB")
    assert told(machine.run(2)) == ("gpu_oom", Standing.ACCUSED)
    machine.run(10)
    machine.say("[2026-11-30 02:46:37] Decode batch, #running-req: 1, #token: 72")
    assert machine.run(1).standing is Standing.HEALTHY


# ---------------------------------------------------------------- probes


def test_three_misses_convict_and_an_answer_acquits() -> None:
    machine = Machine(Process(1, cpu=0.5))
    machine.say(READY)
    machine.run(10)
    machine.answer(False, 20.0)
    assert told(machine.run(1)) == ("unresponsive", Standing.ACCUSED)
    machine.answer(False, 20.0)
    assert machine.run(1).standing is Standing.ACCUSED
    machine.answer(False, 20.0)
    assert told(machine.run(1)) == ("unresponsive", Standing.CONVICTED)
    machine.answer(True)
    assert machine.run(1).standing is Standing.HEALTHY


def test_two_misses_are_enough_where_nothing_moves() -> None:
    machine = Machine(Process(1), Process(2, 1, **FUTEX))
    machine.say(READY)
    machine.run(30)
    machine.answer(False, 20.0)
    assert machine.run(30).standing is Standing.ACCUSED
    machine.answer(False, 20.0)
    assert told(machine.run(1)) == ("deadlock", Standing.CONVICTED)


def test_one_miss_is_enough_beside_a_stopped_process() -> None:
    machine = Machine(Process(1), Process(2, 1))
    machine.say(READY)
    machine.run(20)
    machine.processes[1].state = "T"
    machine.run(6)
    machine.answer(False, 20.0)
    assert told(machine.run(1)) == ("stopped", Standing.CONVICTED)


def test_a_request_that_waits_behind_others_is_no_failure() -> None:
    machine = Machine(Process(1, cpu=1.0))
    machine.say(READY)

    def ask(at: float) -> None:
        if int(at) % 10 == 0:
            machine.answer(True, 0.1, "counters", running=64.0, queued=900.0, forward_passes=10 * at)
        if int(at) % 60 == 0:
            machine.answer(False, 20.0)

    machine.run(600, ask)
    assert Standing.CONVICTED not in machine.standings
    assert machine.readings[-1].state in ("serving", "unresponsive")


def test_an_engine_that_works_for_nobody_is_convicted_in_the_end() -> None:
    machine = Machine(Process(1, cpu=1.0))
    machine.say(READY)

    def ask(at: float) -> None:
        if int(at) % 10 == 0:
            machine.answer(True, 0.1, "counters", running=4.0, queued=0.0, forward_passes=10 * at)
        if int(at) % 60 == 0:
            machine.answer(False, 20.0)

    assert machine.run(800, ask).standing is Standing.ACCUSED
    assert told(machine.run(300, ask)) == ("unresponsive", Standing.CONVICTED)


def test_a_start_that_speaks_is_given_time() -> None:
    machine = Machine(Process(1, state="R", wchan="0", cpu=1.0))
    machine.say(LOADED)
    machine.run(400, lambda at: machine.say("warming kernels 12%") if int(at) % 5 == 0 else None)
    assert Standing.CONVICTED not in machine.standings
    assert machine.readings[-1].standing is Standing.ACCUSED


def test_a_server_that_is_not_up_yet_owes_no_answer() -> None:
    machine = Machine(Process(1, cpu=0.5, read=60 * MB))
    machine.say(LOADING)
    machine.run(100, lambda at: machine.answer(False, 0.01, "health"))
    assert machine.standings == {Standing.HEALTHY}


# ---------------------------------------------------------------- the watcher itself


@pytest.mark.parametrize(
    ("seconds", "extra"),
    [(40.0, {}), (1.0, {"suspended_s": 3600.0}), (3.0, {"late": True}), (1.0, {"cost_ms": 9000.0})],
)
def test_who_was_blind_says_so_and_holds_the_clocks(seconds: float, extra: dict[str, Any]) -> None:
    machine = Machine(Process(1, **FUTEX))
    machine.say(LOADED)
    machine.run(150)
    before = machine.readings[-1].deadline
    assert before is not None
    machine.watch.sample({**machine.sample(seconds), **extra}, frozenset({1}))
    reading = machine.watch.judge(machine.at)
    assert told(reading) == ("unknown", Standing.UNKNOWN)
    assert machine.run(4).standing is Standing.UNKNOWN
    after = machine.run(3)
    assert after.standing is Standing.HEALTHY
    assert after.deadline is not None
    assert after.deadline == pytest.approx(before + seconds, abs=1.1)
    assert told(machine.run(60)) == ("deadlock", Standing.CONVICTED)


def test_who_listens_to_every_second_sample_is_not_blind() -> None:
    # As a run's guard hears the sampler of its host: taken every 0.5 s, given every second, give or take.
    machine = Machine(Process(1, **STOPPED))
    machine.extra = {"interval_s": 0.5, "gap_s": 0.5}
    for _ in range(20):
        machine.watch.sample(machine.sample(1.004), frozenset({1}))
        machine.readings.append(machine.watch.judge(machine.at))
    assert Standing.UNKNOWN not in machine.standings
    assert told(machine.readings[-1]) == ("stopped", Standing.CONVICTED)
    machine.watch.sample(machine.sample(3.0), frozenset({1}))
    assert machine.watch.judge(machine.at).standing is Standing.UNKNOWN


def test_one_look_that_is_missed_hides_nothing() -> None:
    machine = Machine(Process(1, **STOPPED))
    for number in range(20):
        machine.watch.sample(machine.sample(2.2 if number % 7 == 6 else 1.0), frozenset({1}))
        machine.readings.append(machine.watch.judge(machine.at))
    assert Standing.UNKNOWN not in machine.standings
    assert told(machine.readings[-1]) == ("stopped", Standing.CONVICTED)


def test_a_gpu_that_spins_still_does_after_a_short_gap() -> None:
    machine = Machine(Process(1, cpu=1.0), Process(2), expect="work")
    machine.gpus = [gpu(0, 100.0, 124.0), gpu(1, 0.0, 122.0)]
    assert told(machine.run(60)) == ("spin", Standing.ACCUSED)
    machine.watch.sample(machine.sample(3.5), frozenset({1, 2}))
    assert machine.watch.judge(machine.at).standing is Standing.UNKNOWN
    after = [machine.run(1) for _ in range(15)]
    assert {told(one) for one in after[6:]} == {("spin", Standing.ACCUSED)}
    assert Standing.HEALTHY not in {one.standing for one in after}


# ---------------------------------------------------------------- a stage goes on to something else


def test_what_a_stage_does_after_its_server_is_not_the_end_of_that_server() -> None:
    machine = Machine(Process(1, cpu=1.0), expect="any")
    machine.say("INFO:     Shutting down")
    machine.watch.turned("ended", "engine.log", machine.at)
    machine.say("INFO:     Finished server process [7], SIGTERM received")  # read late
    machine.run(600)
    machine.processes[0].cpu = 0.0
    machine.run(600)
    assert machine.standings == {Standing.HEALTHY}
    # The next one of that name has a phase of its own.
    machine.watch.turned("began", "engine.log", machine.at)
    machine.say(LOADED)
    assert told(machine.run(200)) == ("deadlock", Standing.CONVICTED)


def test_the_answers_of_a_server_that_was_ended_count_no_more() -> None:
    machine = Machine(Process(1), expect="any")
    machine.answer(True)
    machine.run(10)
    machine.answer(False)
    machine.answer(False)
    machine.watch.turned("ended", "engine.log", machine.at)
    assert told(machine.run(30)) == ("idle", Standing.HEALTHY)
    # Another one that was started meanwhile is not meant.
    machine.watch.serves(machine.at)
    machine.watch.turned("ended", "engine.log", machine.at - 0.5)
    assert told(machine.run(130)) == ("deadlock", Standing.CONVICTED)


@pytest.mark.parametrize(("kind", "log"), [("done", ""), ("began", "turn-conclude.log")])
def test_what_follows_the_last_step_has_no_limit_of_a_step(kind: str, log: str) -> None:
    machine = Machine(Process(1, cpu=1.0), expect="any")
    machine.watch.progress("train: progress", machine.at)
    machine.run(5)
    machine.watch.turned(kind, log, machine.at)
    machine.run(900)
    assert machine.standings == {Standing.HEALTHY}
    machine.watch.progress("train: progress", machine.at)
    machine.processes[0].cpu = 0.0
    assert told(machine.run(130)) == ("deadlock", Standing.CONVICTED)


def test_a_scheduler_that_polls_does_not_spin() -> None:
    machine = Machine(Process(1, cpu=1.0))
    machine.say("[2026-11-30 02:46:20] Start of co-locate warmup")
    machine.watch.enter("warming_up", machine.at)
    assert told(machine.run(700)) == ("overdue", Standing.CONVICTED)


def test_no_samples_is_not_health() -> None:
    watch = Watch("server", expect="server")
    assert watch.judge(5.0).standing is Standing.UNKNOWN
    machine = Machine(Process(1, **STOPPED))
    machine.run(20)
    assert machine.watch.judge(machine.at + 30).standing is Standing.UNKNOWN
    # The watcher sees others, but not those that it should see.
    machine.watch.sample(machine.sample(), frozenset({99}))
    assert machine.watch.judge(machine.at).standing is Standing.UNKNOWN


def test_ended() -> None:
    machine = Machine(Process(1), Process(2, 1))
    machine.run(10)
    machine.processes.clear()
    assert told(machine.run(1)) == ("ended", Standing.HEALTHY)


def test_limits_that_pass_well_are_learnt() -> None:
    deadlines = Deadlines(job="sglang")
    machine = Machine(Process(1, cpu=0.5, read=MB), deadlines=deadlines)
    machine.say("server_args={'model_path': 'x'}")
    machine.run(100)
    machine.say("[2026-11-30 02:46:10] Init torch distributed begin.")
    machine.run(5)
    assert deadlines.of("importing").seconds == pytest.approx(500, abs=10)
    # What was convicted teaches nothing.
    machine.run(400)
    machine.say(LOADING)
    assert deadlines.of("connecting").source == "default"


def test_drills_may_shorten_all_limits() -> None:
    machine = Machine(Process(1, **FUTEX), deadlines=Deadlines(scale=0.1))
    machine.say(LOADED)
    assert told(machine.run(25)) == ("deadlock", Standing.CONVICTED)


def test_unasked_quiet_of_work_is_a_fault_after_five_minutes() -> None:
    machine = Machine(Process(1, **FUTEX), expect="work")
    assert told(machine.run(290)) == ("deadlock", Standing.ACCUSED)
    assert told(machine.run(20)) == ("deadlock", Standing.CONVICTED)


def test_who_gives_a_limit_for_silent_work_gets_it_named() -> None:
    quiet = Machine(Process(1, **FUTEX), expect="any", deadlines=Deadlines({"working": 40.0}))
    assert told(quiet.run(35)) == ("idle", Standing.HEALTHY)
    assert told(quiet.run(25)) == ("deadlock", Standing.CONVICTED)
    busy = Machine(Process(1, cpu=0.5), expect="any", deadlines=Deadlines({"working": 40.0}))
    busy.run(600)
    assert busy.standings == {Standing.HEALTHY}


def test_a_server_of_a_stage_that_never_says_a_word_is_overdue() -> None:
    machine = Machine(Process(1), Process(2, 1, **FUTEX), expect="any")
    machine.run(600)
    machine.watch.serves(machine.at)
    machine.run(100)
    assert machine.standings == {Standing.HEALTHY}
    reading = machine.run(40)
    assert told(reading) == ("deadlock", Standing.CONVICTED)
    assert reading.phase == "starting"
    assert "starting has a limit of 120 s, and that is over" in [signal.words for signal in reading.signals]


@pytest.mark.parametrize("answers", [True, False])
def test_a_server_of_a_stage_that_answers_or_works_is_not(answers: bool) -> None:
    machine = Machine(Process(1), Process(2, 1), expect="any")
    machine.run(10)
    machine.watch.serves(machine.at)
    machine.run(100)
    if answers:
        machine.answer(True, name="health")
    else:
        machine.watch.progress("generate: progress", machine.at)
    machine.run(150)
    assert machine.standings == {Standing.HEALTHY}


def test_what_a_debugger_does_to_a_process_is_not_what_it_waits_for() -> None:
    rank = Process(1, **FUTEX)
    machine = Machine(rank)
    machine.run(20)
    rank.wchan = "ptrace_stop"
    machine.run(2)
    assert [track.family for track in machine.watch.window.living()] == ["futex"]


def test_every_reading_names_a_state_that_is_explained() -> None:
    for name, kind in STATES.items():
        assert kind.title
        assert kind.explanation
        assert kind.healthy or kind.kind == "unknown" or kind.remedies, name
        assert kind.convict_s is None or kind.accuse_s is not None


# ---------------------------------------------------------------- anything may come

_JUNK = st.one_of(
    st.none(), st.booleans(), st.text(max_size=8), st.floats(), st.integers(-(2**70), 2**70), st.just([]), st.just({}),
    st.lists(st.none(), max_size=2), st.just(math.nan),
)  # fmt: skip


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_garbled_samples_raise_nothing_and_convict_nobody(data: st.DataObject) -> None:
    machine = Machine(Process(1, cpu=0.3, wakeups=10.0), Process(2, 1, cpu=1.0, read=MB), expect="server")
    machine.gpus = [gpu(0, 30.0, 300.0), gpu(1, 31.0, 310.0)]
    machine.host = {"shm": {"total": 1 << 34, "free": 1 << 33}, "cgroup": {"oom_kills": 1}, "psi": {}, "disks": {}}
    machine.say(READY)
    for _ in range(20):
        sample = machine.sample()
        for _ in range(data.draw(st.integers(0, 4))):
            target: Any = data.draw(
                st.sampled_from([sample, *sample["procs"], *sample["gpu"], sample["host"]])
                if isinstance(sample.get("procs"), list) and isinstance(sample.get("gpu"), list)
                else st.just(sample)
            )
            if isinstance(target, dict) and target:
                target[data.draw(st.sampled_from(sorted(target)))] = data.draw(_JUNK)
        machine.watch.sample(sample, frozenset({1, 2}))
        reading = machine.watch.judge(machine.at)
        assert reading.standing is not Standing.CONVICTED
        assert reading.state in STATES
        assert reading.as_json()


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.text(max_size=6), _JUNK, max_size=6), st.text(max_size=200), st.floats(allow_nan=False))
def test_nothing_that_is_said_raises(sample: dict[str, Any], line: str, at: float) -> None:
    watch = Watch("x", expect="work")
    watch.sample({"mono": 1.0, **sample}, frozenset({1}))
    watch.line("log", line, 1.0)
    watch.progress(line, 2.0)
    watch.fact(line, line, 2.0)
    watch.probe(Probe(line[:5], 1.0, False, 1.0, line))
    assert watch.judge(at).state in STATES
