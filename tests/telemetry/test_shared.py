"""One sampler however many watch: real processes, really killed."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from eagle3ops.errors import RequestError
from eagle3ops.telemetry import processes, shared
from eagle3ops.telemetry.processes import RUN_MARK
from eagle3ops.telemetry.runtime import Lock, TelemetryUnavailable, anybody_holds, is_held, last_words, runtime_folder
from eagle3ops.telemetry.sampler_process import Feed
from eagle3ops.telemetry.shared import watch

pytestmark = pytest.mark.skipif(not processes.available(), reason="needs a procfs")

PATIENCE_S = 60.0

WATCHER = """
import asyncio
from contextlib import aclosing
from eagle3ops.telemetry.shared import watch
async def main():
    async with aclosing(watch()) as feed:
        async for sample in feed:
            print(sample["n"], flush=True)
asyncio.run(main())
"""


def samplers(runtime: Path) -> list[psutil.Process]:
    """Sampler processes of this folder."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if "eagle3ops.telemetry.sampler_process" in process.cmdline() and str(runtime) in " ".join(
                process.cmdline()
            ):
                found.append(process)
    return found


async def until(look: Callable[[], Any]) -> Any:
    """What `look` finds once it finds something."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if found := look():
                return found
            await asyncio.sleep(0.05)


@pytest.fixture
async def ended(runtime: Path) -> AsyncIterator[Path]:
    """The runtime folder; what samples there is ended after the test."""
    yield runtime
    for process in samplers(runtime):
        with suppress(psutil.NoSuchProcess):
            process.kill()


def pid_of(runtime: Path) -> int:
    return int(last_words(runtime / "telemetry-1" / "sampler.lock"))


def start_watcher() -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", WATCHER], stdout=subprocess.PIPE)


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system of its own, on `folder`."""
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", folder], check=False).returncode:
        pytest.skip("no mounts here")
    try:
        yield folder
    finally:
        for process in samplers(folder):
            process.kill()
        subprocess.run(["umount", "-l", folder], check=True)


def fill(path: Path) -> None:
    """Leave nothing of the disk."""
    with suppress(OSError), path.open("wb", buffering=0) as filler:
        while True:
            filler.write(b"x" * 4096)


async def test_five_watchers_one_sampler_and_none_when_they_are_killed(ended: Path) -> None:
    watchers = [start_watcher() for _ in range(5)]
    try:
        for watcher in watchers:
            assert watcher.stdout is not None
            first = await asyncio.to_thread(watcher.stdout.readline)
            assert int(first) >= 0
        (sampler,) = samplers(ended)
        assert sampler.pid == pid_of(ended)
        assert sampler.ppid() not in [watcher.pid for watcher in watchers]
        for watcher in watchers[:4]:
            watcher.send_signal(signal.SIGKILL)
        last = watchers[4].stdout
        assert last is not None
        for _ in range(8):
            await asyncio.to_thread(last.readline)
        assert samplers(ended) == [sampler], "one is still watching"
    finally:
        for watcher in watchers:
            watcher.kill()
            watcher.wait()
            if watcher.stdout is not None:
                watcher.stdout.close()
    await until(lambda: not sampler.is_running())
    assert not is_held(ended / "telemetry-1" / "sampler.lock")
    assert last_words(ended / "telemetry-1" / "sampler.log") == ""


async def test_a_killed_sampler_is_replaced_and_nobody_notices(ended: Path) -> None:
    async def follow() -> list[tuple[int, int]]:
        seen: list[tuple[int, int]] = []
        async with aclosing(watch()) as feed:
            async for sample in feed:
                seen.append((pid_of(ended), sample["n"]))
                killed = {pid for pid, _ in seen}
                if len(killed) == 3 and seen[-1][1] >= 2:
                    return seen
                if len(killed) < 3 and sample["n"] >= 2:
                    with suppress(ProcessLookupError):
                        os.kill(pid_of(ended), signal.SIGKILL)
        return seen

    async with asyncio.timeout(PATIENCE_S):
        one, two = await asyncio.gather(follow(), follow())
    assert len({pid for pid, _ in one}) == 3
    assert len({pid for pid, _ in two}) >= 2


async def test_who_comes_later_starts_with_the_newest_sample(ended: Path) -> None:
    async with aclosing(watch()) as feed:
        async for sample in feed:
            if sample["n"] == 3:
                async with aclosing(watch()) as late:
                    first = await anext(late)
                assert first["n"] == 3
                break


async def test_a_fast_watcher_makes_it_faster_and_a_slow_one_hears_less(ended: Path) -> None:
    async def take(hz: float, count: int) -> list[dict[str, Any]]:
        async with aclosing(watch(hz)) as feed:
            return [sample async for _, sample in _numbered(feed, count)]

    fast, slow = await asyncio.gather(take(10, 15), take(1, 2))
    assert fast[-1]["interval_s"] == 0.1
    assert fast[-1]["n"] - fast[-6]["n"] == 5
    assert slow[1]["mono"] - slow[0]["mono"] >= 0.75
    assert not anybody_holds(ended / "telemetry-1" / "fast.lock")
    with pytest.raises(RequestError):
        await anext(watch(0))
    with pytest.raises(RequestError):
        await anext(watch(11))


async def _numbered(feed: AsyncIterator[dict[str, Any]], count: int) -> AsyncIterator[tuple[int, dict[str, Any]]]:
    number = 0
    async for sample in feed:
        yield number, sample
        number += 1
        if number == count:
            return


async def test_the_sampler_does_not_belong_to_the_run_that_started_it(
    ended: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RUN_MARK, "/nowhere/runs/mine")
    async with aclosing(watch()) as feed:
        await anext(feed)
        pid = pid_of(ended)
        assert RUN_MARK not in psutil.Process(pid).environ()
        assert os.getsid(pid) == pid
        sample = await anext(feed)
        assert pid not in [process["pid"] for process in sample["procs"]]


async def test_a_stalled_sampler_is_named(ended: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "SILENT_S", 1.0)
    async with aclosing(watch()) as feed:
        await anext(feed)
        pid = pid_of(ended)
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(TelemetryUnavailable, match=f"pid {pid}.*silent"):
                await _forever(feed)
        finally:
            os.kill(pid, signal.SIGCONT)


async def _forever(feed: AsyncIterator[dict[str, Any]]) -> None:
    async for _ in feed:
        pass


async def test_a_sampler_that_cannot_start_is_named(
    ended: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "broken").mkdir()
    shadow = tmp_path / "broken" / "sitecustomize.py"
    shadow.write_text(
        "import sys\nif 'eagle3ops.telemetry.sampler_process' in sys.orig_argv: raise SystemExit('no way')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "broken"))
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(TelemetryUnavailable, match=r"before its first sample.*no way") as failure:
            await anext(watch())
    assert "sampler.log" in (failure.value.remedy or "")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a file system of its own")
async def test_a_full_runtime_folder_is_named(ended: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "SILENT_S", 2.0)
    with small_disk(ended, "400k"):
        runtime_folder()
        fill(ended / "filler")
        async with asyncio.timeout(PATIENCE_S), aclosing(watch()) as feed:
            with pytest.raises(TelemetryUnavailable, match="no space left"):
                await anext(feed)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a file system of its own")
async def test_a_folder_that_fills_up_later_costs_samples_and_nothing_else(ended: Path) -> None:
    with small_disk(ended, "400k"):
        async with asyncio.timeout(PATIENCE_S), aclosing(watch(10)) as feed:
            first = await anext(feed)
            fill(ended / "filler")
            later = [sample["n"] async for _, sample in _numbered(feed, 20)]
    assert first["n"] < later[0]
    assert later == sorted(set(later))


async def test_a_folder_that_is_taken_away_is_named(ended: Path) -> None:
    async with asyncio.timeout(PATIENCE_S), aclosing(watch()) as feed:
        await anext(feed)
        (sampler,) = samplers(ended)
        sampler.kill()
        shutil.rmtree(ended / "telemetry-1")
        with pytest.raises(TelemetryUnavailable, match="cannot be used for telemetry"):
            await _forever(feed)


def test_the_feed_is_bounded_and_nothing_is_lost_on_the_way(tmp_path: Path) -> None:
    feed, tail = Feed(tmp_path, limit=2000), shared._Tail(tmp_path / "feed.jsonl")
    seen = []
    for n in range(200):
        feed.append({"n": n, "mono": float(n), "interval_s": 0.5, "text": "x" * 100})
        if n % 7 == 0:
            while (sample := tail.next()) is not None:
                seen.append(sample["n"])
    while (sample := tail.next()) is not None:
        seen.append(sample["n"])
    # The first was there before the reader, and is old.
    assert seen == list(range(1, 200))
    assert feed.path.stat().st_size + feed.old.stat().st_size < 2 * 2200
    feed.close()
    tail.close()


def test_torn_and_foreign_lines_in_the_feed_are_passed_over(tmp_path: Path) -> None:
    good = json.dumps({"mono": 1.0, "interval_s": 0.5}).encode()
    path = tmp_path / "feed.jsonl"
    path.write_bytes(b"")
    tail = shared._Tail(path)
    assert tail.next() is None
    with path.open("ab", buffering=0) as file:
        file.write(b"\xff\x00garbage\n[1]\n{}\n" + good + b"\n" + good[:5])
        assert tail.next() == {"mono": 1.0, "interval_s": 0.5}
        assert tail.next() is None
        file.write(good[5:] + b"\n")
        assert tail.next() == {"mono": 1.0, "interval_s": 0.5}
    tail.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a file system of its own")
def test_the_feed_goes_on_after_a_full_disk(tmp_path: Path) -> None:
    with small_disk(tmp_path, "64k"):
        feed = Feed(tmp_path, limit=1 << 30)
        fill(tmp_path / "filler")
        feed.append({"n": 0})
        assert feed.lost == 1
        (tmp_path / "filler").unlink()
        # More than the disk holds: old samples make room for new ones, and no line is torn.
        for n in range(1, 100):
            feed.append({"n": n, "text": "x" * 1000})
        lines = feed.path.read_bytes().splitlines()
        assert json.loads(lines[-1])["n"] == 99
        assert all(json.loads(line)["lost"] == 1 for line in lines)
        feed.close()


def test_a_slow_watcher_misses_no_event() -> None:
    missed: list[dict[str, Any]] = [{"xids": [{"xid": 1}], "late": True}, {"xids": []}]
    found = shared._with_missed({"n": 2, "xids": [{"xid": 2}], "late": False}, missed)
    assert found == {"n": 2, "xids": [{"xid": 1}, {"xid": 2}], "late": True}
    assert shared._with_missed({"xids": [], "late": False}, []) == {"xids": [], "late": False}


def test_the_usual_folder_is_private(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("EAGLE3OPS_RUNTIME", raising=False)
    monkeypatch.setattr("platformdirs.user_runtime_dir", lambda *_, **__: str(tmp_path / "runtime-7" / "eagle3ops"))
    assert runtime_folder().stat().st_mode & 0o777 == 0o700
    (tmp_path / "runtime-7").chmod(0o777)
    with pytest.raises(TelemetryUnavailable, match="runtime-7: can be written by other users"):
        runtime_folder()


def test_a_folder_that_others_could_write_to_is_refused(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = runtime_folder()
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o777)
    with pytest.raises(TelemetryUnavailable, match="can be written by other users"):
        runtime_folder()
    folder.chmod(0o750)
    with pytest.raises(TelemetryUnavailable, match="can be read by other users"):
        runtime_folder()
    folder.rmdir()
    folder.symlink_to(runtime)
    with pytest.raises(TelemetryUnavailable, match="not a folder"):
        runtime_folder()
    folder.unlink()
    folder.write_text("")
    with pytest.raises(TelemetryUnavailable, match="cannot be used"):
        runtime_folder()
    if os.geteuid() == 0:
        folder.unlink()
        folder.mkdir(mode=0o700)
        os.chown(folder, 65534, 65534)
        with pytest.raises(TelemetryUnavailable, match="belongs to user 65534"):
            runtime_folder()


def test_a_lock_is_seen_and_given_back(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    one, two, three = Lock(path), Lock(path), Lock(path)
    assert one.take(shared=True)
    assert two.take(shared=True)
    assert not three.take()
    assert (is_held(path), anybody_holds(path)) == (False, True)
    one.release()
    two.release()
    assert three.take()
    assert (is_held(path), anybody_holds(path)) == (True, True)
    three.release()
    assert not anybody_holds(path)
