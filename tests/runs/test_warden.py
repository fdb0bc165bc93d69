"""Does a conviction become the incident, the lock moved and the decision that the pipeline file allows?"""

import asyncio
import errno
import os
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
import toy_jobs

from eagle3ops.runs.directory import RunDirectory
from eagle3ops.runs.events import read_events
from eagle3ops.runs.files import read_json
from eagle3ops.runs.processes import ProcessId, identify
from eagle3ops.spec.load import parse_pipeline
from eagle3ops.supervisor import warden
from eagle3ops.supervisor.decision import FILE, Decision, from_json
from eagle3ops.supervisor.warden import Warden
from eagle3ops.watchdog.incidents.incident import Incident
from eagle3ops.watchdog.remedies.lock_release import Release
from eagle3ops.watchdog.state import Reading, Standing

ATTEMPT = ProcessId(4711, 99, "boot")


@dataclass
class World:
    folder: Path

    def warden(self, watchdog: str, *, engine: str = "sglang") -> Warden:
        text = f"schema: 1\nname: toy\ntarget: {{model: none}}\nengine: {{name: {engine}}}\nwatchdog: {watchdog}\n"
        run = RunDirectory(self.folder)
        return Warden(run, "use", ATTEMPT, parse_pipeline(text, "toy.yaml", toy_jobs.specs()), run.events())

    def told(self, kind: str) -> list[dict[str, object]]:
        return [dict(event.data) for event in read_events(self.folder / "events.jsonl") if event.kind == kind]

    def decision(self) -> object:
        return from_json(read_json(self.folder / FILE))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def reading(state: str, standing: Standing = Standing.CONVICTED, phase: str = "capturing") -> Reading:
    now = time.monotonic()
    return Reading(state=state, standing=standing, phase=phase, since=now - 5, at=now, title=f"it is in {state}")


def released(moved: bool, seen: list[object]) -> object:
    def release(lock: object, into: Path, *, waiting: object) -> Release:
        seen.append((lock, into, waiting))
        return Release("/cache/lock", moved, str(into / "lock") if moved else "", "for a test")

    return release


LOCK = SimpleNamespace(path=Path("/cache/lock"), stale=True, waiters=(ProcessId(5, 1, "boot"),))


async def test_a_lock_is_moved_and_what_goes_on_is_left_alone(world: World) -> None:
    seen: list[object] = []
    one = world.warden("{action: restart}")
    one.release = released(True, seen)  # type: ignore[assignment]
    one.on_reading(reading("stale_lock"))
    deciding = asyncio.ensure_future(one.on_conviction(reading("stale_lock"), SimpleNamespace(locks=(LOCK,))))
    for _ in range(1000):
        await asyncio.sleep(0.01)
        if seen:
            break
    one.on_reading(reading("compiling", Standing.HEALTHY))
    await deciding
    assert seen == [(LOCK, world.folder / "artifacts" / "locks", (5,))]
    assert world.decision() is None
    [remedy] = world.told("remedy")
    assert (remedy["step"], remedy["path"], remedy["released"]) == ("release_lock", "/cache/lock", True)


@pytest.mark.parametrize("moved", [True, False])
async def test_where_the_lock_was_not_it_the_stage_is_restarted(
    world: World, moved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warden, "RELEASED_S", 0.0)
    one = world.warden("{action: restart}")
    one.release = released(moved, [])  # type: ignore[assignment]
    one.on_reading(reading("stale_lock"))
    await one.on_conviction(reading("stale_lock"), SimpleNamespace(locks=(LOCK,)))
    made = world.decision()
    assert made is not None
    assert (made.action, made.attempt, made.stage) == ("restart", ATTEMPT, "use")  # type: ignore[attr-defined]


async def test_notify_moves_no_lock_and_decides_nothing(world: World) -> None:
    seen: list[object] = []
    one = world.warden("{action: notify}")
    one.release = released(True, seen)  # type: ignore[assignment]
    await one.on_conviction(reading("stale_lock"), SimpleNamespace(locks=(LOCK,)))
    assert (seen, world.decision()) == ([], None)
    assert [remedy["step"] for remedy in world.told("remedy")] == ["notify"]


async def test_bisecting_leaves_out_what_fits_engine_state_and_phase(world: World) -> None:
    one = world.warden("{action: restart, restarts: 0, bisect: true}")
    await one.on_conviction(reading("deadlock", phase="serving"), None)
    made = world.decision()
    assert made is not None
    assert made.rung == "custom-all-reduce"  # type: ignore[attr-defined]
    assert made.arguments == ("--disable-custom-all-reduce",)  # type: ignore[attr-defined]
    (world.folder / FILE).unlink()
    await world.warden("{action: restart, restarts: 0}").on_conviction(reading("deadlock"), None)
    assert world.decision().action == "give_up"  # type: ignore[attr-defined]


async def test_only_convictions_are_told_and_secrets_never(world: World) -> None:
    one = world.warden("{action: restart}")
    canary = "hf_" + "Canary" * 4

    def incident(severity: str, *, over: bool = False) -> Incident:
        return Incident(
            id="1", kind="deadlock", severity=severity, title=f"token {canary}", first=1.0, last=2.0, over=over
        )

    one.on_incident(incident("warn"), Path())
    one.on_incident(incident("info", over=True), Path())
    assert world.told("incident") == []
    one.on_incident(incident("error"), world.folder / "artifacts" / "incident-1")
    one.on_incident(incident("error"), world.folder / "artifacts" / "incident-1")
    one.on_incident(incident("info", over=True), Path())
    assert [(told.get("again"), told["over"]) for told in world.told("incident")] == [
        (None, False), (True, False), (True, True),
    ]  # fmt: skip
    await one.on_conviction(
        Reading(state="deadlock", standing=Standing.CONVICTED, since=0.0, at=1.0, title=f"at {canary}"), None
    )
    assert world.decision() is not None
    assert world.decision().incident == "1"  # type: ignore[attr-defined]
    for path in world.folder.rglob("*"):
        assert not path.is_file() or canary.encode() not in path.read_bytes()


async def test_a_full_disk_delays_what_is_told_and_decided_and_loses_none(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warden, "AGAIN_S", 0.01)
    one = world.warden("{action: restart}")
    one.attempt = identify(os.getpid()) or ATTEMPT
    tried, write, append = [], Decision.write, one.events.append

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def nearly_full(decision: Decision, run_dir: Path) -> None:
        tried.append(decision)
        if len(tried) < 3:
            full()
        write(decision, run_dir)

    monkeypatch.setattr(one.events, "append", full)
    now = time.time()
    incident = Incident(id="1", kind="deadlock", severity="error", title="it hangs", first=now, last=now)
    one.on_incident(incident, world.folder)
    one.on_reading(reading("deadlock"))
    assert world.told("incident") == []
    monkeypatch.setattr(one.events, "append", append)
    monkeypatch.setattr(Decision, "write", nearly_full)
    await one.on_conviction(reading("deadlock"), None)
    assert [told["id"] for told in world.told("incident")] == ["1"]
    assert len(tried) == 3
    assert world.decision() == tried[-1]
