"""Does a sweep measure every point in pairs, live through what dies and hangs, and go on where it was?

The servers are those of the reference engine around one tiny target, within this process; that real processes can be
killed and stopped is tried in tests/system.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from reference_tiny import VOCAB, MarkovDrafter, tiny_target

from eagle3ops.engines.client import EngineClient, EngineError, Sampling
from eagle3ops.engines.reference.drafting import SpecSettings, Speculator
from eagle3ops.engines.reference.engine import Engine
from eagle3ops.engines.reference.server import Server
from eagle3ops.engines.reference.worker import Worker
from eagle3ops.errors import Eagle3opsError
from eagle3ops.sweep.book import Book
from eagle3ops.sweep.halving import Halving
from eagle3ops.sweep.lane import Lane
from eagle3ops.sweep.outcome import outcome
from eagle3ops.sweep.points import Point, Setting
from eagle3ops.sweep.race import Race, Rules, Told

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

TARGET = tiny_target(depth_scale=0.35)
PROMPTS = [[1 + k, 2, 3 + k % 5] for k in range(12)]
POINTS = [Point(Setting(steps, 1, steps + 1), 1) for steps in (1, 2, 3, 4)] + [Point(Setting(3, 2, 6), 1)]
BASELINE = "baseline"


@dataclass
class Ended:
    """Stands for the process of a server."""

    returncode: int | None = None


@dataclass
class World:
    """Servers that do what a test wants, and how often each was started and asked."""

    faults: dict[str, list[str]] = field(default_factory=dict)
    """Label -> what goes wrong at each of its starts; after that it works."""
    starts: Counter[str] = field(default_factory=Counter)
    asked: Counter[str] = field(default_factory=Counter)
    up: Counter[str] = field(default_factory=Counter)
    """Per lane, now."""
    most: Counter[str] = field(default_factory=Counter)
    """Per lane, at any time."""
    said: list[str] = field(default_factory=list)
    deadline_s: float | None = None
    """For a start."""

    @asynccontextmanager
    async def open(self, setting: Setting | None, lane: Lane) -> AsyncIterator[EngineClient]:
        """One server."""
        label = BASELINE if setting is None else setting.label
        self.starts[label] += 1
        fault = (self.faults.get(label) or [""]).pop(0) if self.faults.get(label) else ""
        if fault == "refuses":
            raise EngineError(f"{label} cannot start here")
        if fault == "never ready":
            await asyncio.sleep(3600)
        shape = None if setting is None else SpecSettings(setting.steps, setting.topk, setting.draft_tokens)
        speculator = None if shape is None else Speculator(MarkovDrafter(TARGET), TARGET, shape, 8)
        worker = Worker(Engine(TARGET, speculator=speculator, stops=(VOCAB - 1,), max_running=8))
        worker.start()
        process = Ended()

        @web.middleware
        async def broken(request: web.Request, handler: Handler) -> web.StreamResponse:
            if request.path == "/generate":
                self.asked[label] += 1
                if fault == "hangs":
                    await asyncio.sleep(3600)
                if fault == "dies":
                    process.returncode = -9
                    assert request.transport is not None
                    request.transport.close()
            return await handler(request)

        app = Server(worker, None, model="tiny", context=512, info={"dtype": "float32"}, hidden=False).app()
        app.middlewares.append(broken)
        server = TestServer(app, handler_cancellation=True)
        await server.start_server()
        self.up[lane.name] += 1
        self.most[lane.name] = max(self.most[lane.name], self.up[lane.name])
        try:
            async with EngineClient(str(server.make_url("/"))) as client:
                client.process = process
                if fault == "dies idle":
                    process.returncode = -9
                yield client
        finally:
            self.up[lane.name] -= 1
            await server.close()
            worker.stop()

    def race(
        self, folder: Path, *, lanes: int = 1, room: int = 8, points: Sequence[Point] = POINTS, restarts: int = 3
    ) -> Race:
        """A sweep of few pairs."""
        return Race(
            points=points,
            default=POINTS[2],
            lanes=[Lane(f"GPU {k}", (), room, self.open, self.deadline_s) for k in range(lanes)],
            book=Book.open(folder),
            rules=Rules(
                halving=Halving(first=2, eta=2, rungs=2),
                final_pairs=3,
                sampling=Sampling(max_new_tokens=8, ignore_eos=True),
                warmup=1,
                # Short only where something hangs: a busy machine must not look like it.
                deadline_s=3.0 if any("hangs" in faults for faults in self.faults.values()) else 60.0,
                baseline_restarts=restarts,
            ),
            prompts=PROMPTS,
            told=Told(info=self.said.append, warn=self.said.append),
        )


def launch(race: Race) -> dict[Setting, str]:
    return {point.setting: f"serve {point.setting.label}" for point in race.points}


async def test_every_point_is_measured_beside_a_baseline_and_one_wins(tmp_path: Path) -> None:
    world = World()
    race = world.race(tmp_path)
    await race.run()
    found = outcome(race, [], launch(race))
    assert [row["rungs"] for row in sorted(found["points"], key=lambda row: -row["rungs"])] == [2, 2, 2, 1, 1]
    for row in race.book.measured.values():
        counts = {label: len(blocks) for label, blocks in row["blocks"].items()}
        assert BASELINE in counts
        assert len(set(counts.values())) == 1
        assert {tokens for blocks in row["blocks"].values() for tokens, _ in blocks} == {8}
    assert world.starts == Counter({BASELINE: 1} | {point.setting.label: 1 for point in POINTS})
    assert world.up == Counter({"GPU 0": 0})
    (won,) = found["winners"]
    assert won["launch_line"] == f"serve {won['setting']}"
    assert won["fresh_prompts"]
    assert not any("prompts that chose the point" in said for said in world.said)
    assert won["is_default"] or won["over_default"]["low"] <= won["over_default"]["value"]
    assert {row["state"] for row in found["points"]} == {"finished", "dropped"}
    assert any(row["front"] for row in found["points"])
    assert all(row["same_output"] == row["requests"] for row in found["points"])


async def test_lanes_share_the_points_and_each_has_a_baseline_of_its_own(tmp_path: Path) -> None:
    world = World()
    race = world.race(tmp_path, lanes=2, room=2)
    await race.run()
    assert {row["lane"] for row in race.book.measured.values()} == {"GPU 0", "GPU 1"}
    assert world.starts[BASELINE] == 2
    assert max(world.most.values()) <= 3
    assert sum(rung == "0" for _, rung in race.book.measured) == len(POINTS)


@pytest.mark.parametrize("fault", ["dies", "hangs", "refuses", "dies idle"])
async def test_a_point_that_fails_once_is_tried_again(tmp_path: Path, fault: str) -> None:
    label = POINTS[1].setting.label
    world = World(faults={label: [fault]})
    race = world.race(tmp_path)
    await race.run()
    assert race.given_up(POINTS[1]) is None
    assert (POINTS[1].label, "0") in race.book.measured
    assert world.starts[label] == 2
    assert len(race.book.failures) == 1
    assert sum("failed on GPU 0, it is tried again" in said for said in world.said) == 1


@pytest.mark.parametrize("fault", ["dies", "hangs", "refuses"])
async def test_a_point_that_fails_twice_is_left_out_with_its_reason_and_log(tmp_path: Path, fault: str) -> None:
    label = POINTS[1].setting.label
    world = World(faults={label: [fault] * 9})
    race = world.race(tmp_path)
    await race.run()
    found = outcome(race, [], launch(race))
    (row,) = [row for row in found["points"] if row["label"] == POINTS[1].label]
    assert row["state"] == "failed"
    assert {"dies": "disconnected", "hangs": "no answer within 3 s", "refuses": "cannot start here"}[fault] in (
        row["why"].lower() if fault == "dies" else row["why"]
    )
    assert world.starts[label] == 2
    assert all(failure["log"] == "logs/engine-sweep-gpu-0-2-1-3.log" for failure in race.book.failures)
    assert found["winners"]
    assert sum(rung == "0" for _, rung in race.book.measured) == len(POINTS) - 1


@pytest.mark.parametrize("fault", ["dies", "hangs", "refuses", "dies idle"])
async def test_a_baseline_that_fails_is_started_again_and_costs_no_point(tmp_path: Path, fault: str) -> None:
    world = World(faults={BASELINE: [fault]})
    race = world.race(tmp_path)
    await race.run()
    assert world.starts[BASELINE] == 2
    assert sum(rung == "0" for _, rung in race.book.measured) == len(POINTS)
    assert all(race.given_up(point) is None for point in POINTS)


async def test_a_server_that_never_becomes_ready_is_given_up(tmp_path: Path) -> None:
    world = World(faults={POINTS[1].setting.label: ["never ready"] * 9}, deadline_s=5.0)
    race = world.race(tmp_path, points=POINTS[:2])
    await race.run()
    assert race.given_up(POINTS[1]) == "its server was not ready within 5 s"
    assert world.starts[POINTS[1].setting.label] == 2
    assert race.final(1) is not None


async def test_a_baseline_that_always_fails_ends_the_sweep(tmp_path: Path) -> None:
    world = World(faults={BASELINE: ["refuses"] * 9})
    with pytest.raises(Eagle3opsError, match="the baseline on GPU 0 failed 3 times"):
        await world.race(tmp_path, restarts=2).run()
    assert world.up == Counter({"GPU 0": 0})


async def test_points_that_all_fail_end_the_sweep(tmp_path: Path) -> None:
    world = World(faults={point.setting.label: ["refuses"] * 9 for point in POINTS})
    with pytest.raises(Eagle3opsError, match="no point could be measured"):
        await world.race(tmp_path).run()


async def test_what_was_measured_is_not_measured_again(tmp_path: Path) -> None:
    first = World()
    race = first.race(tmp_path)
    work = asyncio.create_task(race.run())
    while len(race.book.measured) < 3:  # noqa: ASYNC110  (the sweep tells nobody how far it is but its book)
        await asyncio.sleep(0.005)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert first.up == Counter({"GPU 0": 0})
    kept = dict(Book.open(tmp_path).measured)
    assert len(kept) >= 3
    second = World()
    again = second.race(tmp_path)
    await again.run()
    assert {key: again.book.measured[key] for key in kept} == kept
    # Nothing was asked again but what a fresh server is warmed up with.
    rung_0 = [point for point in POINTS if (point.label, "0") not in kept]
    third = World()
    await third.race(tmp_path).run()
    assert third.asked == Counter()
    assert third.starts == Counter()
    assert all(second.starts[point.setting.label] == 1 for point in rung_0)


async def test_concurrencies_race_by_themselves_on_one_server(tmp_path: Path) -> None:
    points = [Point(point.setting, concurrency) for point in POINTS[:3] for concurrency in (1, 3)]
    world = World()
    race = world.race(tmp_path, points=points)
    await race.run()
    found = outcome(race, [], launch(race))
    assert [won["concurrency"] for won in found["winners"]] == [1, 3]
    assert all(world.starts[point.setting.label] == 1 for point in points)
    row = race.book.measured[(points[1].label, "0")]
    assert row["requests"] == 2 * 2 * 3  # pairs, prompts for each in flight, in flight
    # 12 prompts are enough at 1, not at 3: the final is then not on fresh ones, and that is said.
    assert [won["fresh_prompts"] for won in found["winners"]] == [True, False]
    (told,) = [said for said in world.said if "prompts that chose the point" in said]
    assert "at concurrency 3" in told
    assert "12 are held out, 54 would be needed" in told
