"""How does a run go? Stage after stage, by one process that looks after it.

It runs the stages in order, each as a process of its own, skips what is done, forwards SIGTERM and SIGINT, records how
each stage ended, and leaves nothing running behind. It needs no terminal and no parent. Its exit code is the run's.
"""

import contextlib
import itertools
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

from eagle3ops.errors import Eagle3opsError, ExitCode, VerdictFailed
from eagle3ops.forensics import of_run
from eagle3ops.runs import environments
from eagle3ops.runs.context import patch_told
from eagle3ops.runs.directory import RunDirectory
from eagle3ops.runs.events import EventLog
from eagle3ops.runs.family import end_left_behind, left_behind, remember, tree
from eagle3ops.runs.files import explain_os_error, log_line, write_json
from eagle3ops.runs.gpu_share import GpuShare
from eagle3ops.runs.job import Job, Registry, load_registry
from eagle3ops.runs.keys import stage_keys, versions
from eagle3ops.runs.leash import PARENT_VARIABLE, adopt_orphans
from eagle3ops.runs.planning import admit, plan_stages
from eagle3ops.runs.processes import RUN_VARIABLE, ProcessId, identify
from eagle3ops.runs.redact import redact_data
from eagle3ops.runs.store import Store, Stored
from eagle3ops.spec.load import load_pipeline
from eagle3ops.spec.models import WatchdogSpec
from eagle3ops.supervisor.attempt import STOP_S, Attempt, Ending, cause_of, changes, given_up, remedy_of, signal_name
from eagle3ops.supervisor.decision import RESTART, Decision
from eagle3ops.supervisor.keeper import Keeper
from eagle3ops.supervisor.oom import spare_this_process
from eagle3ops.words import outcome_of, outcome_word

HEARTBEAT_S = 2.0


class Supervisor:
    """The life of one run."""

    def __init__(self, run: RunDirectory) -> None:
        self.run_dir = run
        self.stop_signal: int | None = None
        self.verdicts: dict[tuple[str, str], bool | None] = {}
        self.state: dict[str, Any] = {}
        self._events: EventLog | None = None
        self._last_beat = 0.0
        self._seen: set[ProcessId] = set()
        self._oom_score = ""
        self._share: GpuShare | None = None
        self._told_to_stop = False

    def listen(self) -> None:
        """Take signals: SIGTERM and SIGINT cancel the run, SIGHUP (a logout) does nothing."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        # A handler and not SIG_IGN, which the stages and what they start would inherit.
        signal.signal(signal.SIGHUP, lambda number, frame: None)

    def run(self) -> int:
        """Run all stages; returns the run's exit code."""
        adopt_orphans()
        self._oom_score = spare_this_process()
        self._beat()
        end_left_behind(self.run_dir.path, reap=True)
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
                self._wind_down()
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
        keys = stage_keys(pipeline, registry, request["stages"])
        self._share = GpuShare(self.run_dir, pipeline, self._note)
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
        self._started("supervisor", sys.orig_argv, os.getpid(), os.environ, "supervisor.log")
        for name in stages:
            if self.stop_signal is None:
                self._stage(name, keys[name], registry, store, pipeline.watchdog)
            status = self.state["stages"][name]
            if self.stop_signal is not None and status["status"] not in ("done", "reused"):
                return self._end(ExitCode.INTERRUPTED, "cancelled", f"cancelled by {signal_name(self.stop_signal)}")
            if status["status"] == "failed":
                return self._end(status["exit_code"], "failed", f"{name}: {status['error']}", status.get("remedy"))
        words = []
        for outcome in (False, None):
            named = sorted(f"{stage}/{name}" for (stage, name), passed in self.verdicts.items() if passed is outcome)
            words += [f"{outcome_word(outcome)}: {', '.join(named)}"] if named else []
        if words:
            return self._end(ExitCode.VERDICT_FAIL, "done", f"verdict {'; '.join(words)}")
        return self._end(ExitCode.DONE, "done", None)

    def _stage(self, name: str, key: str, registry: Registry, store: Store, watchdog: WatchdogSpec) -> None:
        job = registry.job(name)()
        known = store.look_up(job, key)
        if known.done is None:
            if known.reason:
                self._note("warn", {"text": f"not trusted, done again: {known.reason}"}, name)
            forced = bool(self.run_dir.request().get("forced"))
            if not forced:
                self._require_verdicts(name, registry.job(name))
                self._admit(name, registry)
            if self._share is not None:
                self._share.take(registry.job(name), forced=forced)
            self._run_stage(name, key, watchdog)
            if self.state["stages"][name]["status"] != "done":
                return
            known = store.look_up(job, key)
            if known.done is None:
                self._set(name, "failed", exit_code=1, error=f"its output did not stand the check: {known.reason}")
                return
            for verdict in known.done.get("verdicts", {}).values():
                self.verdicts[name, verdict["name"]] = outcome_of(verdict)
        else:
            self._reuse(name, known, known.done)
        self._link(name, known)

    def _require_verdicts(self, name: str, job: type[Job]) -> None:
        """Refuse a stage whose figures would say nothing after what was found before it."""
        came_to = {"/".join(key): passed for key, passed in self.verdicts.items()}
        failed = [one for one in job.pointless_after if came_to.get(one) is False]
        if failed:
            raise VerdictFailed(
                f"{name} was not started: {', '.join(failed)} is FAIL, so its figures would say nothing",
                remedy=f"mend what the verdict names; {self.run_dir.command('resume')} --yes runs {name} all the same",
            )

    def _admit(self, name: str, registry: Registry) -> None:
        """Refuse a stage that does not fit, now that what comes before it is done and its size is known."""
        pipeline = load_pipeline(self.run_dir.spec_file, registry.specs())
        cache = Path(self.run_dir.request()["cache"])
        planned = plan_stages(pipeline, registry, self.run_dir.root, cache, [name])
        admit([stage for stage in planned if stage.name == name], self.run_dir.root)

    def _reuse(self, name: str, known: Stored, done: Mapping[str, Any]) -> None:
        """Skip a stage that is done, telling again what it found out."""
        self._set(name, "reused", out=str(known.out), seconds=done.get("seconds"))
        for metric, value in done.get("metrics", {}).items():
            self._note("metric", {"name": metric, "value": value, "reused": True}, name)
        for relative, note in done.get("artifacts", {}).items():
            self._note("artifact", {"path": str(known.out / relative), "note": note, "reused": True}, name)
        for recipe, standing in done.get("patches", {}).items():
            self._note("info", {**patch_told(recipe, standing), "reused": True}, name)
        for verdict in done.get("verdicts", {}).values():
            self.verdicts[name, verdict["name"]] = outcome_of(verdict)
            self._note("verdict", {**verdict, "reused": True}, name)

    def _run_stage(self, name: str, key: str, spec: WatchdogSpec) -> None:
        """Run one stage as a process of its own, again where its watchdog says so, and record how it ended."""
        decision: Decision | None = None
        for number in itertools.count(1):
            again = {} if decision is None else {"attempt": number}
            seq = self._set(name, "running", started=round(time.time(), 3), **again)
            ending = self._attempt(name, key, spec, decision)
            self._end_family(name)
            facts = ending.facts
            if ending.code == 0:
                self._set(name, "done", exit_code=0, **facts)
            elif self.stop_signal is not None:
                self._set(name, "cancelled", exit_code=int(ExitCode.INTERRUPTED), **facts)
            elif (decision := ending.decision) is not None:
                self._note("remedy", remedy_of(decision, number), name)
                if decision.action == RESTART:
                    continue
                self._set(name, "failed", **facts, **given_up(self.run_dir, name, decision))
            else:
                self._set(name, "failed", **facts, **self._cause(name, ending.code, seq))
            return

    def _attempt(self, name: str, key: str, spec: WatchdogSpec, decision: Decision | None) -> Ending:
        """Run a stage once.

        Args:
            decision: why it is run again; None the first time.
        """
        environment = os.environ | {
            RUN_VARIABLE: str(self.run_dir.path),
            PARENT_VARIABLE: str(os.getpid()),
            "PYTHONUNBUFFERED": "1",
            # OpenMP's threads spin while they wait; beside any other load that costs a stage most of its speed.
            "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE"),
            **(self._share.environment() if self._share else {}),
            **(changes(decision) if decision is not None else {}),
        }
        attempt = Attempt(self.run_dir, name, key, environment, self._oom_score)
        log, pid = attempt.log.name, attempt.process.pid
        self._started(name, attempt.argv, pid, environment, log, stage=name, offset=attempt.offset)
        keeper = Keeper(
            self.run_dir, name, attempt.identity, spec, lambda text: self._note("warn", {"text": text}, name)
        )

        def beat() -> None:
            self._tell_stop(name)
            self._beat_when_due()
            keeper.look()

        ending = attempt.wait(stopped=self._stopped, beat=beat, decided=keeper.decided)
        keeper.end()
        self._note("process", {"role": name, "state": "ended", "pid": pid, "code": ending.code}, name)
        return ending

    def _stopped(self) -> bool:
        return self.stop_signal is not None

    def _tell_stop(self, stage: str) -> None:
        """Say that the run is being cancelled, once: what takes seconds to end looks as if nobody had heard."""
        if self.stop_signal is None or self._told_to_stop:
            return
        self._told_to_stop = True
        name = signal_name(self.stop_signal)
        self.state["cancelling"] = {"since": round(time.time(), 3), "signal": name}
        words = f"cancelled by {name}: {stage} has {STOP_S:.0f} s to end, then everything is killed"
        # On a full disk the cancel goes on all the same.
        with contextlib.suppress(OSError):
            self._note("info", {"text": words, "cancelling": name}, stage)
            self._save()

    def _cause(self, name: str, code: int, seq: int) -> dict[str, Any]:
        """Why a stage failed: what it said, and what its logs say beyond that."""
        cause = cause_of(self.run_dir, name, code, seq)
        if cause["exit_code"] not in (ExitCode.REFUSED, ExitCode.BAD_REQUEST):
            asked = of_run.ask(self.run_dir, name, str(cause["error"]), beat=self._beat_when_due, stopped=self._stopped)
            if asked is not None:
                cause["root"] = asked
        return cause

    def _started(
        self,
        role: str,
        argv: Sequence[str],
        pid: int,
        environment: Mapping[str, str],
        log: str,
        *,
        stage: str | None = None,
        offset: int = 0,
    ) -> None:
        """Write down how a process of the run itself was started, as `Context.spawn` does for what stages start."""
        data = {"role": role, "state": "started", "argv": list(argv), "log": f"logs/{log}", "offset": offset}
        identity = identify(pid)
        data |= {"environment": environments.keep(self.run_dir.path, environment)}
        self._note("process", data | (identity.as_json() if identity else {"pid": pid}), stage)

    def _end_family(self, name: str | None = None) -> None:
        """End whatever is left of the run, and name what cannot be ended."""
        end_left_behind(self.run_dir.path, reap=True)
        rest = left_behind(self.run_dir.path)
        if rest:
            numbers = ", ".join(map(str, rest))
            self._note("warn", {"text": f"cannot be ended (inside a call to the system): process {numbers}"}, name)

    def _wind_down(self) -> None:
        """Nothing of the run is left when its last word is said: no process, and no GPU memory."""
        with contextlib.suppress(OSError):
            self._end_family()
        if self._share is not None:
            with contextlib.suppress(OSError):
                self._share.give_back()

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
        self._wind_down()
        self.state.pop("cancelling", None)
        self.state.update(status=status, exit_code=int(code), ended=round(time.time(), 3), cause=cause, remedy=remedy)
        self._insist(
            lambda: self._note(
                "run", {"status": status, "exit_code": int(code), "cause": cause, "remedy": remedy}, save=False
            )
        )
        self._insist(self._save)
        return int(code)

    def _insist(self, write: Callable[[], object]) -> None:
        """Write, on a full disk once more with the reserve given up."""
        try:
            write()
        except OSError as error:
            log_line(str(explain_os_error(error, self.run_dir.path) or error))
            with contextlib.suppress(OSError):
                self.run_dir.drop_ballast()
                write()

    def _note(self, kind: str, data: Mapping[str, Any], stage: str | None = None, *, save: bool = True) -> int:
        """Write an event and, when it changes the state, the state."""
        assert self._events is not None
        event = self._events.append(kind, data, stage)
        if kind in ("run", "stage"):
            self.state["seq"] = event.seq
            if save:
                self._save()
        return event.seq

    def _save(self) -> None:
        write_json(self.run_dir.path / "state.json", redact_data(self.state))

    def _beat_when_due(self) -> None:
        if time.monotonic() - self._last_beat > HEARTBEAT_S:
            with contextlib.suppress(OSError):
                self._beat()

    def _beat(self) -> None:
        """Say who looks after the run, that it is alive, and what it has below it."""
        self._last_beat = time.monotonic()
        me = identify(os.getpid())
        data = (asdict(me) if me else {"pid": os.getpid()}) | {"heartbeat": round(time.time(), 3)}
        write_json(self.run_dir.path / "supervisor.json", data, sync=False)
        seen = set(tree().values())
        if seen != self._seen:
            remember(self.run_dir.path, seen)
            self._seen = seen
        if self._share is not None:
            self._share.refresh()


def _files(out: Path) -> list[Any]:
    from eagle3ops.runs.files import read_json
    from eagle3ops.runs.store import DONE

    return list((read_json(out / DONE) or {}).get("files", []))
