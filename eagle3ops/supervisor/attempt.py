"""How does one stage run, and how did it end? One process, waited for, cancelled, and its end put into words."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3ops.errors import ExitCode
from eagle3ops.runs.directory import RunDirectory
from eagle3ops.runs.events import read_events
from eagle3ops.runs.family import family, reap_adopted, spared
from eagle3ops.runs.processes import ARGUMENTS_VARIABLE, ProcessId, identify, process_table, signal_all
from eagle3ops.runs.redact import redact
from eagle3ops.runs.stage import CANCEL_GRACE_S
from eagle3ops.supervisor.decision import RESTART, Decision

POLL_S = 0.05
STOP_S = CANCEL_GRACE_S + 2
"""How long a stage may take to end once the run is cancelled: its own time, and some to say so."""
DECISION_GRACE_S = 5.0
"""How long a stage that hangs may take to end after SIGTERM; what is stopped, and cannot hear it, gets none."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a stage's process ended, and what it used."""

    code: int
    """Exit code; minus the signal's number when a signal ended it."""
    facts: dict[str, Any]
    """For the state and the event."""
    decision: Decision | None = None
    """Why the run's watchdog had it ended; None when it had not."""


class Attempt:
    """One process that runs one stage."""

    def __init__(self, run: RunDirectory, stage: str, key: str, environment: Mapping[str, str], oom_score: str) -> None:
        """Start it.

        Args:
            run: the run.
            stage: name of the stage.
            key: the key that the process must come to as well.
            environment: all of its variables.
            oom_score: what the kernel is to think of it when memory runs out; empty leaves it as it is.
        """
        self.run = run
        self.log = run.logs / f"{stage}.log"
        self.argv = [sys.executable, "-m", "eagle3ops.runs.stage", str(run.path), stage, key]
        self._began = time.monotonic()
        self._decision: Decision | None = None
        with self.log.open("ab") as output:
            self.offset = output.tell()
            self.process = subprocess.Popen(
                self.argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
            )
        self.identity = identify(self.process.pid)
        if oom_score:
            with contextlib.suppress(OSError):
                Path(f"/proc/{self.process.pid}/oom_score_adj").write_text(oom_score)

    def wait(
        self,
        *,
        stopped: Callable[[], bool],
        beat: Callable[[], None],
        decided: Callable[[], Decision | None] = lambda: None,
    ) -> Ending:
        """Wait for the end.

        Args:
            stopped: has the run been cancelled? Then the stage's group gets SIGTERM and 12 s, everything that the run
                has started SIGKILL.
            beat: called 20 times a second.
            decided: has the watchdog decided that this attempt is to end? Then it gets SIGTERM and 5 s, and everything
                that the run has started SIGKILL.
        """
        stopped_at: float | None = None
        decided_at: float | None = None
        while True:
            reap_adopted(keep=self.process.pid)
            pid, status, usage = os.wait4(self.process.pid, os.WNOHANG)
            if pid:
                self.process.returncode = os.waitstatus_to_exitcode(status)
                return self._ending(self.process.returncode, usage)
            if stopped() and stopped_at is None:
                stopped_at = time.monotonic()
                signal_all(self._group(), signal.SIGTERM)
            elif stopped_at is not None and time.monotonic() - stopped_at > STOP_S:
                signal_all(spared(family(self.run.path)), signal.SIGKILL)
            if self._decision is None and stopped_at is None:
                self._decision = decided()
                if self._decision is not None:
                    decided_at = time.monotonic()
                    signal_all(self._group(), signal.SIGTERM)
                    signal_all(_stopped(family(self.run.path)), signal.SIGKILL)
            elif decided_at is not None and time.monotonic() - decided_at > DECISION_GRACE_S:
                signal_all(spared(family(self.run.path)), signal.SIGKILL)
            beat()
            time.sleep(POLL_S)

    def _group(self) -> dict[int, ProcessId]:
        """The stage's process group. Its leader is our child and not reaped, so its number is nobody else's."""
        members = [stat.pid for stat in process_table().values() if stat.group == self.process.pid]
        found = {pid: identify(pid) for pid in members or [self.process.pid]}
        return {pid: process for pid, process in found.items() if process is not None}

    def _ending(self, code: int, usage: Any) -> Ending:
        unit = 1024 if sys.platform == "linux" else 1
        facts: dict[str, Any] = {
            "ended": round(time.time(), 3),
            "seconds": round(time.monotonic() - self._began, 3),
            "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 3),
            "max_memory_bytes": usage.ru_maxrss * unit,
            # Of the stage's process and of those below it that it has waited for.
            "usage": {
                "user_seconds": round(usage.ru_utime, 3),
                "system_seconds": round(usage.ru_stime, 3),
                "max_rss_bytes": usage.ru_maxrss * unit,
                "blocks_read": usage.ru_inblock,
                "blocks_written": usage.ru_oublock,
                "voluntary_switches": usage.ru_nvcsw,
                "involuntary_switches": usage.ru_nivcsw,
                "major_faults": usage.ru_majflt,
            },
            "process_exit": code if code >= 0 else None,
            "signal": signal_name(-code) if code < 0 else None,
        }
        # One that has ended well meanwhile needed no decision.
        return Ending(code, facts, self._decision if code != 0 else None)


def _stopped(processes: Mapping[int, ProcessId]) -> dict[int, ProcessId]:
    """Those that hear no signal but SIGKILL as long as they are stopped."""
    table = process_table()
    return {pid: process for pid, process in processes.items() if pid in table and table[pid].state in "Tt"}


def cause_of(run: RunDirectory, stage: str, code: int, seq: int) -> dict[str, Any]:
    """Why a stage failed: what it said itself, or the signal that ended it.

    Args:
        run: the run.
        stage: name of the stage.
        code: as in `Ending`.
        seq: number of the event that says that it was started.
    """
    log = run.logs / f"{stage}.log"
    said = [
        event.data
        for event in read_events(run.events_file, after=seq)
        if event.kind == "error" and event.stage == stage
    ]
    if said:
        last = said[-1]
        return {
            "exit_code": last.get("exit_code", 1),
            "error": last.get("message", ""),
            "remedy": last.get("remedy"),
            "log": str(log),
        }
    if code < 0:
        hint = " (out of memory, or someone's kill -9)" if -code == signal.SIGKILL else ""
        error = f"ended by {signal_name(-code)}{hint}"
    else:
        said_last = last_line(log)
        error = f"ended with exit code {code}{': ' + said_last if said_last else ''}"
    return {"error": error, "exit_code": 1, "remedy": f"see {log}", "log": str(log)}


def given_up(run: RunDirectory, stage: str, decision: Decision) -> dict[str, Any]:
    """Why a stage was ended for good: as its watchdog says."""
    evidence = f"the evidence is in {decision.evidence}; " if decision.evidence else ""
    commanded = run.command("incidents")
    return {
        "error": f"stopped by the watchdog: {decision.title.removeprefix(f'stage {stage}: ')} ({decision.why})",
        "exit_code": int(ExitCode.WATCHDOG),
        "remedy": f"{evidence}{commanded.replace(' runs ', ' ', 1)} shows what can be done",
        "log": str(run.logs / f"{stage}.log"),
    }


def remedy_of(decision: Decision, number: int) -> dict[str, Any]:
    """The event about what was done because of a decision.

    Args:
        number: of the attempt that was ended.
    """
    step = "bisect" if decision.rung and decision.action == RESTART else decision.action
    return {
        "step": step,
        "incident": decision.incident,
        "fingerprint": decision.fingerprint,
        "rung": decision.rung,
        "title": decision.title,
        "why": decision.why,
        "attempt": number,
        "pid": decision.attempt.pid,
        "environment": dict(decision.environment),
        "arguments": list(decision.arguments),
        "evidence": decision.evidence,
    }


def changes(decision: Decision) -> dict[str, str]:
    """The variables for a restart: those of the decision, and what to give engines beside their own arguments."""
    extra = {ARGUMENTS_VARIABLE: json.dumps(list(decision.arguments))} if decision.arguments else {}
    return {**decision.environment, **extra}


def last_line(log: Path) -> str:
    """The last line of a log that holds something, shortened; empty when there is none."""
    with contextlib.suppress(OSError), log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 4096))
        lines = [line for line in file.read().decode("utf-8", errors="replace").splitlines() if line.strip()]
        return redact(lines[-1].strip())[:300] if lines else ""
    return ""


def signal_name(number: int) -> str:
    """`SIGTERM`."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
