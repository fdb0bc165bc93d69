"""Is what belongs together found, by process, by URL and by run, and is nothing else?"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3ops.errors import RequestError
from eagle3ops.runs.processes import RUN_VARIABLE, ProcessId, identify
from eagle3ops.watchdog.guard.listening import address_of
from eagle3ops.watchdog.guard.subject import PidFinder, RunFinder, Told, UrlFinder, find_pid, find_run, find_url

FAMILY = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def family(tmp_path: Path) -> Iterator[tuple["subprocess.Popen[bytes]", int]]:
    """A parent and the number of its child."""
    log = tmp_path / "out.log"
    with log.open("wb") as out:
        parent = subprocess.Popen(
            [sys.executable, "-c", FAMILY],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=out,
            env=os.environ | {"RANK": "3"},
        )
    while not log.read_text().endswith("\n"):
        time.sleep(0.01)
    child = int(log.read_text())
    yield parent, child
    for pid in (parent.pid, child):
        subprocess.run(["kill", "-9", str(pid)], capture_output=True, check=False)
    assert parent.stdin is not None
    parent.stdin.close()
    parent.wait()


def test_a_process_with_its_children_logs_and_ranks(family: Any, tmp_path: Path) -> None:
    parent, child = family
    subject = find_pid(parent.pid)
    assert [process.pid for process in subject.processes] == [parent.pid, child]
    assert subject.logs == (tmp_path / "out.log",)
    assert subject.roles == {parent.pid: "rank 3", child: "rank 3"}
    assert subject.url is None


def test_an_orphan_stays_a_member_and_a_dead_parent_that_nobody_reaps_shows(family: Any) -> None:
    parent, child = family
    finder = PidFinder(parent.pid)
    finder()
    os.kill(parent.pid, signal.SIGKILL)
    while identify(parent.pid) is not None:
        time.sleep(0.01)
    assert {process.pid for process in finder().processes} == {parent.pid, child}
    assert not finder.over()
    parent.wait()
    assert {process.pid for process in finder().processes} == {child}
    assert not finder.over()
    os.kill(child, signal.SIGKILL)
    while identify(child) is not None:
        time.sleep(0.01)
    finder()
    assert finder.over()


def test_a_number_that_is_another_process_by_now_is_refused() -> None:
    me = identify(os.getpid())
    assert me is not None
    with pytest.raises(RequestError, match="there is no process"):
        find_pid(ProcessId(me.pid, me.start - 1, me.boot))


def test_a_file_that_was_deleted_is_still_read(family: Any, tmp_path: Path) -> None:
    parent, _ = family
    (tmp_path / "out.log").unlink()
    (log,) = {Path(os.path.realpath(path)) for path in find_pid(parent.pid).logs[:1]}
    assert "out.log" in str(log)
    assert str(find_pid(parent.pid).logs[0]).startswith("/proc/")


def test_a_server_by_its_url(start_engine: Any) -> None:
    engine = start_engine()
    for url in (engine.url, f"localhost:{engine.port}", f":{engine.port}"):
        subject = find_url(url)
        assert [process.pid for process in subject.processes] == [engine.process.pid]
        assert subject.logs == (engine.log,)
    assert find_url(engine.url).url == engine.url
    engine.end()
    with pytest.raises(RequestError, match="nothing listens"):
        find_url(engine.url)


def test_the_root_is_the_server_and_not_the_shell_that_started_it(tmp_path: Path) -> None:
    code = """
import os, socket, time
listener = socket.create_server(("127.0.0.1", 0))
if os.fork() == 0:
    print(listener.getsockname()[1], os.getppid(), flush=True)
    time.sleep(600)
listener.close()
time.sleep(600)
"""
    log = tmp_path / "log"
    with log.open("wb") as out:
        shell = subprocess.Popen(
            ["sh", "-c", '"$0" -c "$1"; true', sys.executable, code], stdout=out, start_new_session=True
        )
    try:
        while not log.read_text().endswith("\n"):
            time.sleep(0.01)
        port, server = map(int, log.read_text().split())
        finder = UrlFinder(f"http://127.0.0.1:{port}")
        assert finder.root.pid == server
        assert len(finder().processes) == 2
    finally:
        os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()


@pytest.mark.parametrize("url", ["", "ftp://127.0.0.1:1", "http://", "http://127.0.0.1:99999", "http://[::1", "x y:5"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(RequestError, match="not the URL of a server"):
        find_url(url)


def test_another_machine_is_refused() -> None:
    with pytest.raises(RequestError, match="not this machine"):
        find_url("http://192.0.2.7:30000")


def test_a_password_in_a_url_is_not_repeated() -> None:
    with pytest.raises(RequestError) as raised:
        address_of("ftp://me:hunter2hunter2@127.0.0.1")
    assert "hunter2" not in str(raised.value)


@given(st.text(max_size=60))
def test_any_text_as_url(text: str) -> None:
    try:
        address = address_of(text)
    except RequestError:
        return
    assert 0 < address.port < 65536
    assert address_of(address.url) == address


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run whose stage `serve` is said to run, looked after by this process."""
    run = tmp_path / "20261130-000000-demo-abcd"
    (run / "logs").mkdir(parents=True)
    me = identify(os.getpid())
    assert me is not None
    (run / "request.json").write_text(json.dumps({"run_id": run.name, "stages": ["prepare", "serve"]}))
    stages = {"prepare": {"status": "done"}, "serve": {"status": "running"}}
    (run / "state.json").write_text(json.dumps({"status": "running", "stages": stages}))
    (run / "supervisor.json").write_text(json.dumps(me.as_json()))
    return run


def _event(run: Path, seq: int, kind: str, data: Any, stage: str | None = "serve") -> None:
    with (run / "events.jsonl").open("a") as file:
        file.write(json.dumps({"seq": seq, "ts": 1e9 + seq, "stage": stage, "kind": kind, "data": data}) + "\n")


def test_a_stage_of_a_run(run_dir: Path) -> None:
    # This process stands for the supervisor, and may have started something for other tests.
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    engine = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"], env=os.environ | {RUN_VARIABLE: str(run_dir)}
    )
    try:
        identity = identify(engine.pid)
        assert identity is not None
        argv = ["python", "-m", "engine", "--host", "0.0.0.0", "--port", "31000"]
        started = {"state": "started", "role": "engine", "argv": argv, "log": "logs/engine.log", **identity.as_json()}
        _event(run_dir, 1, "stage", {"status": "running"})
        _event(run_dir, 2, "process", started | {"log": "../../etc/passwd"})
        _event(run_dir, 3, "process", started)
        finder = RunFinder(run_dir)
        subject = finder()
        assert [process for process in subject.processes if process.pid not in before] == [identity]
        assert (subject.stage, subject.run_dir) == ("serve", run_dir)
        assert subject.roles[engine.pid] == "engine"
        assert subject.url == "http://127.0.0.1:31000"
        assert subject.logs == (run_dir / "logs/serve.log", run_dir / "logs/engine.log")
        assert not finder.over()
        _event(run_dir, 4, "progress", {"done": 1})
        finder()
        assert finder.progress() == [
            Told("serve: engine began", 1e9 + 2, "began", "engine.log"),
            Told("serve: engine began", 1e9 + 3, "began", "engine.log"),
            Told("serve: progress", 1e9 + 4),
        ]
        assert finder.progress() == []
        assert find_run(run_dir, "prepare").processes == ()
        _event(run_dir, 5, "progress", {"done": 2, "total": 2.0})
        _event(run_dir, 6, "process", {"state": "ended", "role": "engine", "pid": engine.pid})
        _event(run_dir, 7, "process", {"state": "ended", "role": "serve", "pid": 1})
        finder()
        assert [(one.kind, one.log) for one in finder.progress()] == [
            ("progress", ""),
            ("done", ""),
            ("ended", "engine.log"),
        ]
        _event(run_dir, 8, "progress", {"done": 2})
        _event(run_dir, 9, "stage", {"status": "running"})
        _event(run_dir, 10, "process", started | {"offset": 512})
        assert finder().log_starts == {run_dir / "logs/engine.log": 512}
        # Not what the attempt before has reported.
        assert finder.progress() == [Told("serve: engine began", 1e9 + 10, "began", "engine.log")]
    finally:
        engine.kill()
        engine.wait()


def test_a_run_that_nobody_looks_after_is_over(run_dir: Path) -> None:
    (run_dir / "supervisor.json").write_text(json.dumps({"pid": 1 << 30, "start": 1, "boot": "x"}))
    finder = RunFinder(run_dir)
    finder()
    assert finder.over()


def test_an_unknown_stage_is_refused(run_dir: Path) -> None:
    with pytest.raises(RequestError, match="has no stage 'bake'"):
        find_run(run_dir, "bake")
