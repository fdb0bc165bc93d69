"""Does the evidence say why real processes hang, is it bounded, and does it hold no secret?"""

import json
import os
import pickle
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from eagle3ops.runs.processes import ProcessId, identify, read_stat
from eagle3ops.watchdog.evidence import Dossier, collect, examine, locks, procfs, sockets, spying, waits
from eagle3ops.watchdog.evidence.patience import ask_each, ask_once
from eagle3ops.watchdog.evidence.tails import read_tail
from eagle3ops.watchdog.state import Reading, Standing, Subject

FAULTY = Path(__file__).with_name("faulty.py")

Start = Callable[..., ProcessId]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts faulty processes, waits until they say that they are ready, and ends them."""
    running: list[subprocess.Popen[str]] = []

    def start_one(*words: str, stdout: int = subprocess.PIPE, env: dict[str, str] | None = None) -> ProcessId:
        process = subprocess.Popen(
            [sys.executable, str(FAULTY), *words],
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(env or {})},
        )
        running.append(process)
        stream = process.stderr if words[0] == "pipe" else process.stdout
        assert stream is not None
        assert stream.readline().startswith("ready")
        known = identify(process.pid)
        assert known is not None
        return known

    try:
        yield start_one
    finally:
        for process in running:
            process.kill()
            process.wait()
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()


def until(look: Callable[[], object]) -> None:
    """Wait for what has to come; pytest's own limit ends it where it does not."""
    while not look():
        time.sleep(0.02)


def wchan(pid: int) -> str:
    return Path(f"/proc/{pid}/wchan").read_text()


def words(dossier: Dossier) -> str:
    return "\n".join(one.what for one in dossier.findings)


def subject(*processes: ProcessId, **more: object) -> Subject:
    return Subject(name="test", processes=processes, caches=(Path("/nonexistent"),), **more)  # type: ignore[arg-type]


def test_a_deadlock_is_seen_thread_by_thread_and_stands_in_both_looks(start: Start, tmp_path: Path) -> None:
    process = start("deadlock")
    until(lambda: "futex" in wchan(process.pid))
    dossier = collect(subject(process), tmp_path / "e", intrusive=True, apart_s=0.2)
    assert "every thread sleeps in a lock (futex)" in words(dossier)
    assert "stands in deadlock (" in words(dossier)
    assert {one.role for one in dossier.clusters} == {"MainThread", "other"}
    assert all(one.standing == (process.pid,) for one in dossier.clusters)
    facts = json.loads((tmp_path / "e/processes.json").read_text())[0]
    assert [thread["wchan"].startswith("futex") for thread in facts["threads"]] == [True, True]
    assert (tmp_path / f"e/stacks-1/{process.pid}.txt").read_text().count("deadlock (") == 1
    assert dossier.fingerprint == ("deadlock (faulty.py)",)


def test_a_stopped_process_is_named_and_stays_stopped(start: Start, tmp_path: Path) -> None:
    process = start("sleep")
    os.kill(process.pid, signal.SIGSTOP)
    until(lambda: (one := read_stat(process.pid)) and one.state == "T")
    dossier = collect(subject(process), tmp_path / "e", intrusive=True, apart_s=0.1)
    assert "stopped by a signal (state T)" in words(dossier)
    assert dossier.suspects == (process.pid,)
    # Where it was stopped is chance.
    assert (dossier.stopped, dossier.fingerprint) == ((process.pid,), ())
    # Its stack is read all the same, without touching it.
    assert "main (" in (tmp_path / f"e/stacks-1/{process.pid}.txt").read_text()
    after = read_stat(process.pid)
    assert after is not None
    assert after.state == "T"


def test_who_is_looked_at_goes_on_as_before(start: Start, tmp_path: Path) -> None:
    process = start("sleep")
    collect(subject(process), tmp_path / "e", intrusive=True, apart_s=0.1)
    until(lambda: (one := read_stat(process.pid)) and one.state == "S")


def test_a_py_spy_that_hangs_is_ended_and_leaves_nobody_stopped(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = start("sleep")
    program = tmp_path / "py-spy"
    program.write_text("#!/bin/sh\nkill -STOP $3\nexec sleep 1000\n")
    program.chmod(0o700)
    answer = spying._run(str(program), process, "", 0.5)
    assert answer == ("", "py-spy did not come to an end within 0.5 s")
    until(lambda: (one := read_stat(process.pid)) and one.state == "S")
    monkeypatch.setattr(spying, "find_py_spy", lambda: None)
    dossier = collect(subject(process), tmp_path / "e", intrusive=True)
    assert "py-spy is not installed" in "\n".join(dossier.missing)


def test_what_the_kernel_does_not_permit_is_told_with_what_would() -> None:
    assert "SYS_PTRACE" in spying._permission("Error: Permission Denied: Try running again with elevated permissions")
    assert spying._permission("Error: Failed to get stack traces") == ""


def test_the_odd_one_among_ranks_is_named(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = [start("all_reduce", env={"RANK": str(rank)}) for rank in range(3)]
    odd = start("sleep", env={"RANK": "3"})
    # Ranks of one job have one command line; here the way in which they differ is part of it.
    roles = {one.pid: f"rank {rank}" for rank, one in enumerate([*ranks, odd])}
    monkeypatch.setattr(waits, "kind_of", lambda facts: "job")
    dossier = collect(subject(*ranks, odd, roles=roles), tmp_path / "e", intrusive=True, apart_s=0.1)
    assert "3 of 4 stand in all_reduce (faulty.py" in words(dossier)
    assert f"rank 3 (pid {odd.pid}) is the odd one" in words(dossier)
    assert dossier.suspects == (odd.pid,)


def test_a_full_pipe_is_told_with_who_should_read_it(start: Start, tmp_path: Path) -> None:
    process = start("pipe")
    until(lambda: "pipe_write" in wchan(process.pid))
    dossier = collect(subject(process), tmp_path / "e")
    assert "waits to write into a full pipe (fd 1); its other end is open in" in words(dossier)
    assert f"pid {os.getpid()}" in words(dossier)
    assert dossier.suspects == (process.pid,)


def test_a_zombie_whose_parent_lives_is_told(tmp_path: Path) -> None:
    child = subprocess.Popen(["true"])
    try:
        until(lambda: (one := read_stat(child.pid)) and one.state == "Z")
        me = identify(os.getpid())
        assert me is not None
        dossier = collect(subject(me), tmp_path / "e")
        assert f"(pid {child.pid}): ended, and its parent has taken no note of it" in words(dossier)
        assert child.pid in dossier.suspects
    finally:
        child.wait()


def test_locks_held_waited_for_and_left_over(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Inside of a container nothing young is called stale; what is tested is the rest.
    monkeypatch.setattr(locks, "CONTAINER_QUIET_S", -1.0)
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
    holder = start("flock", str(tmp_path / "a/x.lock"))
    waiter = start("wait-flock", str(tmp_path / "a/x.lock"))
    builder = start("baton", str(tmp_path / "b/lock"))
    (tmp_path / "c/lock").touch()
    (tmp_path / "c/unused.lock").touch()
    until(lambda: "lock" in wchan(waiter.pid))
    me = Subject(name="test", processes=(waiter,), caches=(tmp_path,))
    dossier = collect(me, tmp_path / "e")
    found = {str(lock.path.relative_to(tmp_path)): lock for lock in dossier.locks}
    assert sorted(found) == ["a/x.lock", "b/lock", "c/lock", "c/unused.lock"]
    assert found["a/x.lock"].holders == (holder,)
    assert found["a/x.lock"].waiters == (waiter,)
    assert (found["a/x.lock"].kind, found["a/x.lock"].stale) == ("flock", False)
    # The holder of a lock that exists keeps it open: that is how it is found.
    assert (found["b/lock"].holders, found["b/lock"].stale) == ((builder,), False)
    assert (found["c/lock"].kind, found["c/lock"].stale) == ("existence", True)
    assert "open in no process" in found["c/lock"].proof
    assert not found["c/unused.lock"].stale
    assert f"stale lock {tmp_path}/c/lock" in words(dossier)
    assert f"held by pid {holder.pid}; 1 wait for it" in words(dossier)
    # Once its holder is gone it is stale.
    os.kill(builder.pid, signal.SIGKILL)
    until(lambda: (one := read_stat(builder.pid)) is None or one.state == "Z")
    assert [lock.stale for lock in examine([tmp_path / "b/lock"])] == [True]


def test_an_old_lock_is_stale_only_when_somebody_waits_for_one(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "CONTAINER_QUIET_S", -1.0)
    (tmp_path / "caches").mkdir()
    lock = tmp_path / "caches/lock"
    lock.touch()

    def found(process: ProcessId, state: str, *, intrusive: bool) -> Dossier:
        reading = Reading(state=state, standing=Standing.ACCUSED, since=0.0, at=1.0)
        group = Subject(name="test", processes=(process,), caches=(lock.parent,))
        return collect(group, tmp_path / "e", reading=reading, intrusive=intrusive, apart_s=0.1)

    busy = start("sleep")
    (one,) = found(busy, "deadlock", intrusive=True).locks
    assert (one.stale, one.proof.startswith("left over, but nothing shows that anybody waits")) == (False, True)
    # The signals of the watchdog say so, or the stack does.
    assert found(busy, "stale_lock", intrusive=False).locks[0].stale
    waiting = start("wait-baton", str(lock))
    dossier = found(waiting, "deadlock", intrusive=True)
    assert dossier.locks[0].stale
    assert "waits for a lock file to go away" in words(dossier)
    assert f"stale lock {lock}" in words(dossier)


def test_a_lock_that_a_child_inherited_is_held(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    with subprocess.Popen(
        [sys.executable, str(FAULTY), "inherited-flock", str(path)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline().split()[1])
        process.wait()
        try:
            (lock,) = examine([path])
            assert [holder.pid for holder in lock.holders] == [child]
            assert lock.proof == f"held by pid {child}"
        finally:
            os.kill(child, signal.SIGKILL)


def test_sockets_that_nobody_accepts_or_reads(start: Start, tmp_path: Path) -> None:
    server = start("listen")
    facts = procfs.details(server)
    assert facts is not None
    (listening,) = sockets.of_processes([facts])
    assert (listening["state"], listening["unread"]) == ("LISTEN", 0)
    with socket.create_connection(("127.0.0.1", int(listening["local"].rpartition(":")[2]))):
        dossier = collect(subject(server), tmp_path / "e")
    assert "1 connection waits to be accepted" in words(dossier)


def test_no_planted_secret_is_in_any_file(start: Start, tmp_path: Path) -> None:
    secret = "cAnArY0123456789xyz"
    plain_value = "blue-horse-battery-staple"
    key = "MIIEvQ" + secret + "QIBADANBgkqhkiG9w0BAQEFAASC"
    log = tmp_path / f"hf_{secret}.log"
    forms = (
        f"hf_{secret}", f"sk-{secret}", f"ghp_{secret}", "AKIA" + "CANARY0123456789", f"Authorization: Bearer {secret}",
        f"https://ann:{secret}@host/x", f"password={secret}", f"the token is {plain_value}, take care",
        f"-----BEGIN RSA PRIVATE KEY-----\n{key}\n-----END RSA PRIVATE KEY-----",
    )  # fmt: skip
    # The tail begins in the middle of a key.
    log.write_text("\n".join(["x", key, "ab==", "-----END PRIVATE KEY-----", *forms, "the end"]) + "\n")
    environment = {"HF_TOKEN": f"hf_{secret}", "SGLANG_ADMIN_SECRET": plain_value, "VLLM_URL": f"http://u:{secret}@h/"}
    process = start("sleep", f"--password={secret}", "--api-key", f"sk-{secret}", env=environment)
    caches = tmp_path / "caches"
    caches.mkdir()
    (caches / f"ghp_{secret}.lock").touch()
    reading = Reading(state="deadlock", standing=Standing.CONVICTED, since=0, at=1, title=f"with hf_{secret}")
    dossier = collect(
        Subject(name=f"test sk-{secret}", processes=(process,), logs=(log,), caches=(caches,)),
        tmp_path / "e",
        reading=reading,
        sample={"procs": [{"cmd": f"x --api-key {secret}", "name": plain_value}]},
        intrusive=True,
        apart_s=0.1,
    )
    written = [path for path in (tmp_path / "e").rglob("*") if path.is_file()]
    assert len(written) > 10
    everything = "\n".join([str(path.relative_to(tmp_path)) + path.read_text() for path in written])
    everything += words(dossier) + str(dossier.missing) + str(dossier.fingerprint)
    for part in (secret, plain_value, "CANARY0123456789", "MIIEvQ", "ab=="):
        assert part not in everything
    assert "the end" in everything
    assert "[redacted]" in everything


def test_files_are_for_their_owner_only_and_all_in_the_manifest(start: Start, tmp_path: Path) -> None:
    log = tmp_path / "serve.log"
    log.write_text("".join(f"line {number}\n" for number in range(500)))
    dossier = collect(subject(start("sleep"), logs=(log,)), tmp_path / "e")
    manifest = json.loads((tmp_path / "e/dossier.json").read_text())
    told = {name for step in manifest["steps"] for name in step["files"]} | {"dossier.json"}
    there = {str(path.relative_to(tmp_path / "e")) for path in (tmp_path / "e").rglob("*") if path.is_file()}
    assert told == there == set(dossier.files)
    assert {stat.S_IMODE((tmp_path / "e" / name).stat().st_mode) for name in there} == {0o600}
    assert stat.S_IMODE((tmp_path / "e").stat().st_mode) == 0o700
    assert (tmp_path / "e/logs/serve.log.txt").read_text().count("\n") == 200
    index = json.loads((tmp_path / "e/logs.json").read_text())[0]
    assert log.read_bytes()[index["offset"] :].startswith(b"line 300\n")
    (finding,) = (one for one in dossier.findings if one.log == "serve.log")
    assert finding.offset is not None
    assert log.read_bytes()[finding.offset :] == b"line 499\n"


def test_an_earlier_dossier_is_set_aside(start: Start, tmp_path: Path) -> None:
    process = start("sleep")
    kept = tmp_path / "e/renamed-lock"
    for _ in range(3):
        collect(subject(process), tmp_path / "e")
        kept.touch()
    assert (tmp_path / "e/before/dossier.json").exists()
    assert (tmp_path / "e/before-2/processes.json").exists()
    assert kept.exists()


def test_what_cannot_be_had_is_told_and_nothing_raises(tmp_path: Path) -> None:
    gone = ProcessId(2**22 + 5, 1, "another boot")
    fifo = tmp_path / "fifo.log"
    os.mkfifo(fifo)
    records = tmp_path / "records"
    records.mkdir()
    (records / "trace_0").write_bytes(pickle.dumps(Path("/x")))
    (records / "trace_1").write_bytes(b"\x80\x04")
    dossier = collect(
        subject(gone, logs=(fifo, tmp_path / "none.log"), flight_records=records), tmp_path / "e", intrusive=True
    )
    told = "\n".join(dossier.missing)
    assert "it has ended" in told
    assert "no ordinary file" in told
    assert "No such file" in told
    assert "pathlib" in told
    assert "not a whole pickle" in told
    assert "no Python process" in told
    (tmp_path / "file").touch()
    nowhere = collect(subject(gone), tmp_path / "file" / "e")
    assert nowhere.files == ()
    assert "Not a directory" in "\n".join(nowhere.missing)


def test_no_time_is_no_evidence_and_no_hang(start: Start, tmp_path: Path) -> None:
    dossier = collect(subject(start("sleep")), tmp_path / "e", limit_s=0.0, intrusive=True)
    assert all(step.missing == ("no time was left for it",) for step in dossier.steps)
    assert dossier.files == ("dossier.json",)


def test_a_question_without_answer_is_left_behind() -> None:
    def ask(seconds: float) -> float:
        if seconds < 0:
            raise ValueError("no")
        time.sleep(seconds)
        return seconds

    answers = ask_each([0.0, 5.0, -1.0, 0.01, 0.0], ask, each_s=1.0, until=time.monotonic() + 60, at_once=1)
    assert [answer.value for answer in answers] == [0.0, None, None, 0.01, 0.0]
    assert answers[1].missing == "no answer within 1 s"
    assert answers[2].missing == "ValueError: no"
    assert ask_once(lambda: ask(5.0), limit_s=0.1).value is None
    assert ask_each([1.0], ask, each_s=9, until=time.monotonic() - 1)[0].missing == "no time was left for it"


def test_a_line_that_is_cut_is_left_out(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_bytes(b"a" * (300 << 10) + b"\nlast\n\n")
    tail = read_tail(log)
    assert (tail.text, tail.offset, tail.last, tail.last_offset) == (
        "last\n\n",
        (300 << 10) + 1,
        "last",
        (300 << 10) + 1,
    )
    log.write_bytes(b"a" * (300 << 10))
    assert read_tail(log).text == ""
    log.write_bytes(b"")
    assert read_tail(log).last == ""
