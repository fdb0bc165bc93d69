"""Does what a run recorded become the right incidents, whatever stands in its events?"""

import json
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3ops.hosts.agent import ops_incidents, ops_runs
from eagle3ops.runs.directory import RunDirectory
from eagle3ops.runs.events import Event, EventLog
from eagle3ops.runs.processes import identify
from eagle3ops.watchdog.incidents.incident import SEVERITIES, from_json, remedy_from
from eagle3ops.watchdog.incidents.machine import machine_incidents
from eagle3ops.watchdog.incidents.of_run import SILENT_S, incidents_of
from eagle3ops.watchdog.incidents.record import LogEnd, Record, telling_line

RUN = "20261130-054512-demo-bbbb"


def record(*events: tuple[str, str | None, dict[str, Any]], **standing: Any) -> Record:
    """A record of these events, 10 s apart from 1000 s on."""
    made = Record(RUN)
    for number, (kind, stage, data) in enumerate(events):
        made.take(Event(number + 1, 1000.0 + 10 * number, stage, kind, data))
    for name, value in standing.items():
        setattr(made, name, value)
    return made


FAILED = {"status": "failed", "error": "ended by SIGKILL (out of memory, or someone's kill -9)", "exit_code": 1}


def test_a_killed_stage_with_its_log_its_programs_and_what_to_do() -> None:
    made = record(
        ("run", None, {"status": "running"}),
        ("stage", "train", {"status": "running"}),
        ("process", "train", {"role": "worker", "state": "started", "pid": 7, "log": "logs/worker.log"}),
        ("process", "train", {"role": "worker", "state": "ended", "pid": 7, "code": -9}),
        (
            "stage",
            "train",
            FAILED | {"signal": "SIGKILL", "max_memory_bytes": 3 << 30, "remedy": "see /x/logs/train.log"},
        ),
        ("run", None, {"status": "failed", "cause": f"train: {FAILED['error']}"}),
        status="failed",
        logs={"train.log": LogEnd("train.log", 900, 1040.0, "step 812", 880)},
    )
    (one,) = incidents_of(made, 2000.0)
    assert (one.kind, one.severity, one.stage, one.over, one.first) == ("killed", "error", "train", False, 1040.0)
    assert ("train.log", 880) in {(each.log, each.offset) for each in one.evidence}
    told = " | ".join(each.what for each in one.evidence)
    assert "the log says: step 812" in told
    assert "3.0 GiB" in told
    assert "worker (pid 7) ended by SIGKILL" in told
    assert [each.action for each in one.remedies if each.action] == ["logs", "gpus", "resume", "run", "logs"]
    assert any(each.command == f"eagle3ops runs resume {RUN}" for each in one.remedies)


def test_a_failure_is_over_once_the_stage_is_done_and_seen_once_however_often_it_came() -> None:
    again: list[tuple[str, str | None, dict[str, Any]]] = [
        ("stage", "train", {"status": "running"}),
        ("stage", "train", FAILED),
    ] * 2
    (one,) = incidents_of(record(*again, status="failed"), 2000.0)
    assert (one.count, one.over, one.first, one.last) == (2, False, 1010.0, 1030.0)
    later = [*again, ("stage", "train", {"status": "running"})]
    assert incidents_of(record(*later, alive=True, status="running"), 1050.0)[0].over
    done = [*later, ("stage", "train", {"status": "done"})]
    (mended,) = incidents_of(record(*done, status="done"), 2000.0)
    assert mended.over
    assert mended.id == one.id
    assert not any(each.action == "resume" for each in mended.remedies)


def test_kinds_of_failure() -> None:
    for error, code, kind in (
        ("/data: no space left on the disk (No space left on device)", 1, "disk-full"),
        ("out of memory", 1, "out-of-memory"),
        ("needs 80 GiB, 24 GiB are free", 6, "refused"),
        ("ValueError: x", 1, "failed"),
    ):
        facts = {"status": "failed", "error": error, "exit_code": code}
        (one,) = incidents_of(record(("stage", "train", facts), status="failed"), 2000.0)
        assert one.kind == kind
        assert ("runs gc" in str(one.remedies)) == (kind == "disk-full")


def test_a_run_that_failed_before_any_stage() -> None:
    facts = {"status": "failed", "exit_code": 6, "cause": "train does not fit", "remedy": "eagle3ops plan shows it"}
    (one,) = incidents_of(record(("run", None, facts), status="failed"), 2000.0)
    assert (one.kind, one.stage) == ("refused", "")
    assert one.remedies[0].command == "eagle3ops plan"


def test_silence_is_told_of_a_living_run_only_and_grows_worse() -> None:
    events = (("run", None, {"status": "running"}), ("stage", "serve", {"status": "running"}))
    logs = {"serve.log": LogEnd("serve.log", 10, 1020.0)}
    assert incidents_of(record(*events, alive=True, status="running", logs=logs), 1020.0 + SILENT_S - 1) == []
    assert incidents_of(record(*events, status="failed", logs=logs), 9000.0) == []
    early, late = (
        incidents_of(record(*events, alive=True, status="running", logs=logs), now)[0] for now in (1200.0, 4000.0)
    )
    assert (early.severity, late.severity) == ("warn", "error")
    assert early.id == late.id
    assert early.first == 1020.0
    assert "3 min 00 s" in early.title


def test_an_undecided_verdict_warns() -> None:
    told = {"name": "wiring", "passed": False, "verdict": "UNDECIDED", "reason": "more noise than is known"}
    made = record(("stage", "verify", {"status": "done"}), ("verdict", "verify", told), status="done")
    (found,) = [one for one in incidents_of(made, 2000.0) if one.kind == "verdict"]
    assert (found.severity, found.title) == ("warn", "verify/wiring: UNDECIDED")
    assert "is not proven" in found.explanation
    assert found.remedies[0].action == "wiring"


def test_verdicts_warnings_interruptions_and_programs() -> None:
    made = record(
        ("stage", "verify", {"status": "running"}),
        ("process", "verify", {"role": "engine", "state": "ended", "pid": 8, "code": -11}),
        ("process", "verify", {"role": "other", "state": "ended", "pid": 9, "code": -15}),
        ("warn", "verify", {"text": "slow"}),
        ("warn", "verify", {"text": "slow"}),
        ("verdict", "verify", {"name": "wiring", "passed": False, "reason": "off by one"}),
        ("verdict", "bench", {"name": "equal_output", "passed": True, "reason": "same"}),
        status="interrupted",
        interruption="interrupted: its supervisor (pid 4) was killed",
    )
    found = {one.kind: one for one in incidents_of(made, 2000.0)}
    assert set(found) == {"verdict", "warning", "interrupted", "died"}
    assert found["warning"].count == 2
    assert found["verdict"].remedies[0].action == "wiring"
    assert found["verdict"].remedies[0].command.startswith("eagle3ops runs wiring ")
    assert [one.log for one in found["verdict"].evidence] == [None, "verify.log"]
    # A log that says nothing is no evidence.
    made.logs["verify.log"] = LogEnd("verify.log", 0, 1500.0)
    silent = {one.kind: one for one in incidents_of(made, 2000.0)}
    assert [one.log for one in silent["verdict"].evidence] == [None]
    assert silent["warning"].evidence == ()
    assert found["died"].title == "engine ended by SIGSEGV"
    assert found["interrupted"].stage == "verify"
    assert found["interrupted"].remedies[0].action == "resume"


def test_what_the_watchdog_writes_is_read_back_as_it_was() -> None:
    made = record(("warn", "train", {"text": "x"}), status="running", alive=True)
    (one,) = incidents_of(made, 2000.0)
    assert from_json(json.loads(json.dumps(one.as_json()))) == one
    written = record(
        ("incident", "train", {"title": "deadlock", "severity": "error", "evidence": [{"what": "0 % CPU"}]})
    )
    (told,) = incidents_of(written, 2000.0)
    assert (told.title, told.run, told.stage, told.first, told.severity) == ("deadlock", RUN, "train", 1000.0, "error")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=5,
)
WORDS = st.sampled_from(
    [
        "status",
        "name",
        "passed",
        "reason",
        "text",
        "role",
        "state",
        "code",
        "pid",
        "log",
        "error",
        "signal",
        "remedy",
        "cause",
        "exit_code",
        "process_exit",
        "id",
        "title",
        "max_memory_bytes",
        "severity",
        "first",
        "last",
        "evidence",
        "remedies",
        "what",
        "offset",
        "words",
        "action",
        "command",
        "count",
        "kind",
        "run",
        "stage",
        "over",
    ]
)
VALUES = JSON | st.sampled_from(["running", "failed", "done", "ended", "started", "SIGKILL", "error", -9, -11, 1e400])
KINDS = st.sampled_from(["run", "stage", "warn", "verdict", "process", "incident", "metric", "error"])


def test_what_was_given_up_shows_why_it_hung_without_asking_for_what_is_over() -> None:
    hung = {"id": "x", "kind": "deadlock", "severity": "error", "title": "nothing moves", "first": 1010.0,
            "explanation": "No CPU.", "evidence": [{"what": "rank 2 is the odd one"}],
            "remedies": [{"words": "See the stacks."}]}  # fmt: skip
    events: list[tuple[str, str | None, dict[str, Any]]] = [
        ("stage", "train", {"status": "running"}),
        ("incident", "train", hung),
        ("remedy", "train", {"incident": "x", "step": "give_up", "why": "nothing is left"}),
        ("stage", "train", {"status": "failed", "exit_code": 4, "error": "stopped by the watchdog"}),
        ("run", None, {"status": "failed", "exit_code": 4, "cause": "train: stopped by the watchdog"}),
    ]
    (one,) = (one for one in incidents_of(record(*events, status="failed"), 2000.0) if not one.over)
    assert one.kind == "given-up"
    assert one.explanation.startswith("No CPU. It hung")
    assert one.evidence[0].what == "rank 2 is the odd one"
    assert [each.words for each in one.remedies][:2] == ["See the stacks.", "take the run up again where it stopped"]


def test_what_hung_is_over_with_its_attempt_although_its_guard_did_not_say_so() -> None:
    events: list[tuple[str, str | None, dict[str, Any]]] = [
        ("stage", "train", {"status": "running"}),
        ("incident", "train", {"id": "x", "title": "nothing moves", "severity": "error"}),
    ]
    ended: tuple[str, str | None, dict[str, Any]] = ("run", None, {"status": "cancelled"})
    over = [
        one.over
        for more in ([], [ended], [events[0]])
        for one in incidents_of(record(*events, *more, alive=True), 1030.0)
        if one.title == "nothing moves"
    ]
    assert over == [False, True, True]


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            KINDS, st.none() | st.sampled_from(["train", "", "\x1b"]), st.dictionaries(WORDS, VALUES, max_size=8)
        ),
        max_size=12,
    ),
    st.booleans(),
    st.sampled_from(["failed", "done", "running", "interrupted", "?"]),
)
def test_any_record_gives_incidents_that_json_can_hold(events: Any, alive: bool, status: str) -> None:
    found = incidents_of(record(*events, alive=alive, status=status, interruption="x"), 5000.0)
    assert len({one.id for one in found}) == len(found)
    for one in found:
        assert one.severity in SEVERITIES
        assert one.title
        json.dumps(one.as_json(), allow_nan=False)
        assert from_json(one.as_json()) == one


GPU = st.sampled_from(["i", "uuid", "state", "recovery", "xid_last", "ecc_volatile", "reason_names", "temp_c"])


@settings(max_examples=40)
@given(
    JSON
    | st.fixed_dictionaries(
        {
            "t": st.just(5.0),
            "gpu": st.lists(st.dictionaries(GPU, JSON, max_size=8), max_size=3),
            "host": st.dictionaries(st.sampled_from(["disks", "shm", "memory", "psi"]), JSON),
        }
    )
)
def test_any_sample_gives_incidents(sample: Any) -> None:
    for one in machine_incidents(sample):
        json.dumps(one.as_json(), allow_nan=False)


def test_a_sick_machine() -> None:
    gpu = {"i": 3, "uuid": "GPU-x", "state": "ok", "recovery": "reset the GPU", "xid_last": {"xid": 79, "t": 90.0}}
    gpu |= {"ecc_volatile": 2, "reason_names": ["gpu idle", "hardware thermal slowdown"], "temp_c": 95}
    disk = {"total": 1 << 40, "free": 1 << 30}
    host: dict[str, Any] = {"disks": {"/data/runs": disk, "/data": disk, "/": {"total": 100 << 30, "free": 60 << 30}}}
    host |= {"memory": {"total": 64 << 30, "available": 1 << 30}, "shm": {"total": 64 << 20, "free": 64 << 20}}
    sample = {"t": 100.0, "boot": "b", "gpu": [gpu, {"i": 4, "state": "lost"}], "host": host}
    found = {one.title: one for one in machine_incidents(sample)}
    assert set(found) == {
        "GPU 3: the driver advises: reset the GPU",
        "GPU 3: Xid 79",
        "GPU 3: 2 memory errors that could not be corrected",
        "GPU 3 is slowed down: hardware thermal slowdown",
        "GPU 4: lost",
        "/data is nearly full: 1.0 GiB free",
        "memory is short: 1.0 GiB available of 64.0 GiB",
    }
    assert found["GPU 3: Xid 79"].severity == "error"
    assert found["GPU 3: Xid 79"].first == 90.0
    assert {one.id for one in machine_incidents(sample)} == {one.id for one in machine_incidents(sample | {"t": 200.0})}
    assert machine_incidents({"t": 100.0, "boot": "b", "gpu": [], "host": {}}) == []


@settings(max_examples=50)
@given(st.binary(max_size=300))
def test_any_log_has_a_telling_line(tail: bytes) -> None:
    at, line = telling_line(tail)
    assert len(line) <= 300
    assert at is None or 0 <= at < len(tail)
    assert at is not None or not tail.strip()


def test_the_telling_line_is_the_error_under_the_last_traceback() -> None:
    trace = b"Traceback (most recent call last):\n"
    log = b"step 1\n" + trace + b"  File x\nKeyError: 'a'\nstep 2\n" + trace + b"  File y\nValueError: b\nbye\n"
    at, line = telling_line(log)
    assert line == "ValueError: b"
    assert at is not None
    assert log[at:].startswith(b"Traceback")
    assert telling_line(b"a\nb: c\n\n") == (2, "b: c")


def test_the_telling_line_tells_no_secret_not_even_half_of_one() -> None:
    for before in (b"", b"x" * 270, b"x" * 290):
        for secret in (b"hf_" + b"cAnArY" * 4, b"https://ann:cAnArY-cAnArY-cAnArY@hub.example/"):
            assert "cAn" not in telling_line(before + b" key " + secret)[1]


def test_remedies_name_their_command() -> None:
    told = remedy_from("free some space (eagle3ops runs gc --yes), then resume")
    assert told.command == "eagle3ops runs gc --yes"
    assert remedy_from("eagle3ops --job train first").command == "eagle3ops --job train"
    assert remedy_from("see /x/train.log").command == ""


def make(root: Path, run_id: str, status: str, **facts: Any) -> RunDirectory:
    run = RunDirectory(root / "runs" / run_id)
    run.logs.mkdir(parents=True)
    (run.path / "request.json").write_text(json.dumps({"job": "pipeline", "stages": [], "cache": ""}))
    (run.path / "state.json").write_text(json.dumps({"status": status, "exit_code": 1} | facts))
    return run


def test_the_op_reads_runs_on_and_says_what_a_later_run_got_past(tmp_path: Path) -> None:
    here = ops_runs.here(str(tmp_path))
    assert ops_incidents.incidents(here)["incidents"] == []
    run = make(tmp_path, "20261130-054512-demo-bbbb", "failed")
    (run.logs / "train.log").write_bytes(b"a\nTraceback (most recent call last):\n  x\nValueError: no\n")
    with EventLog(run.events_file) as log:
        log.append("stage", {"status": "failed", "error": "ValueError: no"}, "train")
    (one,) = ops_incidents.incidents(here)["incidents"]
    assert one["evidence"][0] == {"what": "train: ValueError: no", "log": "train.log", "offset": 2}
    assert f"--root {tmp_path}" in one["remedies"][0]["command"]
    with EventLog(run.events_file) as log:
        log.append("warn", {"text": "more"}, "train")
    assert len(ops_incidents.incidents(here, run="bbbb")["incidents"]) == 2

    later = make(tmp_path, "20261130-064512-demo-dddd", "running")
    me = identify(os.getpid())
    assert me is not None
    (later.path / "supervisor.json").write_text(json.dumps(asdict(me) | {"heartbeat": time.time()}))
    with EventLog(later.events_file) as log:
        log.append("stage", {"status": "done"}, "train")
    found = ops_incidents.incidents(here)
    assert all(each["over"] for each in found["incidents"])
    assert found["runs"][0] == later.run_id


HANG: dict[str, Any] = {
    "id": "w1",
    "kind": "stopped",
    "severity": "error",
    "title": "generate: stopped",
    "explanation": "A signal did.",
}
HANG |= {"evidence": [{"what": "state T"}], "remedies": [{"words": "see it", "action": "evidence"}], "folder": "/r/i-1"}
HUNG: list[tuple[str, str | None, dict[str, Any]]] = [
    ("run", None, {"status": "running"}),
    ("stage", "generate", {"status": "running"}),
    ("incident", "generate", HANG),
]
ENDED = ("process", "generate", {"role": "engine", "state": "ended", "pid": 8, "code": -9})


def test_a_hang_stands_until_its_attempt_has_ended_and_its_end_is_no_crash() -> None:
    (stands,) = incidents_of(record(*HUNG, alive=True, status="running"), 9000.0)
    assert not stands.over, "and it is not silent besides"
    assert [one.action for one in stands.remedies] == ["evidence", "cancel", "gpus", "run", "logs"]
    restart = {"step": "restart", "incident": "w1", "why": "restart 1 of 1 for this fault"}
    again = ("stage", "generate", {"status": "running", "attempt": 2})
    restarted = record(*HUNG, ENDED, ("remedy", "generate", restart), again, alive=True, status="running")
    (over,) = incidents_of(restarted, 1070.0)
    assert over.over
    assert over.evidence[-1].what == "the watchdog: ended and started again: restart 1 of 1 for this fault"
    assert [one.action for one in over.remedies] == ["evidence"]
    # What ends by a signal in the next attempt is another thing.
    died = record(*HUNG, ENDED, again, ENDED, alive=True, status="running")
    assert sorted(one.kind for one in incidents_of(died, 1070.0)) == ["died", "stopped"]


def test_a_stage_that_failed_while_it_hung_has_the_evidence_of_the_watchdog() -> None:
    for error, code, kind in (("stopped by the watchdog: it hung", 4, "given-up"), ("not ready in 600 s", 1, "failed")):
        facts = {"status": "failed", "error": error, "exit_code": code, "remedy": "see eagle3ops incidents x says more"}
        told = {one.kind: one for one in incidents_of(record(*HUNG, ENDED, ("stage", "generate", facts)), 2000.0)}
        assert set(told) == {kind, "stopped"}
        assert told["stopped"].over
        assert not told[kind].over
        shown = [one.what for one in told[kind].evidence]
        first = ["generate: not ready in 600 s", "the watchdog: generate: stopped"] if kind == "failed" else []
        assert shown[: len(first) + 1] == [*first, "state T"]
        assert told[kind].explanation.startswith("A signal did. ")
        assert told[kind].folder == "/r/i-1"
        assert told[kind].remedies[0].action == "evidence"
        assert ("eagle3ops incidents x" in {one.command for one in told[kind].remedies}) == (kind == "failed")


def test_the_title_of_a_failure_names_its_root_cause() -> None:
    root = {"file": "engine.log", "line_no": 8, "offset": 70, "text": "OutOfMemoryError: x\n" + "y" * 300}
    facts = {"status": "failed", "error": "exit code 1", "exit_code": 1, "root": root}
    (one,) = incidents_of(record(("stage", "use", facts), status="failed"), 2000.0)
    assert one.title.startswith("use failed: OutOfMemoryError: x yyy")
    assert one.title.endswith("... (engine.log)")
    assert [each.what for each in one.evidence][1] == "use: exit code 1"
