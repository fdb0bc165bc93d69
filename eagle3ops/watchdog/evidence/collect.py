"""In which order is evidence taken, and what does it all show?

First what costs the processes nothing, then, when asked for, what stops them for moments. Each step has its own limits,
a step that fails leaves a line in the dossier, and no step keeps the next one from being taken.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from eagle3ops.runs.redact import redact, secret_arguments, secret_values
from eagle3ops.telemetry.procfs import TICKS_PER_S
from eagle3ops.watchdog.evidence import (
    flight,
    flight_files,
    locks,
    machine,
    procfs,
    sockets,
    spying,
    stacks,
    tails,
    waits,
)
from eagle3ops.watchdog.evidence.dossier import MANIFEST, Dossier, Step, safe_name, set_aside
from eagle3ops.watchdog.evidence.locks import LockFile
from eagle3ops.watchdog.evidence.patience import ask_each, ask_once
from eagle3ops.watchdog.evidence.stacks import Cluster, Dump
from eagle3ops.watchdog.evidence.writer import Writer
from eagle3ops.watchdog.incident import Evidence
from eagle3ops.watchdog.state import Reading, Subject
from eagle3ops.words import human_seconds, plain

SCHEMA = 1
MOST_PROCESSES = 512
MOST_SPIED = 64
MOST_NATIVE = 8
APART_S = 3.0
"""Between the two looks at the stacks: long enough for whatever moves to have moved."""
MOST_FINDINGS = 40
_ENOUGH_S = 0.3


def collect(
    subject: Subject,
    folder: Path,
    *,
    reading: Reading | None = None,
    sample: Mapping[str, Any] | None = None,
    intrusive: bool = False,
    limit_s: float = 60.0,
    apart_s: float = APART_S,
) -> Dossier:
    """Take the evidence about some processes. Never raises for what cannot be had; blocks for up to `limit_s` seconds.

    Args:
        subject: whose.
        folder: where it is written, 0700 and 0600; what an earlier call wrote there is set aside in it.
        reading: what the watchdog holds of them.
        sample: the telemetry's last sample.
        intrusive: also take stacks, which stops each process for milliseconds, twice.
        limit_s: seconds for everything.
        apart_s: seconds between the two looks at the stacks.
    """
    return _Collection(subject, folder, reading, sample, limit_s).run(intrusive=intrusive, apart_s=apart_s)


class _Collection:
    def __init__(
        self,
        subject: Subject,
        folder: Path,
        reading: Reading | None,
        sample: Mapping[str, Any] | None,
        limit_s: float,
    ) -> None:
        self.subject, self.folder, self.reading, self.sample = subject, folder, reading, sample
        self.began = time.monotonic()
        self.until = self.began + limit_s
        self.writer: Writer | None = None
        self.steps: list[Step] = []
        self.processes: list[dict[str, Any]] = []
        self.names: dict[int, str] = {}
        self.findings: list[tuple[int, Evidence]] = []
        """(rank, finding): the smaller, the more telling."""
        self.suspects: list[tuple[int, int]] = []
        self.locks: list[LockFile] = []
        self.clusters: list[Cluster] = []

    def run(self, *, intrusive: bool, apart_s: float) -> Dossier:
        def prepare() -> Writer:
            set_aside(self.folder)
            return Writer(self.folder)

        prepared = ask_once(prepare, limit_s=10.0)
        self.writer = prepared.value
        if self.writer is None:
            self.steps.append(
                Step(name="folder", what="where the evidence goes", took_s=0.0, missing=(prepared.missing,))
            )
        # The processes first: what is secret in their environment is masked in everything that is written after.
        self._step("processes", "what the kernel says about each process and thread", self._processes, 15.0)
        self._step("reading", "what the watchdog holds of them, and the last sample", self._reading, 5.0)
        self._step("logs", "how each log ends", self._logs, 10.0)
        self._step("sockets", "TCP connections of the processes", self._sockets, 5.0)
        self._step("locks", "lock files of compilations and downloads", self._locks, 10.0)
        self._step("gpus", "the GPUs and who is on them", self._gpus, 10.0)
        self._step("host", "memory, pressure, space, shared memory", self._host, 8.0)
        self._step("kernel", "the kernel's last messages", self._kernel, 4.0)
        self._step("flight", "NCCL's flight recorder, matched over the ranks", self._flight, 30.0)
        if intrusive:
            self._step(
                "stacks", "stacks of the Python processes, twice", lambda until: self._stacks(until, apart_s), 45.0
            )
        return self._finish(intrusive=intrusive)

    def _step(self, name: str, what: str, take: Callable[[float], list[str]], limit_s: float) -> None:
        """Do one part. It returns what is missing; whatever it raises is missing, too."""
        began = time.monotonic()
        before = list(self.writer.files) if self.writer else []
        missing: list[str] = []
        if self.until - began < _ENOUGH_S:
            missing = ["no time was left for it"]
        else:
            try:
                missing = take(min(began + limit_s, self.until))
            except Exception as error:  # noqa: BLE001 - half the evidence is better than none
                missing = [f"{type(error).__name__}: {error}"[:300]]
        files = [file for file in self.writer.files if file not in before] if self.writer else []
        self.steps.append(
            Step(
                name=name,
                what=what,
                took_s=time.monotonic() - began,
                files=tuple(files),
                missing=tuple(self._clean(words) for words in missing),
            )
        )

    def _processes(self, until: float) -> list[str]:
        members = list(self.subject.processes[:MOST_PROCESSES])
        members += waits.dead_children(members)
        answers = ask_each(members, procfs.details, each_s=2.0, until=until, at_once=4)
        missing = []
        for process, answer in zip(members, answers, strict=True):
            if answer.value is not None:
                self.processes.append(answer.value)
            else:
                missing.append(f"pid {process.pid}: {answer.missing or 'it has ended'}")
        if len(self.subject.processes) > MOST_PROCESSES:
            missing.append(
                f"{len(self.subject.processes) - MOST_PROCESSES} processes beyond the first {MOST_PROCESSES}"
            )
        secrets: set[str] = set()
        for process_facts in self.processes:
            secrets |= secret_values(process_facts["_environment"]) | secret_arguments(process_facts["_argv"])
            self.names[process_facts["pid"]] = waits.name_of(process_facts, self.subject.roles)
        if self.writer:
            self.writer.know(secrets)
            told = [procfs.shown(facts) for facts in self.processes]
            environments = {str(facts["pid"]): facts.pop("environment") for facts in told}
            missing += self._json("processes.json", told)
            missing += self._json("environment.json", environments)
        found, suspects = waits.findings(self.processes, self.names)
        self._tell(1, found)
        self._suspect(2, suspects)
        for lost in (words for words in missing if "no answer within" in words):
            self._tell(1, [Evidence(f"{lost}: /proc does not answer for it, its memory map is locked")])
        return missing

    def _reading(self, until: float) -> list[str]:
        missing = []
        if self.reading is not None:
            missing += self._json("reading.json", self.reading.as_json())
            self._suspect(3, list(self.reading.suspects))
        else:
            missing.append("no reading was given")
        return missing + (
            self._json("sample.json", self.sample) if self.sample is not None else ["no sample was given"]
        )

    def _logs(self, until: float) -> list[str]:
        logs = list(dict.fromkeys(self.subject.logs))[: tails.MOST_LOGS]
        answers = ask_each(logs, tails.read_tail, each_s=3.0, until=until, at_once=4)
        missing, index, names = [], [], list[str]()
        for path, answer in zip(logs, answers, strict=True):
            tail = answer.value
            if tail is None:
                missing.append(f"{path}: {answer.missing}")
                continue
            names.append(safe_name(self._clean(tail.name), names))
            missing += self._text(f"logs/{names[-1]}.txt", tail.text)
            index.append(
                {"log": str(path), "file": f"logs/{names[-1]}.txt", "offset": tail.offset, "size": tail.size,
                 "spoke_s": round(tail.spoke_s, 1)}
            )  # fmt: skip
        spoken = sorted((answer.value for answer in answers if answer.value), key=lambda one: one.spoke_s)
        for tail in spoken[:4]:
            words = f"{tail.name} was last written {human_seconds(tail.spoke_s)} ago: {plain(tail.last)[:300]}"
            self._tell(5, [Evidence(words, tail.name, tail.last_offset)])
        return missing + (self._json("logs.json", index) if logs else ["no log is known"])

    def _sockets(self, until: float) -> list[str]:
        answer = ask_once(lambda: sockets.of_processes(self.processes), limit_s=until - time.monotonic())
        if answer.value is None:
            return [answer.missing]
        self._tell(3, sockets.findings(answer.value, self.names))
        return self._json("sockets.json", answer.value)

    def _locks(self, until: float) -> list[str]:
        environments = [facts["_environment"] for facts in self.processes] or [dict(os.environ)]
        folders = list(self.subject.caches) or locks.cache_folders(environments)
        # Each on its own: one on a dead mount must not hide the others.
        asked = ask_each(folders, lambda place: locks.find([place], until=until), each_s=4.0, until=until)
        paths = list(dict.fromkeys(path for answer in asked for path in answer.value or ()))[: locks.MOST_LOCKS]
        missing = [f"{place}: {answer.missing}" for place, answer in zip(folders, asked, strict=True) if answer.missing]
        examined = ask_once(lambda: locks.examine(paths), limit_s=max(0.1, until - time.monotonic()))
        self.locks = examined.value or []
        for lock in self.locks:
            if lock.stale:
                self._tell(1, [Evidence(f"stale lock {lock.path}: {lock.proof}")])
            elif lock.waiters:
                self._tell(2, [Evidence(f"lock {lock.path} is {lock.proof}")])
        missing += [examined.missing] if examined.missing else []
        return missing + self._json("locks.json", [lock.as_json() for lock in self.locks])

    def _gpus(self, until: float) -> list[str]:
        members = [facts["pid"] for facts in self.processes]
        answer = ask_once(lambda: machine.gpus(members), limit_s=until - time.monotonic())
        if answer.value is None:
            return [f"the driver: {answer.missing}"]
        facts, found = answer.value
        self._tell(2, found)
        return self._json("gpus.json", facts)

    def _host(self, until: float) -> list[str]:
        pids = [facts["pid"] for facts in self.processes]
        paths = list(dict.fromkeys([self.folder.absolute(), *(log.absolute().parent for log in self.subject.logs)]))[:8]
        answer = ask_once(lambda: machine.host(pids, [*paths, Path("/tmp")]), limit_s=until - time.monotonic())
        if answer.value is None:
            return [answer.missing]
        facts, found = answer.value
        self._tell(2, found)
        return self._json("host.json", facts)

    def _kernel(self, until: float) -> list[str]:
        answer = ask_once(machine.kernel_messages, limit_s=until - time.monotonic())
        if answer.value is None:
            return [answer.missing]
        lines, why = answer.value
        oldest = min((facts["start"] for facts in self.processes), default=0) / TICKS_PER_S
        self._tell(2, machine.kernel_findings(lines, oldest))
        return [why] if why else self._text("kernel.txt", "\n".join(lines) + "\n")

    def _flight(self, until: float) -> list[str]:
        told = (facts["_environment"].get(name, "") for facts in self.processes for name in flight_files.VARIABLES)
        prefixes = sorted({prefix for prefix in told if prefix.startswith("/")})
        folder = self.subject.flight_records
        if folder is None and not prefixes:
            return [f"no folder of records is known ({flight_files.VARIABLES[0]} is not set)"]
        place = ask_once(lambda: flight_files.find_records(folder, prefixes), limit_s=5.0)
        found = place.value or []
        if not found:
            return [place.missing or "no record was written"]
        born = min((facts["start"] for facts in self.processes), default=0) / TICKS_PER_S
        since = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + born - 2 if self.processes else 0.0
        records, missing = flight_files.read_all(found, oldest=since, until=until)
        verdicts = flight.match(records)
        by_rank = {int(facts["rank"]): facts["pid"] for facts in self.processes if (facts["rank"] or "").isdecimal()}
        for verdict in verdicts:
            self._tell(0, [Evidence(f"NCCL flight recorder, {verdict.group}: {verdict.words}")])
            self._suspect(1, [by_rank[rank] for rank in verdict.blamed if rank in by_rank])
        return missing + self._json("flight.json", flight_files.as_json(found, records, verdicts))

    def _stacks(self, until: float, apart_s: float) -> list[str]:
        known = {facts["pid"]: facts for facts in self.processes if facts["state"] not in "ZX"}
        living = [one for one in self.subject.processes if one.pid in known]
        asked = ask_each(living, lambda one: spying.is_python(one.pid), each_s=1.0, until=until)
        # One of which it may not be known is asked as well: py-spy says what is not permitted.
        chosen = [one for one, answer in zip(living, asked, strict=True) if answer.value is not False][:MOST_SPIED]
        if not chosen:
            return ["no Python process is among them"]
        first = spying.take(chosen, until=until)
        missing = self._dumps("stacks-1", first)
        got = [one for one, (dump, _) in zip(chosen, first, strict=True) if not dump.missing]
        second: list[tuple[Dump, str]] = []
        if got and until - time.monotonic() > apart_s + 1:
            time.sleep(apart_s)
            second = spying.take(got, until=until)
            missing += self._dumps("stacks-2", second)
        kinds = {facts["pid"]: waits.kind_of(facts) for facts in self.processes}
        self.clusters = stacks.cluster([dump for dump, _ in first], kinds, [dump for dump, _ in second])
        self._tell(0, [Evidence(w) for w in stacks.describe(self.clusters, self.names, twice=bool(second))])
        odd = [pid for one in self.clusters if one.odd for pid in one.pids]
        self._suspect(0, odd)
        missing += self._json("stacks.json", [one.as_json() for one in self.clusters])
        # Native frames last, of those that matter most: they cost seconds.
        order = sorted(got, key=lambda one: one.pid not in odd)[:MOST_NATIVE]
        if order and until - time.monotonic() > 2:
            missing += self._dumps("native", spying.take(order, until=until, native=True))
        return missing

    def _dumps(self, place: str, dumps: Sequence[tuple[Dump, str]]) -> list[str]:
        missing = []
        for dump, text in dumps:
            if dump.missing:
                missing.append(f"{place}, {self.names.get(dump.pid, f'pid {dump.pid}')}: {dump.missing}")
            if text:
                missing += self._text(f"{place}/{dump.pid}.txt", text)
        return missing

    def _finish(self, *, intrusive: bool) -> Dossier:
        findings = [one for _, one in sorted(self.findings, key=lambda pair: pair[0])][:MOST_FINDINGS]
        suspects = tuple(dict.fromkeys(pid for _, pid in sorted(self.suspects, key=lambda pair: pair[0])))
        took = time.monotonic() - self.began
        manifest = {
            "schema": SCHEMA,
            "at": time.time(),
            "subject": self.subject.name,
            "intrusive": intrusive,
            "took_s": round(took, 3),
            "findings": [{"what": one.what, "log": one.log, "offset": one.offset} for one in findings],
            "suspects": [{"pid": pid, "name": self.names.get(pid, "")} for pid in suspects],
            "steps": [step.as_json() for step in self.steps],
        }
        files: tuple[str, ...] = ()
        if self.writer:
            writer = self.writer
            # The disk may have died meanwhile.
            ask_once(lambda: writer.json(MANIFEST, manifest), limit_s=10.0)
            files = tuple(writer.files)
        return Dossier(
            folder=self.folder,
            files=files,
            findings=tuple(findings),
            suspects=suspects,
            locks=tuple(self.locks),
            clusters=tuple(self.clusters),
            steps=tuple(self.steps),
            took_s=took,
        )

    def _tell(self, rank: int, found: Sequence[Evidence]) -> None:
        self.findings += [
            (rank, Evidence(self._clean(one.what), self._clean(one.log) if one.log else None, one.offset))
            for one in found
        ]

    def _suspect(self, rank: int, pids: Sequence[int]) -> None:
        self.suspects += [(rank, pid) for pid in pids]

    def _clean(self, text: str) -> str:
        return self.writer.clean(text) if self.writer else redact(text)

    def _json(self, name: str, data: Any) -> list[str]:
        why = self.writer.json(name, data) if self.writer else "there is no folder"
        return [f"{name}: {why}"] if why else []

    def _text(self, name: str, text: str) -> list[str]:
        why = self.writer.text(name, text) if self.writer else "there is no folder"
        return [f"{name}: {why}"] if why else []
