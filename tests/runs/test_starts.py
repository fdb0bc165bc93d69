"""Does a key lead to one run and one start, whoever dies meanwhile and however often one asks?"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_world import PIPELINE, Toy

from eagle3ops.errors import Refused, RequestError
from eagle3ops.runs.directory import RunDirectory, list_runs, runs_folder
from eagle3ops.runs.family import left_behind
from eagle3ops.runs.gc import collect, find_garbage
from eagle3ops.runs.ledger import Ledger, show
from eagle3ops.runs.orders import Order, Started, cancel, place, resume
from eagle3ops.runs.processes import is_alive
from eagle3ops.runs.starts import (
    KEPT_S,
    KeyRecord,
    digest,
    forget_old,
    key_record,
    launch,
    started_lines,
    starts_folder,
    take_effect,
)


@pytest.fixture
def here(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> Toy:
    """The toy world in this process: orders are placed by calls."""
    for name, value in toy.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.syspath_prepend(str(toy.folder))
    return toy


def order(toy: Toy, key: str, *, text: str = PIPELINE, job: str = "pipeline") -> Order:
    return Order(spec_text=text, source="a test", root=toy.root, cache=toy.folder / "cache", key=key, job=job)


def ended(started: Started) -> RunDirectory:
    """Wait for the supervisor, whoever started it."""
    deadline = time.monotonic() + 60
    if started.process is not None:
        started.process.wait(60)
    while started.run.alive() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not started.run.alive()
    return started.run


def test_one_key_is_one_run_and_one_start(here: Toy) -> None:
    first = place(order(here, "ann's"))
    second = place(order(here, "ann's"))
    assert first.fresh
    assert not second.fresh
    assert second.run == first.run
    run = ended(first)
    assert place(order(here, "ann's")) == Started(run, 0, False, None)
    assert ended(place(order(here, "bob's"))) != run
    assert len(started_lines(run)) == 1
    assert run.status() == "done"
    assert len(list_runs(here.root)) == 2


def test_a_key_is_not_used_for_something_else(here: Toy) -> None:
    run = ended(place(order(here, "k", job="make")))
    with pytest.raises(RequestError, match=run.run_id):
        place(order(here, "k", text=PIPELINE + "seed: 5\n", job="make"))
    with pytest.raises(RequestError, match="needs a key"):
        place(order(here, ""))


def test_what_is_refused_leaves_no_trace_and_its_key_free(here: Toy) -> None:
    too_large = PIPELINE + f"stages: {{make: {{forecast_bytes: {10**18}}}}}\n"
    with pytest.raises(Refused, match="disk"):
        place(order(here, "k", text=too_large))
    assert not runs_folder(here.root).exists()
    assert ended(place(order(here, "k", job="make"))).status() == "done"


def test_a_deleted_run_is_not_started_anew(here: Toy) -> None:
    run = ended(place(order(here, "k", job="make")))
    collect(find_garbage(here.root, keep=0))
    assert list_runs(here.root) == []
    with pytest.raises(Refused, match=f"{run.run_id}.*was deleted"):
        place(order(here, "k", job="make"))
    assert forget_old(here.root) == 0
    assert forget_old(here.root, now=time.time() + KEPT_S + 60) == 1
    assert ended(place(order(here, "k", job="make"))) != run


def test_what_a_killed_starter_left_is_finished_or_swept(here: Toy) -> None:
    asked = order(here, "k", job="make")
    with key_record(here.root, "k") as record:
        assert record is not None
        record.add(run_id="20200101-000000-toy-0000", order=asked.fingerprint())
    half = runs_folder(here.root) / f".20200101-000000-toy-0000-{digest('k')[:16]}.new"
    half.mkdir(parents=True)
    (half / "spec.yaml").write_text("half a")
    run = ended(place(asked))
    assert run.run_id == "20200101-000000-toy-0000"
    assert run.status() == "done"
    assert not half.exists()
    abandoned = runs_folder(here.root) / ".20200101-000000-toy-1111-00.new"
    abandoned.mkdir()
    assert abandoned not in {item.path for item in find_garbage(here.root, keep=5)}
    os.utime(abandoned, (0, 0))
    assert abandoned in {item.path for item in find_garbage(here.root, keep=5)}
    assert list_runs(here.root) == [run.run_id]


def test_an_id_that_another_order_drew_is_not_shared(here: Toy) -> None:
    taken = ended(place(order(here, "first", job="make")))
    asked = order(here, "second", job="make")
    with key_record(here.root, "second") as record:
        assert record is not None
        record.add(run_id=taken.run_id, order=asked.fingerprint())
    other = ended(place(asked))
    assert other != taken
    assert place(asked).run == other


def test_a_start_takes_effect_once(here: Toy) -> None:
    run = ended(place(order(here, "k", job="make")))
    assert take_effect(run, "once")
    assert not take_effect(run, "once")
    assert launch(run, "once") is None
    process = subprocess.run([sys.executable, "-m", "eagle3ops.supervisor", str(run.path), "once"], check=False)
    assert process.returncode == 0
    beginnings = [event for event in run.reader().read() if event.kind == "run" and event.data["status"] == "running"]
    assert len(beginnings) == 1
    # Torn by a power cut: the start that was being written did not take effect, and the next one can be read.
    with (run.path / "started.jsonl").open("ab") as file:
        file.write(b'{"token": "to')
    assert take_effect(run, "torn")
    assert [line["token"] for line in started_lines(run)][1:] == ["once", "torn"]


def test_resuming_twice_with_one_token_is_resuming_once(here: Toy) -> None:
    run = ended(place(order(here, "k", job="make")))
    before = run.last_seq()
    first = resume(run, token="t")
    again = resume(run, token="t")
    assert (first.fresh, again.fresh) == (True, False)
    assert first.after == before
    ended(first)
    late = resume(run, token="t")
    assert late == Started(run, before, False, None)
    assert len(started_lines(run)) == 2
    ended(resume(run, token="u"))
    assert len(started_lines(run)) == 3


def test_of_two_who_resume_at_once_one_does(here: Toy) -> None:
    run = ended(place(order(here, "k", job="make")))
    with ThreadPoolExecutor() as pool:
        asked = [pool.submit(resume, run, token=str(number)) for number in range(4)]
    refused = [future.exception() for future in asked if future.exception() is not None]
    assert [type(error) for error in refused] == [Refused] * 3
    ended(next(future.result() for future in asked if future.exception() is None))
    assert len(started_lines(run)) == 2


def test_a_run_that_goes_on_is_not_resumed_but_can_be_cancelled(here: Toy) -> None:
    started = place(order(here, "k", text=PIPELINE + "stages: {use: {mode: child}}\n"))
    here.until("runs/*/child.pid")
    with pytest.raises(Refused, match="is running"):
        resume(started.run, token="t")
    assert cancel(started.run)
    run = ended(started)
    assert run.state()["exit_code"] == 130
    assert not cancel(run)
    assert left_behind(run.path) == []


def test_an_interrupted_run_says_why(here: Toy) -> None:
    started = place(order(here, "k", text=PIPELINE + "stages: {use: {mode: child}}\n"))
    here.until("runs/*/child.pid")
    run = started.run
    pid = (run.supervisor() or {})["pid"]
    assert run.interruption() is None
    os.kill(pid, signal.SIGKILL)
    ended(started)
    killed = f"interrupted: its supervisor (pid {pid}) was killed"
    assert run.interruption() == killed
    assert Ledger(here.root).runs()[0].cause == killed
    assert show(here.root, run.run_id)["cause"] == killed
    # The same as after a reboot, as far as this file goes.
    (run.path / "supervisor.json").write_text(json.dumps((run.supervisor() or {}) | {"boot": "another"}))
    assert run.interruption() == "interrupted: the host was rebooted since"
    assert Ledger(here.root).runs()[0].cause == "interrupted: the host was rebooted since"


def test_after_a_reboot_the_run_is_found_dead_and_resumes(here: Toy) -> None:
    boot = here.folder / "boot_id"
    boot.write_text("11111111-2222-3333-4444-555555555555\n")

    def elsewhen(*arguments: str) -> subprocess.CompletedProcess[str]:
        """The command line on a host that was booted anew, as far as the kernel's id of the boot goes."""
        mount = 'mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"'
        command = ["unshare", "--mount", "sh", "-c", mount, str(boot), *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=here.environment, cwd=here.folder)

    if shutil.which("unshare") is None or elsewhen("true").returncode:
        pytest.skip("a mount namespace is not permitted here")
    started = place(order(here, "k", text=PIPELINE + "stages: {make: {part_s: 30}}\n"))
    here.until("runs/*/supervisor.json")
    program = [sys.executable, "-m", "eagle3ops", "runs"]
    # Still alive here; for the other boot no number that was written down means anything any more.
    shown = json.loads(elsewhen(*program, "show", "last", "--json").stdout)
    assert (shown["status"], shown["cause"]) == ("interrupted", "interrupted: the host was rebooted since")
    assert started.run.alive()
    here.kill_everything(started.run)
    ended(started)
    (started.run.path / "spec.yaml").write_text(PIPELINE)
    resumed = elsewhen(*program, "resume", "last")
    assert resumed.returncode == 0, resumed.stderr
    assert started.run.state()["status"] == "done"


@given(st.binary(max_size=300))
def test_any_record_can_be_read(content: bytes) -> None:
    import tempfile

    with tempfile.TemporaryFile() as file:
        file.write(content)
        record = KeyRecord(file)
        assert record.run_id is None or isinstance(record.run_id, str)
        assert isinstance(record.created, bool)
        record.add(run_id="r", order="o")
        again = KeyRecord(file)
    assert (again.run_id, again.order) == ("r", "o")


@pytest.mark.parametrize("content", [b"", b"\xff\n[]\n{}\n", b'{"token": 5}\n{"token"'])
def test_damaged_starts_are_none(tmp_path: Path, content: bytes) -> None:
    run = RunDirectory(tmp_path / "runs" / "r")
    run.path.mkdir(parents=True)
    (run.path / "started.jsonl").write_bytes(content)
    assert take_effect(run, "token")
    assert not take_effect(run, "token")


@pytest.mark.timeout(600)
def test_a_storm_of_killed_starters(toy: Toy) -> None:
    """100 rounds: 6 starters with 2 keys, two thirds of them killed, then one undisturbed call for each key."""
    found = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "storm_world.py"), str(toy.root), "20261130", "100", "6", "2"],
        capture_output=True,
        text=True,
        env=toy.environment,
        timeout=600,
    )
    assert found.returncode == 0, found.stderr[-2000:]
    seen = json.loads(found.stdout)
    assert seen["wrong"] == []
    assert seen["hidden"] == []
    assert seen["killed"] > 200
    assert len(list(starts_folder(toy.root).iterdir())) == 203
    assert not any(is_alive(RunDirectory(path).supervisor()) for path in runs_folder(toy.root).glob("2*"))
