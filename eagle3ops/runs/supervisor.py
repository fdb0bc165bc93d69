"""Who looks after a run? One detached process: `python -m eagle3ops.runs.supervisor RUN_DIR`.

It runs the stages in order, each as a process of its own, skips what is done, forwards SIGTERM and SIGINT, records how
each stage ended, and leaves nothing running behind. It needs no terminal and no parent. Its exit code is the run's.
"""

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

from eagle3ops.errors import Eagle3opsError, ExitCode
from eagle3ops.runs.directory import RunDirectory
from eagle3ops.runs.events import EventLog, read_events
from eagle3ops.runs.files import explain_os_error, log_line, write_json
from eagle3ops.runs.job import Registry, load_registry
from eagle3ops.runs.keys import stage_keys, versions
from eagle3ops.runs.leash import adopt_orphans
from eagle3ops.runs.planning import admit, plan_stages
from eagle3ops.runs.processes import RUN_VARIABLE, end_left_behind, identify
from eagle3ops.runs.stage import CANCEL_GRACE_S, PARENT_VARIABLE
from eagle3ops.runs.store import Store, Stored
from eagle3ops.spec.load import load_pipeline

HEARTBEAT_S = 2.0
POLL_S = 0.05


class AlreadyRunning(Eagle3opsError):
    """Another supervisor looks after the run."""


def launch(run: RunDirectory) -> subprocess.Popen[bytes]:
    """Start the supervisor of a run, detached: in a session of its own, with its output in the run's logs."""
    with (run.logs / "supervisor.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "eagle3ops.runs.supervisor", str(run.path)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={name: value for name, value in os.environ.items() if name not in (RUN_VARIABLE, PARENT_VARIABLE)},
        )


def main() -> int:
    """Look after the run named on the command line."""
    run = RunDirectory(Path(sys.argv[1]).absolute())
    try:
        with _alone(run):
            return Supervisor(run).run()
    except AlreadyRunning as error:
        log_line(str(error))
        return ExitCode.DONE
    except OSError as error:
        explained = explain_os_error(error, run.path)
        log_line(str(explained or error))
        return ExitCode.FAILED


@contextmanager
def _alone(run: RunDirectory) -> Iterator[None]:
    """Be the only supervisor of the run; the kernel gives the lock back when this process ends, however that is."""
    with (run.path / "supervisor.lock").open("a+b") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise AlreadyRunning(f"{run.run_id}: a supervisor looks after this run already") from error
        yield


class Supervisor:
    """The life of one run."""

    def __init__(self, run: RunDirectory) -> None:
        self.run_dir = run
        self.stop_signal: int | None = None
        self.verdicts: dict[tuple[str, str], bool] = {}
        self.state: dict[str, Any] = {}
        self._events: EventLog | None = None
        self._last_beat = 0.0

    def run(self) -> int:
        """Run all stages; returns the run's exit code."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        adopt_orphans()
        end_left_behind(self.run_dir.path)
        self._beat()
        with contextlib.suppress(OSError):
            self.run_dir.fill_ballast()
        with self.run_dir.events() as self._events:
            try:
                code = self._all_stages()
            except Eagle3opsError as error:
                code = self._end(error.exit_code, "failed", error.what, error.remedy)
            except OSError as error:
                explained = explain_os_error(error, self.run_dir.path) or Eagle3opsError(str(error))
                code = self._end(ExitCode.FAILED, "failed", explained.what, explained.remedy)
            except Exception as error:  # noqa: BLE001  (the boundary: a run never ends without a word)
                log_line(traceback.format_exc())
                cause = f"{type(error).__name__}: {error}"
                log = self.run_dir.logs / "supervisor.log"
                code = self._end(ExitCode.FAILED, "failed", cause, f"the traceback is in {log}")
            finally:
                end_left_behind(self.run_dir.path)
                with contextlib.suppress(OSError):
                    self.run_dir.drop_ballast()
            return code

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.stop_signal = number

    def _all_stages(self) -> int:
        registry = load_registry()
        request = self.run_dir.request()
        pipeline = load_pipeline(self.run_dir.spec_file, registry.specs())
        store = Store(self.run_dir.root)
        keys = stage_keys(pipeline, registry)
        stages: list[str] = list(request["stages"])
        self.state = {
            "run_id": self.run_dir.run_id,
            "name": pipeline.name,
            "job": request["job"],
            "status": "running",
            "exit_code": None,
            "started": round(time.time(), 3),
            "ended": None,
            "versions": versions(),
            "stages": {name: {"status": "waiting", "key": keys[name]} for name in stages},
        }
        self._note("run", {"status": "running", "stages": stages, "pid": os.getpid()})
        for name in stages:
            if self.stop_signal is None:
                self._stage(name, keys[name], registry, store)
            status = self.state["stages"][name]
            if self.stop_signal is not None and status["status"] not in ("done", "reused"):
                return self._end(ExitCode.INTERRUPTED, "cancelled", f"cancelled by {_signal_name(self.stop_signal)}")
            if status["status"] == "failed":
                return self._end(status["exit_code"], "failed", f"{name}: {status['error']}", status.get("remedy"))
        failed = sorted(f"{stage}/{name}" for (stage, name), passed in self.verdicts.items() if not passed)
        if failed:
            return self._end(ExitCode.VERDICT_FAIL, "done", f"verdict FAIL: {', '.join(failed)}")
        return self._end(ExitCode.DONE, "done", None)

    def _stage(self, name: str, key: str, registry: Registry, store: Store) -> None:
        job = registry.job(name)()
        known = store.look_up(job, key)
        if known.done is None:
            if known.reason:
                self._note("warn", {"text": f"not trusted, done again: {known.reason}"}, name)
            if not self.run_dir.request().get("forced"):
                self._admit(name, registry)
            self._run_stage(name, key)
            if self.state["stages"][name]["status"] != "done":
                return
            known = store.look_up(job, key)
            if known.done is None:
                self._set(name, "failed", exit_code=1, error=f"its output did not stand the check: {known.reason}")
                return
            for verdict in known.done.get("verdicts", {}).values():
                self.verdicts[name, verdict["name"]] = verdict["passed"]
        else:
            self._reuse(name, known, known.done)
        self._link(name, known)

    def _admit(self, name: str, registry: Registry) -> None:
        """Refuse a stage that does not fit, now that what comes before it is done and its size is known."""
        pipeline = load_pipeline(self.run_dir.spec_file, registry.specs())
        cache = Path(self.run_dir.request()["cache"])
        planned = plan_stages(pipeline, registry, self.run_dir.root, cache)
        admit([stage for stage in planned if stage.name == name], self.run_dir.root)

    def _reuse(self, name: str, known: Stored, done: Mapping[str, Any]) -> None:
        """Skip a stage that is done, telling again what it found out."""
        self._set(name, "reused", out=str(known.out), seconds=done.get("seconds"))
        for metric, value in done.get("metrics", {}).items():
            self._note("metric", {"name": metric, "value": value, "reused": True}, name)
        for relative, note in done.get("artifacts", {}).items():
            self._note("artifact", {"path": str(known.out / relative), "note": note, "reused": True}, name)
        for verdict in done.get("verdicts", {}).values():
            self.verdicts[name, verdict["name"]] = verdict["passed"]
            self._note("verdict", {**verdict, "reused": True}, name)

    def _run_stage(self, name: str, key: str) -> None:
        """Run one stage as a process of its own and record how it ended."""
        seq = self._set(name, "running", started=round(time.time(), 3))
        log = self.run_dir.logs / f"{name}.log"
        environment = os.environ | {
            RUN_VARIABLE: str(self.run_dir.path),
            PARENT_VARIABLE: str(os.getpid()),
            "PYTHONUNBUFFERED": "1",
            # OpenMP's threads spin while they wait; beside any other load that costs a stage most of its speed.
            "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE"),
        }
        began = time.monotonic()
        with log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "eagle3ops.runs.stage", str(self.run_dir.path), name, key],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
            )
        status, usage = self._wait(process)
        end_left_behind(self.run_dir.path)
        code = os.waitstatus_to_exitcode(status)
        facts: dict[str, Any] = {
            "ended": round(time.time(), 3),
            "seconds": round(time.monotonic() - began, 3),
            "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 3),
            "max_memory_bytes": usage.ru_maxrss * (1024 if sys.platform == "linux" else 1),
        }
        if code == 0:
            self._set(name, "done", exit_code=0, **facts)
        elif self.stop_signal is not None:
            self._set(name, "cancelled", exit_code=int(ExitCode.INTERRUPTED), **facts)
        else:
            self._set(name, "failed", **self._cause(name, code, seq, log), **facts)

    def _wait(self, process: subprocess.Popen[bytes]) -> tuple[int, Any]:
        """Wait for the stage, beating meanwhile; on a stop signal: SIGTERM, grace, SIGKILL."""
        stopped_at: float | None = None
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                process.returncode = os.waitstatus_to_exitcode(status)
                return status, usage
            now = time.monotonic()
            if self.stop_signal is not None and stopped_at is None:
                stopped_at = now
                _signal_group(process.pid, signal.SIGTERM)
            elif stopped_at is not None and now - stopped_at > CANCEL_GRACE_S + 2:
                _signal_group(process.pid, signal.SIGKILL)
            if now - self._last_beat > HEARTBEAT_S:
                with contextlib.suppress(OSError):
                    self._beat()
            time.sleep(POLL_S)

    def _cause(self, name: str, code: int, seq: int, log: Path) -> dict[str, Any]:
        """Why a stage failed: what it said itself, or the signal that ended it."""
        said = [
            event.data
            for event in read_events(self.run_dir.events_file, after=seq)
            if event.kind == "error" and event.stage == name
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
            cause = {"signal": _signal_name(-code), "error": f"ended by {_signal_name(-code)}{hint}", "exit_code": 1}
        else:
            said_last = _last_line(log)
            cause = {"error": f"ended with exit code {code}{': ' + said_last if said_last else ''}", "exit_code": 1}
        return cause | {"remedy": f"see {log}", "log": str(log)}

    def _link(self, name: str, known: Stored) -> None:
        """Show the stage's folder among the run's artifacts, and its files in the manifest."""
        link = self.run_dir.artifacts / name
        fresh = link.with_name(f".{name}.tmp")
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(os.path.relpath(known.out, self.run_dir.artifacts))
        fresh.replace(link)
        self.state["stages"][name]["out"] = str(known.out)
        manifest_file = self.run_dir.artifacts / "manifest.json"
        manifest = {}
        for stage in self.state["stages"]:
            done = Store(self.run_dir.root)
            out = self.state["stages"][stage].get("out")
            if out is not None and done.folder in Path(out).parents:
                manifest[stage] = known.done["files"] if stage == name and known.done else _files(Path(out))
        write_json(manifest_file, manifest)
        self._save()

    def _set(self, name: str, status: str, **facts: Any) -> int:
        """Change a stage's status; returns the number of the event that says so."""
        stage = self.state["stages"][name]
        stage.update(status=status, **facts)
        return self._note("stage", {"status": status, "key": stage["key"], **facts}, name)

    def _end(self, code: int, status: str, cause: str | None, remedy: str | None = None) -> int:
        """The run's last word; tried again without the reserve when the disk is full."""
        if cause:
            log_line(cause)
        self.state.update(status=status, exit_code=int(code), ended=round(time.time(), 3), cause=cause, remedy=remedy)
        try:
            self._note("run", {"status": status, "exit_code": int(code), "cause": cause, "remedy": remedy})
        except OSError as error:
            log_line(str(explain_os_error(error, self.run_dir.path) or error))
            with contextlib.suppress(OSError):
                self.run_dir.drop_ballast()
                self._note("run", {"status": status, "exit_code": int(code), "cause": cause, "remedy": remedy})
        return int(code)

    def _note(self, kind: str, data: Mapping[str, Any], stage: str | None = None) -> int:
        """Write an event and, when it changes the state, the state."""
        assert self._events is not None
        event = self._events.append(kind, data, stage)
        if kind in ("run", "stage"):
            self.state["seq"] = event.seq
            self._save()
        return event.seq

    def _save(self) -> None:
        write_json(self.run_dir.path / "state.json", self.state)

    def _beat(self) -> None:
        """Say who looks after the run, and that it is alive."""
        self._last_beat = time.monotonic()
        me = identify(os.getpid())
        data = (asdict(me) if me else {"pid": os.getpid()}) | {"heartbeat": round(time.time(), 3)}
        write_json(self.run_dir.path / "supervisor.json", data, sync=False)


def _files(out: Path) -> list[Any]:
    from eagle3ops.runs.files import read_json
    from eagle3ops.runs.store import DONE

    return list((read_json(out / DONE) or {}).get("files", []))


def _last_line(log: Path) -> str:
    with contextlib.suppress(OSError), log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 4096))
        lines = [line for line in file.read().decode("utf-8", errors="replace").splitlines() if line.strip()]
        return lines[-1].strip()[:300] if lines else ""
    return ""


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


if __name__ == "__main__":
    sys.exit(main())
