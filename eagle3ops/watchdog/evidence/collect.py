"""In which order is evidence taken, and what does it all show?

First what costs the processes nothing, then, when asked for, what stops them for moments. Each step has its own limits,
a step that fails leaves a line in the dossier, and no step keeps the next one from being taken.
"""

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eagle3ops.runs.redact import secret_arguments, secret_values
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
from eagle3ops.watchdog.evidence.book import Book
from eagle3ops.watchdog.evidence.dossier import Dossier, safe_name
from eagle3ops.watchdog.evidence.locks import LockFile
from eagle3ops.watchdog.evidence.patience import ask_each, ask_once
from eagle3ops.watchdog.evidence.stacks import Cluster, Dump
from eagle3ops.watchdog.incidents.incident import Evidence
from eagle3ops.watchdog.state import Reading, Subject
from eagle3ops.words import human_seconds, plain

MOST_PROCESSES = 512
MOST_SPIED = 64
MOST_NATIVE = 8
STACKS_SHARE = 0.4
"""Of the time, kept for the stacks."""
APART_S = 3.0
"""Between the two looks at the stacks: long enough for whatever moves to have moved."""

BEFORE_S = 3600.0
"""Messages of the kernel that are older than this when something began have not led to it."""


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


class _Collection(Book):
    def __init__(
        self,
        subject: Subject,
        folder: Path,
        reading: Reading | None,
        sample: Mapping[str, Any] | None,
        limit_s: float,
    ) -> None:
        super().__init__(subject.name, folder, limit_s)
        self.subject, self.reading, self.sample = subject, reading, sample
        self.processes: list[dict[str, Any]] = []
        """`procfs.details` of each."""
        self.locks: list[LockFile] = []
        self.left_over: list[LockFile] = []
        """Locks that would be stale if anybody waited for them."""
        self.clusters: list[Cluster] = []

    def run(self, *, intrusive: bool, apart_s: float) -> Dossier:
        self.open()
        # However much of the rest does not answer, the stacks are taken.
        self.kept_s = STACKS_SHARE * (self.until - self.began) if intrusive else 0.0
        # The processes first: what is secret in their environment is masked in everything that is written after.
        self.step("processes", "what the kernel says about each process and thread", self._processes, 15.0)
        self.step("reading", "what the watchdog holds of them, and the last sample", self._reading, 5.0)
        self.step("logs", "how each log ends", self._logs, 10.0)
        self.step("sockets", "TCP connections of the processes", self._sockets, 5.0)
        self.step("locks", "lock files of compilations and downloads", self._locks, 10.0)
        self.step("gpus", "the GPUs and who is on them", self._gpus, 10.0)
        self.step("host", "memory, pressure, space, shared memory", self._host, 8.0)
        self.step("kernel", "the kernel's last messages", self._kernel, 4.0)
        self.step("flight", "NCCL's flight recorder, matched over the ranks", self._flight, 30.0)
        self.kept_s = 0.0
        if intrusive:
            self.step(
                "stacks", "stacks of the Python processes, twice", lambda until: self._stacks(until, apart_s), 45.0
            )
        files, findings, suspects, took = self.finish(intrusive=intrusive)
        return Dossier(
            folder=self.folder,
            files=files,
            findings=findings,
            suspects=suspects,
            locks=tuple(self.locks),
            clusters=tuple(self.clusters),
            stopped=tuple(facts["pid"] for facts in self.processes if facts["state"] in "Tt"),
            steps=tuple(self.steps),
            took_s=took,
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
            missing += self.json("processes.json", told)
            missing += self.json("environment.json", environments)
        found, suspects = waits.findings(self.processes, self.names)
        self.tell(1, found)
        self.suspect(2, suspects)
        for lost in (words for words in missing if "no answer within" in words):
            self.tell(1, [Evidence(f"{lost}: /proc does not answer for it, its memory map is locked")])
        return missing

    def _reading(self, until: float) -> list[str]:
        missing = []
        if self.reading is not None:
            missing += self.json("reading.json", self.reading.as_json())
            self.suspect(3, list(self.reading.suspects))
        else:
            missing.append("no reading was given")
        return missing + (self.json("sample.json", self.sample) if self.sample is not None else ["no sample was given"])

    def _logs(self, until: float) -> list[str]:
        logs = list(dict.fromkeys(self.subject.logs))[: tails.MOST_LOGS]
        answers = ask_each(logs, tails.read_tail, each_s=3.0, until=until, at_once=4)
        missing, index, names = [], [], list[str]()
        tails_of: dict[tuple[int, int], tails.Tail] = {}
        for path, answer in zip(logs, answers, strict=True):
            tail = answer.value
            if tail is None:
                missing.append(f"{path}: {answer.missing}")
                continue
            if tail.identity in tails_of:
                continue  # two processes write into one log whose name is gone
            tails_of[tail.identity] = tail
            names.append(safe_name(self.clean(tail.name), names))
            missing += self.text(f"logs/{names[-1]}.txt", tail.text)
            index.append(
                {"log": str(path), "file": f"logs/{names[-1]}.txt", "offset": tail.offset, "size": tail.size,
                 "spoke_s": round(tail.spoke_s, 1)}
            )  # fmt: skip
        spoken = sorted((tail for tail in tails_of.values() if tail.last), key=lambda one: one.spoke_s)
        for tail in spoken[:4]:
            words = f"{tail.name} was last written {human_seconds(tail.spoke_s)} ago: {plain(tail.last)[:300]}"
            self.tell(5, [Evidence(words, tail.name, tail.last_offset)])
        return missing + (self.json("logs.json", index) if logs else ["no log is known"])

    def _sockets(self, until: float) -> list[str]:
        answer = ask_once(lambda: sockets.of_processes(self.processes), limit_s=until - time.monotonic())
        if answer.value is None:
            return [answer.missing]
        self.tell(3, sockets.findings(answer.value, self.names))
        return self.json("sockets.json", answer.value)

    def _locks(self, until: float) -> list[str]:
        environments = [facts["_environment"] for facts in self.processes] or [dict(os.environ)]
        folders = list(self.subject.caches) or locks.cache_folders(environments)
        # Each on its own: one on a dead mount must not hide the others.
        asked = ask_each(folders, lambda place: locks.find([place], until=until), each_s=4.0, until=until)
        paths = list(dict.fromkeys(path for answer in asked for path in answer.value or ()))[: locks.MOST_LOCKS]
        missing = [f"{place}: {answer.missing}" for place, answer in zip(folders, asked, strict=True) if answer.missing]
        examined = ask_once(lambda: locks.examine(paths), limit_s=max(0.1, until - time.monotonic()))
        self.locks = examined.value or []
        if self.reading is not None and self.reading.state != "stale_lock":
            # Old locks lie about in many caches and harm nobody: one counts when somebody behaves as if waiting for it.
            self.left_over = [lock for lock in self.locks if lock.stale]
            self.locks = [lock.harmless() if lock.stale else lock for lock in self.locks]
        for lock in self.locks:
            if lock.stale:
                self.tell(1, [Evidence(f"stale lock {lock.path}: {lock.proof}")])
            elif lock.waiters:
                self.tell(2, [Evidence(f"lock {lock.path} is {lock.proof}")])
        missing += [examined.missing] if examined.missing else []
        return missing + self.json("locks.json", [lock.as_json() for lock in self.locks])

    def _gpus(self, until: float) -> list[str]:
        members = [facts["pid"] for facts in self.processes]
        answer = ask_once(lambda: machine.gpus(members), limit_s=until - time.monotonic())
        if answer.value is None:
            return [f"the driver: {answer.missing}"]
        facts, found = answer.value
        self.tell(2, found)
        return self.json("gpus.json", facts)

    def _host(self, until: float) -> list[str]:
        pids = [facts["pid"] for facts in self.processes]
        paths = list(dict.fromkeys([self.folder.absolute(), *(log.absolute().parent for log in self.subject.logs)]))[:8]
        answer = ask_once(lambda: machine.host(pids, [*paths, Path("/tmp")]), limit_s=until - time.monotonic())
        if answer.value is None:
            return [answer.missing]
        facts, found = answer.value
        self.tell(2, found)
        return self.json("host.json", facts)

    def _kernel(self, until: float) -> list[str]:
        answer = ask_once(machine.kernel_messages, limit_s=until - time.monotonic())
        if answer.value is None:
            return [answer.missing]
        lines, why = answer.value
        born = min((facts["start"] for facts in self.processes), default=0) / TICKS_PER_S
        # What the kernel said long before it began has not led to it.
        recent = self.reading.since - BEFORE_S if self.reading is not None else 0.0
        self.tell(2, machine.kernel_findings(lines, self.processes, max(born, recent)))
        return [why] if why else self.text("kernel.txt", "\n".join(lines) + "\n")

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
            self.tell(0, [Evidence(f"NCCL flight recorder, {verdict.group}: {verdict.words}")])
            self.suspect(1, [by_rank[rank] for rank in verdict.blamed if rank in by_rank])
        return missing + self.json("flight.json", flight_files.as_json(found, records, verdicts))

    def _stacks(self, until: float, apart_s: float) -> list[str]:
        known = {facts["pid"]: facts for facts in self.processes if facts["state"] not in "ZX"}
        living = [one for one in self.subject.processes if one.pid in known]
        asked = ask_each(living, lambda one: spying.is_python(one.pid), each_s=1.0, until=until)
        # One of which it may not be known is asked as well: py-spy says what is not permitted.
        python = [one for one, answer in zip(living, asked, strict=True) if answer.value is not False]
        # Ranks before the many helpers that an engine keeps for compiling, which have hardly used a processor.
        python.sort(key=lambda one: (one.pid not in self.subject.roles, -known[one.pid]["cpu_s"]))
        chosen = python[:MOST_SPIED]
        if not chosen:
            return ["no Python process is among them"]
        first = spying.take(chosen, until=until)
        missing = self._dumps("stacks-1", first)
        missing += [f"{len(python) - MOST_SPIED} Python processes with less CPU time"] * (len(python) > MOST_SPIED)
        got = [one for one, (dump, _) in zip(chosen, first, strict=True) if not dump.missing]
        second: list[tuple[Dump, str]] = []
        if got and until - time.monotonic() > apart_s + 1:
            time.sleep(apart_s)
            second = spying.take(got, until=until)
            missing += self._dumps("stacks-2", second)
        kinds = {facts["pid"]: waits.kind_of(facts) for facts in self.processes}
        self.clusters = stacks.cluster([dump for dump, _ in first], kinds, [dump for dump, _ in second])
        self.tell(0, [Evidence(w) for w in stacks.describe(self.clusters, self.names, twice=bool(second))])
        held = stacks.hold_the_gil([dump for dump, _ in first], [dump for dump, _ in second])
        for pid in held:
            words = (
                "holds the GIL at the same place in both looks: no other thread of it runs, its own watchdog neither"
            )
            self.tell(0, [Evidence(f"{self.names.get(pid, f'pid {pid}')}: {words}")])
        odd = [pid for one in self.clusters if one.odd for pid in one.pids]
        self.suspect(0, odd)
        self._waits_for_locks([dump for dump, _ in first])
        missing += self.json("stacks.json", [one.as_json() for one in self.clusters])
        # Native frames last, of those that matter most: they cost seconds.
        order = sorted(got, key=lambda one: one.pid not in odd)[:MOST_NATIVE]
        if order and until - time.monotonic() > 2:
            missing += self._dumps("native", spying.take(order, until=until, native=True))
        return missing

    def _waits_for_locks(self, dumps: Sequence[Dump]) -> None:
        pids = [dump.pid for dump in dumps if stacks.waits_for_lock_file(dump)]
        if not pids:
            return
        who = ", ".join(self.names.get(pid, f"pid {pid}") for pid in pids[:8])
        self.tell(0, [Evidence(f"{who}: waits for a lock file to go away")])
        stale = {lock.path: lock for lock in self.left_over}
        self.locks = [stale.get(lock.path, lock) for lock in self.locks]
        self.tell(0, [Evidence(f"stale lock {lock.path}: {lock.proof}") for lock in self.left_over])

    def _dumps(self, place: str, dumps: Sequence[tuple[Dump, str]]) -> list[str]:
        missing = []
        for dump, text in dumps:
            if dump.missing:
                missing.append(f"{place}, {self.names.get(dump.pid, f'pid {dump.pid}')}: {dump.missing}")
            if text:
                missing += self.text(f"{place}/{dump.pid}.txt", text)
        return missing
