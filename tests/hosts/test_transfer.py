"""Does a file arrive whole and only whole, however often the way to the host ends?"""

import asyncio
import base64
import hashlib
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from agent_world import AgentWorld
from hypothesis import given, settings
from hypothesis import strategies as st
from ssh_person import reach
from sshd_world import Sshd, SshWorld

from eagle3ops.errors import Eagle3opsError, Refused, RequestError
from eagle3ops.hosts.agent import ops_files
from eagle3ops.hosts.agent.logs import LineIndexes
from eagle3ops.hosts.agent.operation import InThread, Surroundings
from eagle3ops.hosts.client import AgentClient, ConnectionLost
from eagle3ops.hosts.ssh.transport import Limits
from eagle3ops.hosts.transfer import Transferred, get, put
from eagle3ops.operations import OPERATIONS


class Direct:
    """The ops, without an agent in between."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.asked: list[str] = []

    async def call(self, op: str, /, **args: Any) -> dict[str, Any]:
        self.asked.append(op)
        operation = OPERATIONS[op]

        async def in_thread(function: Any, *rest: Any, **more: Any) -> Any:
            return function(*rest, **more)

        here = Surroundings(self.root, cast(InThread, in_thread), LineIndexes(), [])
        answer: dict[str, Any] = operation.call(here, **operation.check(args))
        return answer


def made(path: Path, size: int, seed: int = 1) -> Path:
    path.write_bytes(random.Random(seed).randbytes(size))
    return path


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def parts(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.part-*"))


async def interrupted(
    agents: AgentWorld, upwards: bool, local: Path, remote: str, size: int, chunk: int, times: int
) -> Transferred:
    """Copy, and kill the agent whenever another part of the way is done."""
    for attempt in range(1, times + 1):
        client = await AgentClient.connect(agents.transport())
        limit = size * attempt // (times + 1)

        left = [client.hello.pid]

        def kill(done: int, total: int, left: list[int] = left, limit: int = limit) -> None:
            assert total == size
            if done >= limit and left:
                os.kill(left.pop(), signal.SIGKILL)

        copy = (
            put(client, local, remote, kill, chunk=chunk) if upwards else get(client, remote, local, kill, chunk=chunk)
        )
        with pytest.raises(ConnectionLost):
            await copy
        assert left == []
        await client.close()
    async with await AgentClient.connect(agents.transport()) as client:
        told: list[tuple[int, int]] = []
        if upwards:
            found = await put(client, local, remote, lambda *now: told.append(now), chunk=chunk)
        else:
            found = await get(client, remote, local, lambda *now: told.append(now), chunk=chunk)
        assert told == sorted(told)
        assert told[-1] == (size, size)
        assert told[0] == (found.resumed_at, size)
        assert found.resumed_at >= size * times // (times + 1)
        return found


@pytest.mark.parametrize("size", [20 << 20, pytest.param(1 << 30, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
async def test_copies_that_are_interrupted_three_times_arrive(agents: AgentWorld, tmp_path: Path, size: int) -> None:
    chunk = min(1 << 20, size // 40)
    source = tmp_path / "source.bin"
    with source.open("wb") as file:
        for _ in range(0, size, 1 << 20):
            file.write(os.urandom(1 << 20))
    sha256 = sha256_of(source)
    up = await interrupted(agents, True, source, "copies/there.bin", size, chunk, 3)
    there = agents.root / "copies/there.bin"
    assert (up.path, up.size, up.sha256) == (str(there), size, sha256)
    assert sha256_of(there) == sha256
    back = tmp_path / "back.bin"
    down = await interrupted(agents, False, back, "copies/there.bin", size, chunk, 3)
    assert down.sha256 == sha256
    assert sha256_of(back) == sha256
    assert parts(tmp_path) == []


def frozen(server: Sshd, client: AgentClient) -> None:
    """The line is dead and says nothing: only keepalives tell."""
    assert server.signal_sessions(signal.SIGSTOP)


def cut(server: Sshd, client: AgentClient) -> None:
    """The SSH session dies, with the agent under it."""
    assert server.signal_sessions(signal.SIGKILL)


def orphaned(server: Sshd, client: AgentClient) -> None:
    """The agent dies, the connection stands."""
    os.kill(client.hello.pid, signal.SIGKILL)


@pytest.mark.parametrize("size", [20 << 20, pytest.param(1 << 30, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
async def test_over_ssh_copies_go_on_after_agent_session_and_line(
    ssh_world: SshWorld, tmp_path: Path, size: int
) -> None:
    server = ssh_world.server(environment={"PYTHONPATH": os.environ.get("PYTHONPATH", "")})
    ssh_world.trust(server)
    limits = Limits(keepalive=1.0, keepalive_misses=2)
    source, back = tmp_path / "source.bin", tmp_path / "back.bin"
    with source.open("wb") as file:
        for _ in range(0, size, 1 << 20):
            file.write(os.urandom(1 << 20))
    sha256 = sha256_of(source)
    chunk = min(1 << 20, size // 40)

    async def copy(client: AgentClient, upwards: bool, told: Callable[[int, int], None]) -> Transferred:
        there = "~/copies/there.bin"
        if upwards:
            return await put(client, source, there, told, chunk=chunk)
        return await get(client, there, back, told, chunk=chunk)

    for upwards in (True, False):
        for number, harm in enumerate((orphaned, cut, frozen), 1):
            client = await AgentClient.connect(reach(server.url(), limits=limits))
            left = [harm]

            def told(done: int, total: int, left: list[Any] = left, number: int = number, far: Any = client) -> None:
                if done >= total * number // 4 and left:
                    left.pop()(server, far)

            with pytest.raises(ConnectionLost):
                await copy(client, upwards, told)
            assert left == []
            server.signal_sessions(signal.SIGKILL)
            await client.close()
        async with await AgentClient.connect(reach(server.url(), limits=limits)) as client:
            found = await copy(client, upwards, lambda *_: None)
        assert found.resumed_at >= size * 3 // 4
        assert (found.size, found.sha256) == (size, sha256)
    there = server.home / "copies" / "there.bin"
    assert sha256_of(there) == sha256_of(back) == sha256
    assert parts(tmp_path) == []


@settings(max_examples=30)
@given(st.integers(0, 300), st.integers(1, 64), st.integers(1, 5), st.binary(max_size=200))
async def test_whatever_lay_there_before_the_right_file_arrives(
    tmp_path_factory: pytest.TempPathFactory, size: int, chunk: int, in_flight: int, lying_there: bytes
) -> None:
    folder = tmp_path_factory.mktemp("copy")
    source = made(folder / "source", size)
    sha256 = hashlib.sha256(source.read_bytes()).hexdigest()
    (folder / f"there.part-{sha256[:16]}").write_bytes(lying_there)
    (folder / f"back.part-{sha256[:16]}").write_bytes(lying_there)
    up = await put(Direct(folder), source, "there", chunk=chunk, in_flight=in_flight)
    down = await get(Direct(folder), "there", folder / "back", chunk=chunk, in_flight=in_flight)
    assert (folder / "back").read_bytes() == (folder / "there").read_bytes() == source.read_bytes()
    right = source.read_bytes().startswith(lying_there[:size])
    assert up.resumed_at == down.resumed_at == (min(len(lying_there), size) if right else 0)
    assert parts(folder) == []


async def test_a_corrupted_beginning_is_noticed_and_sent_again(tmp_path: Path) -> None:
    host = Direct(tmp_path / "host")
    source = made(tmp_path / "source", 100_000)
    content = bytearray(source.read_bytes()[:70_000])
    content[123] ^= 1
    host.root.mkdir()
    part = ops_files.part_of(host.root / "there", hashlib.sha256(source.read_bytes()).hexdigest())
    part.write_bytes(content)
    assert (await put(host, source, "there")).resumed_at == 0
    assert (host.root / "there").read_bytes() == source.read_bytes()


async def test_a_chunk_that_was_lost_on_the_way_is_sent_again(tmp_path: Path) -> None:
    class Losing(Direct):
        async def call(self, op: str, /, **args: Any) -> dict[str, Any]:
            if op == "file.write" and args["offset"] == 2000 and self.asked.count("file.write") < 9:
                # As if it had been overtaken: it is there last.
                await asyncio.sleep(0.01)
            return await super().call(op, **args)

    source = made(tmp_path / "source", 10_000)
    host = Losing(tmp_path)
    await put(host, source, "there", chunk=1000, in_flight=4)
    assert (tmp_path / "there").read_bytes() == source.read_bytes()
    assert host.asked.count("file.write") > 10


async def test_no_chunk_overtakes_another(agents: AgentWorld, tmp_path: Path) -> None:
    class Noting:
        gaps = 0

        async def call(self, op: str, /, **args: Any) -> dict[str, Any]:
            answer = await client.call(op, **args)
            self.gaps += bool(answer.get("gap"))
            return answer

    noting, source = Noting(), made(tmp_path / "source", 500_000)
    async with await AgentClient.connect(agents.transport()) as client:
        await put(noting, source, "there", chunk=1000, in_flight=16)
    assert noting.gaps == 0
    assert (agents.root / "there").read_bytes() == source.read_bytes()


async def test_another_file_is_replaced_only_when_that_is_asked_for(tmp_path: Path) -> None:
    host, source = Direct(tmp_path / "host"), made(tmp_path / "source", 1000)
    there = tmp_path / "host" / "there"
    await put(host, source, "there", mode=0o600)
    assert there.stat().st_mode & 0o777 == 0o600
    inode = there.stat().st_ino
    # The same content stands there already: nothing is sent, and nothing is asked.
    assert (await put(host, source, "there")).resumed_at == 1000
    assert there.stat().st_ino == inode
    other = made(tmp_path / "other", 1000, seed=2)
    with pytest.raises(RequestError, match="another file stands there"):
        await put(host, other, "there")
    await put(host, other, "there", overwrite=True)
    assert there.read_bytes() == other.read_bytes()
    with pytest.raises(RequestError, match="another file stands there"):
        await get(host, "there", source)
    assert (await get(host, "there", source, overwrite=True)).size == 1000
    assert source.read_bytes() == other.read_bytes()
    assert (await get(host, "there", source)).resumed_at == 1000


async def test_a_file_that_appears_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    host, source = Direct(tmp_path), made(tmp_path / "source", 1000)

    def appear(done: int, total: int) -> None:
        (tmp_path / "there").write_text("mine")

    with pytest.raises(RequestError, match="another file stands there"):
        await put(host, source, "there", appear)
    assert (tmp_path / "there").read_text() == "mine"


@pytest.mark.parametrize("change", ["shorter", "other"])
async def test_a_file_that_changes_on_the_way_is_not_passed_off_as_whole(tmp_path: Path, change: str) -> None:
    (tmp_path / "host").mkdir()
    host, source = Direct(tmp_path / "host"), made(tmp_path / "source", 10_000)
    changed = False

    def alter(path: Path) -> None:
        nonlocal changed
        if not changed:
            changed = True
            with path.open("r+b") as file:
                if change == "shorter":
                    file.truncate(3000)
                else:
                    file.seek(9000)
                    file.write(b"changed")

    with pytest.raises(Eagle3opsError, match=r"became shorter|is not what was to be sent"):
        await put(host, source, "there", lambda *_: alter(source), chunk=1000, in_flight=2)
    assert not (tmp_path / "host" / "there").exists()
    made(tmp_path / "host" / "far", 10_000)
    changed = False
    with pytest.raises(Eagle3opsError, match=r"became shorter|is not what was to be sent"):
        await get(host, "far", tmp_path / "back", lambda *_: alter(tmp_path / "host" / "far"), chunk=1000, in_flight=2)
    assert not (tmp_path / "back").exists()


async def test_the_answer_to_a_commit_may_be_lost(tmp_path: Path) -> None:
    host, content = Direct(tmp_path), b"content"
    where = {"path": "x", "sha256": hashlib.sha256(content).hexdigest()}
    await host.call("file.begin", **where, size=7)
    for _ in range(2):
        await host.call("file.write", **where, offset=0, data=base64.b64encode(content).decode())
    with pytest.raises(RequestError, match="has 7 bytes, not 8"):
        await host.call("file.commit", **where, size=8)
    first = await host.call("file.commit", **where, size=7)
    assert await host.call("file.commit", **where, size=7) == first
    assert (await host.call("file.begin", **where, size=7))["done"]
    assert (tmp_path / "x").read_bytes() == content


async def test_what_does_not_fit_is_refused_with_numbers(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"1000000000000000 bytes are to be written, \d+ are free"):
        await Direct(tmp_path).call("file.begin", path="x", size=10**15, sha256="a" * 64)


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("file.begin", {"path": "", "size": 1, "sha256": "a" * 64}, "the path is empty"),
    ("file.begin", {"path": "x", "size": -1, "sha256": "a" * 64}, "size is not negative"),
    ("file.begin", {"path": "x", "size": 1, "sha256": "../../x"}, "64 lower-case hex digits"),
    ("file.begin", {"path": "folder", "size": 1, "sha256": "a" * 64}, "a folder stands there"),
    ("file.begin", {"path": "file/x", "size": 1, "sha256": "a" * 64}, "file"),
    ("file.begin", {"path": "x" * 300, "size": 1, "sha256": "a" * 64}, "name too long"),
    ("file.begin", {"path": "~nosuchuser/x", "size": 1, "sha256": "a" * 64}, "no such user"),
    ("file.write", {"path": "x", "sha256": "a" * 64, "offset": 0, "data": ""}, "was not begun"),
    ("file.write", {"path": "x", "sha256": "a" * 64, "offset": 0, "data": "!!!!"}, "not base64"),
    ("file.write", {"path": "x", "sha256": "a" * 64, "offset": 0, "data": "YQ="}, "not base64"),
    ("file.write", {"path": "x", "sha256": "a" * 64, "offset": -1, "data": ""}, "offset is not negative"),
    ("file.commit", {"path": "x", "sha256": "a" * 64, "size": 1}, "was not begun"),
    ("file.commit", {"path": "x", "sha256": "a" * 64, "size": 1, "mode": 0o7777}, "mode is between"),
    ("file.read", {"path": "x", "offset": 0}, "No such file"),
    ("file.read", {"path": "folder", "offset": 0}, "not a file"),
    ("file.read", {"path": "fifo", "offset": 0}, "not a file"),
    ("file.read", {"path": "file", "offset": 0, "max_bytes": 0}, "max_bytes"),
    ("file.stat", {"path": "folder", "sha256": True}, "not a file"),
]


@pytest.mark.parametrize(("op", "args", "reason"), WRONG)
async def test_wrong_requests_are_explained(tmp_path: Path, op: str, args: dict[str, Any], reason: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("x")
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(Eagle3opsError, match=f"(?i){reason}"):
        await Direct(tmp_path).call(op, **args)


async def test_what_is_missing_or_no_file_is_not_copied(tmp_path: Path) -> None:
    host = Direct(tmp_path)
    with pytest.raises(RequestError, match="no such file"):
        await put(host, tmp_path / "none", "x")
    with pytest.raises(RequestError, match="not a file"):
        await put(host, tmp_path, "x")
    with pytest.raises(RequestError, match="no such file"):
        await get(host, "none", tmp_path / "x")
    with pytest.raises(RequestError, match="not a file"):
        await get(host, str(tmp_path), tmp_path / "x")
    assert (await host.call("file.stat", path=str(tmp_path)))["kind"] == "folder"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
async def test_a_disk_that_fills_up_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = made(tmp_path / "source", 10_000)
    sha256 = hashlib.sha256(source.read_bytes()).hexdigest()
    host = Direct(tmp_path)
    await host.call("file.begin", path="there", size=10_000, sha256=sha256)
    real = os.open
    monkeypatch.setattr(
        os,
        "open",
        lambda path, flags, *mode: real("/dev/full", os.O_RDWR) if ".part-" in str(path) else real(path, flags, *mode),
    )
    with pytest.raises(Eagle3opsError, match="there: No space left on device") as caught:
        await host.call("file.write", path="there", sha256=sha256, offset=0, data="YWJj")
    assert "goes on where it stopped" in str(caught.value.remedy)
