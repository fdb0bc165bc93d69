"""Does one disk that never answers hold up only those who ask for what is on it?"""

import asyncio
import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from agent_world import AgentWorld

from eagle3ops.errors import Eagle3opsError
from eagle3ops.hosts.agent.workers import Workers
from eagle3ops.hosts.client import AgentClient
from eagle3ops.hosts.local import LocalTransport


async def test_calls_take_turns_until_they_take_long() -> None:
    workers = Workers(at_once=2, slow_s=0.2, most=5)
    free, order = threading.Event(), []

    def wait(number: int) -> int:
        order.append(number)
        free.wait()
        return number

    hung = [asyncio.ensure_future(workers.run(wait, number)) for number in range(4)]
    await asyncio.sleep(0.05)
    assert order == [0, 1]
    # The two that hang have given their turns away; and the next two, when they have hung as long.
    assert await workers.run(lambda: "through") == "through"
    assert order == [0, 1, 2, 3]
    more = asyncio.ensure_future(workers.run(wait, 4))
    while len(order) < 5:  # noqa: ASYNC110  (of a thread)
        await asyncio.sleep(0.01)
    with pytest.raises(Eagle3opsError, match="5 requests wait for a disk that does not answer"):
        await workers.run(lambda: None)
    free.set()
    assert await asyncio.gather(*hung, more) == [0, 1, 2, 3, 4]
    assert await workers.run(lambda: "again") == "again"


async def test_what_a_call_raises_is_raised_and_who_leaves_takes_no_turn_with_them() -> None:
    workers = Workers(at_once=1, slow_s=60.0)
    with pytest.raises(ZeroDivisionError):
        await workers.run(lambda: 1 / 0)
    free = threading.Event()
    left = asyncio.ensure_future(workers.run(free.wait))
    await asyncio.sleep(0.05)
    left.cancel()
    next_one = asyncio.ensure_future(workers.run(lambda: "mine"))
    await asyncio.sleep(0.05)
    assert not next_one.done(), "the thread of the one that left is still at it"
    free.set()
    assert await next_one == "mine"


DEAD_MOUNT = """
import os, struct, sys
sys.path[:0] = sys.argv[3:]
from pathlib import Path
from eagle3ops.drills.dead_mount import mount, private_mounts
device = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={device},rootmode=40000,user_id=0,group_id=0"
if private_mounts() or mount("dead", Path(sys.argv[1]), "fuse", options):
    sys.exit("not permitted")
if os.fork() == 0:
    # Takes part in the beginning, then answers nothing any more.
    code, unique = struct.unpack_from("<IQ", os.read(device, 1 << 20), 4)
    body = struct.pack("<IIIIHHIIHHI28x", 7, 31, 1 << 17, 0, 12, 9, 1 << 17, 1, 32, 0, 0)
    os.write(device, struct.pack("<IiQ", 16 + len(body), 0, unique) + body)
    Path(sys.argv[2]).write_text(str(os.getpid()))
    while True:
        os.read(device, 1 << 20)
os.close(device)
os.execv(sys.executable, [sys.executable, "-m", "eagle3ops", "agent"])
"""


@pytest.mark.skipif(
    os.geteuid() != 0 or not os.access("/dev/fuse", os.W_OK), reason="needs a file system of its own (/dev/fuse, root)"
)
async def test_a_root_on_a_dead_mount_stops_no_other(agents: AgentWorld, tmp_path: Path) -> None:
    dead, server = tmp_path / "dead", tmp_path / "server.pid"
    dead.mkdir()
    run = agents.made_run()
    (run.logs / "train.log").write_text("step 1\nstep 2\n")
    command = [sys.executable, "-c", DEAD_MOUNT, str(dead), str(server), *sys.path]
    transport = LocalTransport(environment=agents.environment, command=command)
    try:
        async with await AgentClient.connect(transport) as client:
            ask = {"run": "last", "log": "train.log"}
            hung = [asyncio.ensure_future(client.call("log.lines", root=str(dead), **ask)) for _ in range(40)]
            hung += [asyncio.ensure_future(client.call("runs.list", root=str(dead / "x"))) for _ in range(8)]
            # Eight at a time, a second each: those that ask for something else come through in between.
            assert (await client.call("ping"))["time"] > 0
            for _ in range(3):
                answer = await client.call("log.lines", **ask)
                assert answer["lines"] == ["step 1", "step 2"]
            assert not any(one.done() for one in hung)
            os.kill(int(server.read_text()), signal.SIGKILL)
            # Once the mount fails instead of hanging, each is told so.
            for one in await asyncio.gather(*hung, return_exceptions=True):
                assert isinstance(one, Eagle3opsError | dict)
    finally:
        with suppress(OSError, ValueError):
            os.kill(int(server.read_text()), signal.SIGKILL)
