"""Do rows say what runs recorded, are only changed ones sent, and do notes outlive their run?"""

import json
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3ops import cli
from eagle3ops.errors import Refused, RequestError
from eagle3ops.hosts.agent import ops_incidents, ops_ledger, ops_runs, protocol
from eagle3ops.runs.compare import compare
from eagle3ops.runs.deletion import delete_run
from eagle3ops.runs.directory import RunDirectory, list_runs
from eagle3ops.runs.events import EventLog
from eagle3ops.runs.gc import collect, find_garbage
from eagle3ops.runs.ledger import show
from eagle3ops.runs.ledger_rows import changes
from eagle3ops.runs.notes import add_note, kept_file, kept_files, notes_file, notes_of, read_kept, read_notes
from eagle3ops.runs.processes import identify

FIRST, SECOND = "20261130-044512-demo-aaaa", "20261130-054512-demo-bbbb"


def make(
    root: Path, run_id: str, *, alive: bool = False, spec: str = "name: x\nseed: 1\n", **state: Any
) -> RunDirectory:
    run = RunDirectory(root / "runs" / run_id)
    run.logs.mkdir(parents=True)
    (run.path / "request.json").write_text(json.dumps({"job": "pipeline", "stages": [], "cache": "", "source": "x"}))
    (run.path / "state.json").write_text(json.dumps({"status": "done", "exit_code": 0} | state))
    run.spec_file.write_text(spec)
    if alive:
        me = identify(os.getpid())
        assert me is not None
        (run.path / "supervisor.json").write_text(json.dumps(asdict(me) | {"heartbeat": time.time()}))
    return run


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for run_id, speedup in ((FIRST, 1.2), (SECOND, 1.5)):
        run = make(tmp_path, run_id, spec=f"name: x\nseed: {speedup}\nstages: {{}}\n")
        with EventLog(run.events_file) as log:
            log.append("metric", {"name": "train/loss_0", "value": 3.0, "step": 1}, "train")
            log.append("metric", {"name": "speedup", "value": speedup}, "bench")
            log.append("metric", {"name": "bad", "value": float("nan")}, "bench")
            log.append("verdict", {"name": "wiring", "passed": speedup < 1.4, "reason": "r"}, "verify")
    return tmp_path


def test_an_undecided_verdict_is_neither(root: Path) -> None:
    with EventLog(RunDirectory(root / "runs" / FIRST).events_file) as log:
        log.append("verdict", {"name": "wiring", "passed": False, "verdict": "UNDECIDED", "reason": "r"}, "verify")
    rows = {row["run_id"]: row for row in changes(root)["rows"]}
    assert rows[FIRST]["verdicts"] == {"verify/wiring": None}


def test_a_run_says_which_patches_its_engine_had(root: Path) -> None:
    run = RunDirectory(root / "runs" / FIRST)
    with EventLog(run.events_file) as log:
        log.append("info", {"text": "x", "patch": {"recipe": "toy", "standing": "applied"}}, "serve")
        log.append("info", {"text": "x", "patch": {"recipe": "toy", "standing": "drifted"}}, "bench")
        for wrong in ("toy", {"recipe": 3, "standing": "applied"}, {"recipe": "", "standing": "x"}, {"recipe": "y"}):
            log.append("info", {"text": "x", "patch": wrong}, "serve")
        log.append("warn", {"text": "x", "patch": {"recipe": "no", "standing": "applied"}}, "serve")
    assert {row["run_id"]: row["patches"] for row in changes(root)["rows"]} == {FIRST: {"toy": "drifted"}, SECOND: {}}
    assert show(root, FIRST)["patches"] == {"toy": "drifted"}
    add_note(run, hypothesis="kept")
    delete_run(run)
    gone = next(row for row in changes(root)["rows"] if row["run_id"] == FIRST)
    assert (gone["status"], gone["patches"]) == ("deleted", {"toy": "drifted"})


def test_rows_hold_figures_and_only_changed_ones_come_again(root: Path) -> None:
    first = changes(root)
    rows = {row["run_id"]: row for row in first["rows"]}
    assert rows[FIRST]["figures"] == {"bench/speedup": 1.2}
    assert rows[SECOND]["verdicts"] == {"verify/wiring": False}
    assert (first["total"], first["pending"], first["more"]) == (2, 0, False)
    known: dict[str, Any] = {"generation": first["generation"], "since": first["version"]}
    assert changes(root, **known)["rows"] == []

    run = RunDirectory(root / "runs" / FIRST)
    with EventLog(run.events_file) as log:
        log.append("info", {"text": "nothing of interest"}, "bench")
        assert changes(root, **known)["rows"] == []
        log.append("metric", {"name": "speedup", "value": 1.3}, "bench")
    add_note(run, hypothesis="it is faster")
    (row,) = changes(root, **known)["rows"]
    assert row["figures"] == {"bench/speedup": 1.3}
    assert row["note"] == {"hypothesis": "it is faster"}

    # Another generation, a deleted or damaged index: everything again.
    assert len(changes(root, generation="x", since=99)["rows"]) == 2
    (root / "ledger.sqlite").write_bytes(b"no database" * 500)
    again = changes(root, **known)
    assert len(again["rows"]) == 2
    # Cut and written anew.
    run.events_file.write_text("")
    after = changes(root, generation=again["generation"], since=again["version"])
    assert [row["figures"] for row in after["rows"]] == [{}]


def test_half_characters_and_other_oddities_hide_no_run(root: Path) -> None:
    run = RunDirectory(root / "runs" / FIRST)
    lines = [
        r'{"seq":9,"ts":1,"stage":null,"kind":"metric","data":{"name":"\ud800","value":1e999}}',
        r'{"seq":10,"ts":1,"stage":"\ud800","kind":"metric","data":{"name":"x\u0000","value":2}}',
        r'{"seq":11,"ts":1e308,"stage":"a","kind":"warn","data":{"text":"\ud800"}}',
        r'{"seq":12,"ts":1e999,"stage":"a","kind":"stage","data":{"status":"failed"}}',
        r'{"seq":13,"ts":1,"stage":"a","kind":"verdict","data":{"name":["x"],"passed":"yes"}}',
    ]
    with run.events_file.open("a") as file:
        file.write("\n".join(lines) + "\n")
    state = json.loads((run.path / "state.json").read_text()) | {"cause": "\ud800", "started": "soon", "ended": 1e999}
    (run.path / "state.json").write_text(json.dumps(state))
    rows = {row["run_id"]: row for row in changes(root)["rows"]}
    assert rows[FIRST]["figures"] == {"bench/speedup": 1.2, "\ud800/x\0": 2.0}
    assert rows[FIRST]["started"] is None
    here = ops_runs.here(str(root))
    for answer in (ops_ledger.rows(here), ops_incidents.incidents(here), compare(root, FIRST, SECOND)):
        assert json.loads(protocol.encode({"id": 1, "ok": answer}))["ok"]


def test_little_time_and_few_rows_at_a_time(root: Path) -> None:
    hasty = changes(root, budget_s=-1.0)
    assert hasty["pending"] == 2
    assert [row["figures"] for row in hasty["rows"]] == [{}, {}]
    whole = changes(root, generation=hasty["generation"], since=hasty["version"])
    assert whole["pending"] == 0
    assert len(whole["rows"]) == 2
    page = changes(root, limit=1)
    assert page["more"]
    rest = changes(root, generation=page["generation"], since=page["version"], limit=1)
    assert not rest["more"]
    assert {page["rows"][0]["run_id"], rest["rows"][0]["run_id"]} == {FIRST, SECOND}


def test_an_index_that_cannot_be_written_costs_time_and_nothing_else(root: Path) -> None:
    (root / "ledger.sqlite").mkdir()
    found = changes(root, generation="x", since=7, budget_s=-1.0)
    assert (len(found["rows"]), found["pending"]) == (2, 0)


def test_notes_are_added_shown_and_outlive_the_run(root: Path) -> None:
    here = ops_runs.here(str(root))
    for _ in range(2):
        told = ops_ledger.note(
            here, run="aaaa", hypothesis="  more steps help ", change="api_key=hf_aaaaaaaaaaaaaaaaaaaaaa"
        )
    assert len(told["notes"]) == 1, "asked for twice, as its answer was lost"
    ops_ledger.note(here, run="aaaa", outcome="they do not")
    run = RunDirectory(root / "runs" / FIRST)
    assert "hf_" not in notes_file(run).read_text()
    assert [note["outcome"] for note in show(root, "aaaa")["notes"]] == ["", "they do not"]
    with pytest.raises(RequestError, match="at least one"):
        ops_ledger.note(here, run="aaaa", outcome="  ")
    with pytest.raises(RequestError, match="characters"):
        ops_ledger.note(here, run="aaaa", outcome="x" * 5000)

    would = ops_ledger.delete(here, run="aaaa")
    assert would["notes_kept"]
    assert not would["deleted"]
    before = changes(root)
    gone = ops_ledger.delete(here, run="aaaa", delete=True)
    assert gone["deleted"]
    assert list_runs(root) == [SECOND]
    assert list((root / "runs").iterdir()) == [root / "runs" / SECOND]
    assert [note["hypothesis"] for note in ops_ledger.notes(here, run=FIRST)["notes"]] == ["more steps help", ""]
    (row,) = changes(root, generation=before["generation"], since=before["version"])["rows"]
    assert (row["status"], row["cause"], row["figures"]) == ("deleted", "deleted; it was done", {"bench/speedup": 1.2})
    assert row["note"]["outcome"] == "they do not"


def test_gc_keeps_notes_and_takes_what_a_killed_deletion_left(root: Path) -> None:
    add_note(RunDirectory(root / "runs" / FIRST), outcome="kept")
    left = root / "runs" / f".{SECOND}.gone"
    left.mkdir()
    os.utime(left, (0, 0))
    gone = collect(find_garbage(root, keep=1))
    assert {item.path.name for item in gone} == {FIRST, left.name}
    (path,) = kept_files(root)
    about, notes = read_kept(path)
    assert (path.stem, about["status"], notes[0].outcome) == (FIRST, "done", "kept")


def test_a_running_run_is_not_deleted(root: Path) -> None:
    run = make(root, "20261130-064512-demo-cccc", alive=True, status="running")
    with pytest.raises(Refused, match="is running"):
        delete_run(run)
    with pytest.raises(Refused, match="is running"):
        ops_ledger.delete(ops_runs.here(str(root)), run=run.run_id, delete=True)
    assert run.path.is_dir()


def test_comparison_groups_what_differs_and_what_does_not(root: Path) -> None:
    found = compare(root, FIRST, SECOND)
    sections = {section["name"]: section for section in found["sections"]}
    assert sections["spec"]["different"] == [["seed", 1.2, 1.5]]
    assert sections["spec"]["equal"] == [["name", "x"]]
    assert sections["metrics"]["different"] == [["bench/speedup", 1.2, 1.5]]
    assert [row["run_id"] for row in found["runs"]] == [FIRST, SECOND]


@settings(max_examples=30)
@given(
    st.binary(max_size=200)
    | st.dictionaries(st.text(max_size=9), st.text(max_size=9)).map(lambda x: json.dumps(x).encode())
)
def test_any_file_of_notes_can_be_read(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    root = tmp_path_factory.getbasetemp() / "any"
    run = RunDirectory(root / "runs" / FIRST)
    run.path.mkdir(parents=True, exist_ok=True)
    notes_file(run).write_bytes(content)
    before = read_notes(notes_file(run))
    added = add_note(run, outcome="still")
    assert read_notes(notes_file(run)) == [*before, added]
    assert notes_of(run)[-1]["outcome"] == "still"
    kept_file(root, FIRST).parent.mkdir(exist_ok=True)
    kept_file(root, FIRST).write_bytes(content)
    assert len(changes(root)["rows"]) == 1


def test_commands_note_show_delete_and_tell_incidents(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def call(*words: str) -> tuple[int, str]:
        code = cli.main([*words, "--root", str(root)])
        return code, capsys.readouterr().out

    assert call("runs", "note", "aaaa")[1] == ""
    assert call("runs", "note", "aaaa", "--hypothesis", "more steps help", "--outcome", "\x1b[31mno")[0] == 0
    for words in (("runs", "note", "aaaa"), ("runs", "show", "aaaa")):
        told = call(*words)[1]
        assert "hypothesis: more steps help" in told
        assert "\x1b" not in told
    assert "would be deleted; its notes are kept" in call("runs", "delete", "aaaa")[1]
    assert list_runs(root) == [FIRST, SECOND]
    assert json.loads(call("runs", "delete", "aaaa", "--yes", "--json")[1])["notes_kept"]
    assert list_runs(root) == [SECOND]
    code, told = call("incidents")
    assert code == 0
    assert "verify/wiring: FAIL" in told
    assert json.loads(call("incidents", "bbbb", "--json")[1])[0]["kind"] == "verdict"
    assert call("runs", "delete", "nothing")[0] == 2
