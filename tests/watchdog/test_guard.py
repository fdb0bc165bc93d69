"""Does the guard bring everything together, escalate once, know its own blindness, and survive its parts?"""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from eagle3ops.runs.processes import identify
from eagle3ops.watchdog.guard import guard as guards
from eagle3ops.watchdog.guard.aside import Aside, StillBusy
from eagle3ops.watchdog.guard.escalation import Escalation, Policy
from eagle3ops.watchdog.guard.guard import Guard
from eagle3ops.watchdog.guard.logs import Tails
from eagle3ops.watchdog.guard.probes import Prober
from eagle3ops.watchdog.guard.subject import PidFinder, UrlFinder
from eagle3ops.watchdog.incidents.incident import Evidence, Incident
from eagle3ops.watchdog.state import Probe, Reading, Signal, Standing, Subject

HEALTHY, ACCUSED, CONVICTED, UNKNOWN = Standing.HEALTHY, Standing.ACCUSED, Standing.CONVICTED, Standing.UNKNOWN


@dataclass
class Judge:
    """Stands in for `Watch`: says what it is told to say, and keeps what it was given."""

    says: Callable[["Judge"], tuple[str, Standing]] = lambda judge: ("working", HEALTHY)
    samples: list[tuple[Mapping[str, Any], frozenset[int]]] = field(default_factory=list)
    lines: list[tuple[str, str]] = field(default_factory=list)
    probes: list[Probe] = field(default_factory=list)
    facts: list[tuple[str, str]] = field(default_factory=list)
    judged: int = 0

    def sample(self, sample: Mapping[str, Any], members: frozenset[int]) -> None:
        self.samples.append((sample, members))

    def line(self, log: str, text: str, at: float) -> None:
        self.lines.append((log, text))

    def progress(self, what: str, at: float) -> None:
        """Not used."""

    def turned(self, kind: str, log: str, at: float) -> None:
        """Not used."""

    def serves(self, at: float) -> None:
        """Not used."""

    def probe(self, probe: Probe) -> None:
        self.probes.append(probe)

    def fact(self, name: str, words: str, at: float) -> None:
        self.facts.append((name, words))

    def judge(self, now: float) -> Reading:
        self.judged += 1
        return _reading(*self.says(self), at=now)


def _reading(state: str, standing: Standing, at: float = 0.0) -> Reading:
    return Reading(state=state, standing=standing, since=at, at=at, signals=(Signal("cpu", "0.0 % of a core"),))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten looks a second."""
    monkeypatch.setattr(guards, "INTERVAL_S", 0.1)
    monkeypatch.setattr(guards, "LATE", 50)
    monkeypatch.setattr(guards, "BLIND_S", 2.0)


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that sleeps and has said something."""
    code = "import sys, time; sys.stdout.write('hello\\n'); sys.stdout.flush(); time.sleep(600)"
    with (tmp_path / "out.log").open("wb") as out:
        process = subprocess.Popen([sys.executable, "-c", code], stdout=out)
    yield process
    process.kill()
    process.wait()


def _guard(find: Any, judge: Judge, tmp_path: Path, prober: Any = None, **more: Any) -> tuple[Guard, list[Reading]]:
    readings: list[Reading] = []
    options: dict[str, Any] = {"collect": lambda *_, **__: None} | more
    guard = Guard(find, judge, prober, Tails(), on_reading=readings.append, evidence=tmp_path / "evidence", **options)
    return guard, readings


async def test_a_process_that_ends(sleeper: Any, tmp_path: Path) -> None:
    def says(judge: Judge) -> tuple[str, Standing]:
        if judge.samples and judge.lines:
            sleeper.terminate()
        return "working", HEALTHY

    judge = Judge(says)
    guard, readings = _guard(PidFinder(sleeper.pid), judge, tmp_path)
    last = await guard.run()
    assert guard.ended
    assert last is readings[-1]
    assert judge.lines[0] == ("out.log", "hello")
    sample, members = judge.samples[0]
    assert members == {sleeper.pid}
    assert sleeper.pid in [record["pid"] for record in sample["procs"]]
    assert not (tmp_path / "evidence").exists()


async def test_no_secret_in_a_log_reaches_the_judge(tmp_path: Path) -> None:
    # Of the form of one, or the value of a variable or an argument whose name says that it is one.
    code = "import time; print('hf_' + 'cAnArY' * 4, 'blue-horse and red-horse', flush=True); time.sleep(600)"
    with (tmp_path / "out.log").open("wb") as out:
        process = subprocess.Popen(  # noqa: ASYNC220  (nothing else goes on here)
            [sys.executable, "-c", code.replace("red", "r' 'ed"), "--api-key", "red-horse"],
            stdout=out,
            env={**os.environ, "MY_TOKEN": "blue-horse"},
        )
    try:
        judge = Judge()
        guard, _ = _guard(PidFinder(process.pid), judge, tmp_path, until=time.monotonic() + 1.5)
        await guard.run()
    finally:
        process.kill()
        process.wait()
    assert judge.lines == [("out.log", "[redacted] [redacted] and [redacted]")]


async def test_a_log_that_cannot_be_read_is_told_once(sleeper: Any, tmp_path: Path) -> None:
    said: list[str] = []
    guard, _ = _guard(PidFinder(sleeper.pid), Judge(), tmp_path, until=time.monotonic() + 0.5, say=said.append)
    guard.tails.follow([tmp_path])
    await guard.run()
    assert said == [f"the log {tmp_path.name}: not a regular file; it is tried again"]


async def test_time_is_up(sleeper: Any, tmp_path: Path) -> None:
    guard, _ = _guard(PidFinder(sleeper.pid), Judge(), tmp_path, until=time.monotonic() + 0.3)
    assert await guard.run() is not None
    assert not guard.ended


async def test_a_server_that_stops_answering(
    start_engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eagle3ops.watchdog.guard.probes.COUNTERS_S", 0.3)
    engine = start_engine()

    def says(judge: Judge) -> tuple[str, Standing]:
        answers = [probe.ok for probe in judge.probes if probe.name == "generate" and probe.ok is not None]
        if answers and answers[-1] is True:
            os.kill(engine.process.pid, signal.SIGSTOP)
        if answers and answers[-1] is False:
            return "stopped", CONVICTED
        return "serving", HEALTHY

    judge, incidents = Judge(says), []
    decided: list[tuple[Reading, Any]] = []

    async def on_conviction(reading: Reading, dossier: Any) -> None:
        decided.append((reading, dossier))
        engine.end()

    guard, _ = _guard(
        UrlFinder(engine.url),
        judge,
        tmp_path,
        lambda url: Prober(url, scale=0.03),
        collect=lambda subject, folder, **_: (folder.mkdir(exist_ok=True), (folder / "x").write_text("x")),
        on_incident=lambda incident, folder: incidents.append((incident, folder)),
        on_conviction=on_conviction,
    )
    await guard.run()
    assert guard.ended
    assert [reading.state for reading, _ in decided] == ["stopped"]
    assert ("engine.log", "The server is fired up and ready to roll!") in judge.lines
    assert (tmp_path / "evidence/incident-1/x").exists()
    assert {(incident.kind, incident.severity) for incident, _ in incidents} == {("stopped", "error")}
    assert incidents[-1][1] == tmp_path / "evidence/incident-1"


async def test_no_part_that_fails_ends_it_and_each_is_told_once(sleeper: Any, tmp_path: Path) -> None:
    said: list[str] = []

    class Broken(Judge):
        def line(self, log: str, text: str, at: float) -> None:
            raise ValueError("an odd line")

        def judge(self, now: float) -> Reading:
            self.judged += 1
            if self.judged % 2:
                raise KeyError("an odd sample")
            return super().judge(now)

    async def samples() -> AsyncGenerator[dict[str, Any], None]:
        yield {"procs": [{"pid": "what"}, {}], "mono": 0.0}
        raise RuntimeError("the driver is gone")

    class Find:
        looks = 0

        def __call__(self) -> Subject:
            Find.looks += 1
            if Find.looks == 3:
                raise OSError("an odd process")
            me = identify(sleeper.pid)
            return Subject(name="it", processes=(me,) if me else (), logs=(tmp_path / "out.log",))

        def over(self) -> bool:
            return Find.looks > 8

    def on_reading(reading: Reading) -> None:
        raise BrokenPipeError

    guard = Guard(
        Find(), Broken(), None, Tails(), on_reading=on_reading, evidence=tmp_path, samples=samples(), say=said.append
    )
    await guard.run()
    assert guard.ended
    parts = [words.partition(":")[0] for words in said]
    assert len(parts) == len(set(parts))
    assert set(parts) == {"the judge", "its processes", "the report", "the samples"}


async def test_without_samples_it_says_that_it_is_blind(
    sleeper: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guards, "BLIND_S", 0.3)

    async def samples() -> AsyncGenerator[dict[str, Any], None]:
        yield {"procs": [], "mono": time.monotonic()}
        await asyncio.sleep(600)

    # Whatever the counters of old said: nothing is concluded from them.
    judge = Judge(lambda judge: ("deadlock", CONVICTED) if judge.judged > 4 else ("idle", HEALTHY))
    collected: list[Any] = []
    guard, readings = _guard(
        PidFinder(sleeper.pid),
        judge,
        tmp_path,
        samples=samples(),
        until=time.monotonic() + 1.0,
        collect=lambda *arguments, **_: collected.append(arguments),
    )
    await guard.run()
    assert (readings[-1].state, readings[-1].standing) == ("unknown", UNKNOWN)
    assert readings[-1].signals[0].name == "blind"


async def test_a_guard_that_was_late_says_so_with_the_next_sample(
    sleeper: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guards, "LATE", 3.0)

    async def samples() -> AsyncGenerator[dict[str, Any], None]:
        while True:
            yield {"procs": [], "mono": time.monotonic(), "late": False}
            await asyncio.sleep(0.05)

    def says(judge: Judge) -> tuple[str, Standing]:
        if judge.judged == 5:
            time.sleep(0.6)  # as if the machine had no processor for it
        return "working", HEALTHY

    judge = Judge(says)
    guard, _ = _guard(PidFinder(sleeper.pid), judge, tmp_path, samples=samples(), until=time.monotonic() + 1.3)
    await guard.run()
    assert any(sample["late"] for sample, _ in judge.samples)
    assert not judge.samples[0][0]["late"]


async def test_a_call_that_hangs_holds_nobody_up(sleeper: Any, tmp_path: Path) -> None:
    hang = threading.Event()

    class Find(PidFinder):
        looks = 0

        def __call__(self) -> Subject:
            Find.looks += 1
            if Find.looks > 1:
                hang.wait()
            return super().__call__()

    judge = Judge()
    guard, readings = _guard(Find(sleeper.pid), judge, tmp_path, until=time.monotonic() + 1.2)
    await guard.run()
    hang.set()
    assert Find.looks == 2  # asked once more, and not again while that has not come back
    assert len(readings) >= 2


async def test_aside_gives_the_late_result_of_the_call_that_hung() -> None:
    go, calls = threading.Event(), []

    def work() -> int:
        calls.append(1)
        go.wait()
        return len(calls)

    aside = Aside(work, "work")
    for _ in range(2):
        with pytest.raises(StillBusy):
            await aside.ask(0.01)
    go.set()
    assert await aside.ask(30) == 1
    assert await aside.ask(30) == 2
    aside.close()


class Watcher:
    """The escalation alone, with everything that it calls written down."""

    def __init__(self, folder: Path, **more: Any) -> None:
        self.collected: list[tuple[str, bool]] = []
        self.decided: list[str] = []
        self.incidents: list[tuple[str, str, bool]] = []
        self.facts: list[tuple[str, str]] = []
        self.trouble: list[str] = []
        self.folder = folder
        self.told: list[Incident] = []
        self.escalation = Escalation(
            folder,
            more.get("policy", Policy()),
            on_incident=self._incident,
            on_conviction=lambda reading, dossier: self.decided.append(reading.state),
            collect=more.get("collect", self._collect),
            fact=lambda name, words: self.facts.append((name, words)),
            say=lambda part, error: self.trouble.append(part),
        )
        self.subject = Subject(name="it", processes=())

    def _collect(self, subject: Subject, folder: Path, **options: Any) -> Any:
        self.collected.append((folder.relative_to(self.folder).as_posix(), options["intrusive"]))
        lock = SimpleNamespace(stale=True, path=Path("/tmp/lock"), proof="nobody holds it")
        return SimpleNamespace(folder=folder, findings=(Evidence("rank 3 is the odd one"),), locks=(lock,))

    def _incident(self, incident: Incident, folder: Path) -> None:
        self.told.append(incident)
        self.incidents.append((incident.kind, incident.severity, incident.over))

    async def take(self, *readings: tuple[str, Standing]) -> None:
        for state, standing in readings:
            self.escalation.take(_reading(state, standing), {}, self.subject)
            await self.escalation.settle()


async def test_free_evidence_at_the_accusation_and_the_rest_at_the_conviction(tmp_path: Path) -> None:
    watcher = Watcher(tmp_path)
    await watcher.take(("deadlock", ACCUSED), ("deadlock", ACCUSED), ("deadlock", CONVICTED), ("deadlock", CONVICTED))
    assert watcher.collected == [("incident-1/accused", False), ("incident-1", True)]
    assert watcher.decided == ["deadlock"]
    assert watcher.told[-1].evidence[0] == Evidence("rank 3 is the odd one")
    assert "incident-1" in watcher.told[-1].remedies[-1].words
    assert (tmp_path / "incident-1").stat().st_mode & 0o777 == 0o700
    assert watcher.facts[0] == ("file_lock", "/tmp/lock: nobody holds it")


async def test_the_same_again_is_no_new_incident_unless_it_was_well_between(tmp_path: Path) -> None:
    watcher = Watcher(tmp_path)
    await watcher.take(("spin", CONVICTED), ("unknown", UNKNOWN), ("spin", CONVICTED), ("spin", ACCUSED))
    assert watcher.decided == ["spin"]
    await watcher.take(("serving", HEALTHY), ("spin", CONVICTED))
    assert watcher.decided == ["spin", "spin"]
    assert ("spin", "error", True) in watcher.incidents
    await watcher.take(("stopped", CONVICTED))
    assert watcher.decided == ["spin", "spin", "stopped"]


async def test_an_accusation_that_comes_and_goes_is_collected_for_once(tmp_path: Path) -> None:
    watcher = Watcher(tmp_path)
    await watcher.take(*[("straggler", ACCUSED), ("working", HEALTHY)] * 20)
    assert len(watcher.collected) == 1
    assert watcher.incidents[-1] == ("straggler", "info", True)
    await watcher.take(("straggler", CONVICTED))
    assert watcher.decided == ["straggler"]


async def test_a_conviction_stands_without_evidence(tmp_path: Path) -> None:
    def collect(*_: Any, **__: Any) -> None:
        raise PermissionError("no")

    watcher = Watcher(tmp_path, collect=collect)
    await watcher.take(("spin", CONVICTED))
    assert watcher.decided == ["spin"]
    assert watcher.trouble == ["the evidence"]
    blocked = Watcher(tmp_path / "file" / "x")
    (tmp_path / "file").write_text("")
    await blocked.take(("spin", CONVICTED))
    assert blocked.decided == ["spin"]


async def test_an_incident_holds_no_secret(tmp_path: Path) -> None:
    watcher = Watcher(tmp_path)
    secret = "hf_" + "a" * 30
    reading = Reading(
        state="spin", standing=CONVICTED, since=0.0, at=0.0, title=f"in {secret}", signals=(Signal("log", secret),)
    )
    watcher.escalation.take(reading, {}, watcher.subject)
    await watcher.escalation.settle()
    assert watcher.told
    assert secret not in str(watcher.told)
