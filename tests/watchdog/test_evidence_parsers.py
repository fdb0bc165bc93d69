"""Do the readers of foreign text survive anything, and do they read the real recordings rightly?"""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from eagle3ops.watchdog.evidence import dossier, flight, locks, machine, pickled, procfs, sockets, stacks
from eagle3ops.watchdog.evidence.dossier import safe_name
from eagle3ops.watchdog.evidence.flight_files import find_records
from eagle3ops.watchdog.evidence.stacks import Dump, cluster, describe, parse_dump

LINE = st.one_of(
    st.text(max_size=80),
    st.sampled_from(
        [
            'Thread 758 (idle): "MainThread"',
            "Thread 819 (active+gil)",
            "    all_reduce (torch/distributed/distributed_c10d.py:2810)",
            "    f (a.py:1) (b)",
            "    <module> (<string>:1)",
            "Error: Failed to get stack traces",
            "0: Permission denied (os error 13)",
            "--- stack",
            "1: FLOCK  ADVISORY  WRITE 3652 00:1b:1234 0 EOF",
            "1: -> FLOCK  ADVISORY  WRITE 3653 00:1b:1234 0 EOF",
            "2: POSIX ADVISORY READ -1 fd:zz:1 0 EOF",
            "   0: 0100007F:7530 00000000:0000 0A 00000000:00000005 00:00000000 00000000     0        0 1234 1 0 100",
            "   0: 0000000000000000FFFF00000100007F:7530 00000000000000000000000000000000:0000 01 0:0 0:0 0 0 0 12",
            "   0: 0100:7530 1:2 3 4 5 6 7 8 9",
        ]
    ),
)
TEXT = st.lists(LINE, max_size=20).map("\n".join)


@given(TEXT)
def test_stacks_of_anything(text: str) -> None:
    dump = parse_dump(text, 7)
    assert bool(dump.missing) != any(thread.frames for thread in dump.threads)
    found = cluster([dump, Dump(pid=8)], {7: "x"}, [dump])
    assert all(one.pids == (7,) and one.standing in ((7,), ()) for one in found)
    describe(found, {}, twice=True)


@given(TEXT)
def test_tables_of_the_kernel(text: str) -> None:
    for lock in locks.parse_locks(text):
        assert isinstance(lock.inode, int)
    for one in sockets.parse_tcp(text):
        assert ":" in one.local
    machine.parse_shm(text, {1})
    locks.file_system(text, "/a/b")
    procfs.write_target(text)


@given(st.binary(max_size=300))
def test_bytes_of_the_kernel(data: bytes) -> None:
    procfs.parse_environment(data)
    procfs.parse_status(data)
    machine.parse_kmsg(data)


@given(st.text(max_size=50), st.lists(st.text(max_size=10), max_size=3))
def test_names_of_files_stay_below_their_folder(text: str, taken: list[str]) -> None:
    name = safe_name(text, taken)
    assert name not in taken
    assert "/" not in name
    assert not name.startswith(".")


def test_a_table_of_locks() -> None:
    text = "1: FLOCK  ADVISORY  WRITE 3652 fd:01:1234 0 EOF\n1: -> FLOCK  ADVISORY  WRITE 7 fd:01:1234 0 EOF\n"
    held, waiting = locks.parse_locks(text)
    assert (held.pid, held.major, held.minor, held.inode, held.waiting) == (3652, 0xFD, 1, 1234, False)
    assert (waiting.pid, waiting.waiting) == (7, True)


def test_a_file_system_on_a_place_with_a_blank() -> None:
    mounts = (
        "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n"
        "2 1 0:5 / /mnt/my\\040data rw shared:1 - nfs4 server:/x rw\n"
        "3 1 0:6 / /mnt/my rw - tmpfs none rw\n"
    )
    assert locks.file_system(mounts, "/mnt/my data/lock") == "nfs4"
    assert locks.file_system(mounts, "/mnt/my") == "tmpfs"
    assert locks.file_system(mounts, "/home") == "ext4"


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=10),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=4)
        | st.tuples(inner, inner)
        | st.tuples(inner, inner, inner, inner)
    ),
    max_leaves=20,
)


@given(PLAIN, st.integers(0, pickle.HIGHEST_PROTOCOL))
def test_plain_pickles_are_read_as_python_reads_them(value: Any, protocol: int) -> None:
    # Protocol 0 and 1 write some constants by name or as text; what is read is equal, what is not is refused.
    try:
        read = pickled.load_plain(pickle.dumps(value, protocol))
    except pickled.PickleRefused:
        assert protocol < 2
        return
    assert read == value


@given(st.binary(max_size=200))
@example(b"\x80\x02r\xff\xff\xff\xff.")
@example(b"\x80\x02Nr\xff\xff\xff\xff.")
@example(b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7f.")
@example(b"(lp0\n(dp1\ng0\ng1\ns.")
def test_pickles_of_anything_are_refused_or_plain(data: bytes) -> None:
    try:
        json.dumps(pickled.load_plain(data), default=str)
    except (pickled.PickleRefused, ValueError, RecursionError, TypeError):
        # The last three come from what is done with it here.
        return


class Evil:
    def __reduce__(self) -> Any:
        return (exec, ("raise SystemExit('it was carried out')",))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_that_calls_something_is_refused_by_its_name(protocol: int) -> None:
    with pytest.raises(pickled.PickleRefused, match=r"exec"):
        pickled.load_plain(pickle.dumps({"entries": [Evil()]}, protocol))
    for other in (b"x", bytearray(b"x"), {1}, 1j):
        with pytest.raises(pickled.PickleRefused):
            pickled.load_plain(pickle.dumps([other], protocol))


@given(PLAIN | st.fixed_dictionaries({"entries": PLAIN, "pg_status": PLAIN, "pg_config": PLAIN}))
def test_records_of_any_shape(content: Any) -> None:
    try:
        groups = flight.read_record(pickle.dumps(content))
    except pickled.PickleRefused:
        return
    flight.match({0: groups, 1: groups})


def record(rank: int, operations: list[str], *, sizes: int = 4, done: int | None = None, ranks: int = 4) -> bytes:
    """What a rank would have written, as JSON."""
    last = len(operations)
    done = last - 1 if done is None else done
    entries = [
        {
            "process_group": ["0", "default_pg"],
            "collective_seq_id": number,
            "profiling_name": f"nccl:{operation}",
            "input_sizes": [[sizes]],
            "input_dtypes": ["Float"],
            "output_sizes": [[sizes]],
            "output_dtypes": ["Float"],
            "state": "completed" if number <= done else "started",
            "is_p2p": False,
        }
        for number, operation in enumerate(operations, 1)
    ]
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(ranks)))}}
    status = {"0": {"last_enqueued_collective": last, "last_started_collective": -1, "last_completed_collective": done}}
    return json.dumps({"pg_config": config, "pg_status": status, "entries": entries}).encode()


def judge(*files: bytes) -> flight.Verdict:
    (verdict,) = flight.match({rank: flight.read_record(data) for rank, data in enumerate(files)})
    return verdict


def test_a_rank_that_did_not_come() -> None:
    here, there = ["broadcast", "all_reduce", "all_reduce"], ["broadcast", "all_reduce"]
    verdict = judge(record(0, here), record(1, here), record(2, there, done=2), record(3, here))
    assert verdict.blamed == (2,)
    assert "rank 2 asked for 2 collectives, ranks 0, 1, 3 for 3" in verdict.words
    assert "wait in nccl:all_reduce [4] Float (#3, started)" in verdict.words


def test_a_rank_that_does_something_else() -> None:
    verdict = judge(*(record(rank, ["all_reduce", "broadcast" if rank == 1 else "all_reduce"]) for rank in range(4)))
    assert verdict.blamed == (1,)
    assert (
        "another operation on some ranks as #2: ranks 0, 2, 3: nccl:all_reduce, rank 1: nccl:broadcast" in verdict.words
    )
    verdict = judge(*(record(rank, ["all_reduce"], sizes=8 if rank == 3 else 4) for rank in range(4)))
    assert verdict.blamed == (3,)
    assert "another size or type" in verdict.words
    free = flight.match(
        {rank: flight.read_record(record(rank, ["all_to_all"], sizes=rank + 1, ranks=2)) for rank in range(2)}
    )
    assert free[0].blamed == ()


def test_nobody_is_to_blame_and_nothing_is_open() -> None:
    verdict = judge(*(record(rank, ["all_reduce"] * 3) for rank in range(4)))
    assert verdict.blamed == ()
    assert "the same on all" in verdict.words
    done = {rank: flight.read_record(record(rank, ["all_reduce"] * 3, done=3)) for rank in range(4)}
    assert flight.match(done) == []


def test_ranks_without_a_record() -> None:
    verdict = judge(*(record(rank, ["all_reduce"] * 3) for rank in range(3)))
    assert (verdict.silent, verdict.blamed) == ((3,), (3,))
    # Most are elsewhere: this is one host of several.
    verdict = judge(record(0, ["all_reduce"] * 3, ranks=64))
    assert (len(verdict.silent), verdict.blamed) == (63, ())


@pytest.mark.recordings
def test_the_records_of_two_real_gpus(recordings: Path) -> None:
    found = find_records(recordings / "gpu/flight_recorder", [])
    assert [rank for rank, _ in found] == [0, 1]
    # Python's own reading agrees.
    data = found[0][1].read_bytes()
    assert pickled.load_plain(data) == pickle.loads(data)
    (verdict,) = flight.match({rank: flight.read_record(path.read_bytes()) for rank, path in found})
    assert verdict.blamed == (1,)
    assert "rank 1 asked for 160 collectives, rank 0 for 161: rank 0 waits in nccl:all_reduce" in verdict.words
    assert verdict.words.endswith("asked for in <module> (/opt/g2/ddp.py:25) for rank 1")
    # The same in the other layout.
    as_json = [json.dumps(pickle.loads(path.read_bytes())).encode() for _, path in found]
    assert flight.match({rank: flight.read_record(text) for rank, text in enumerate(as_json)}) == [verdict]


@pytest.mark.recordings
def test_the_stacks_of_real_processes(recordings: Path) -> None:
    folder = recordings / "gpu/pyspy"
    dumps = {
        path.stem: parse_dump(path.read_text(), number) for number, path in enumerate(sorted(folder.glob("*.txt")))
    }
    missing = {name for name, dump in dumps.items() if dump.missing}
    assert missing == {"pyspy_idle_scheduler"}
    assert dumps["pyspy_idle_scheduler"].missing.startswith(
        "Failed to get stack traces; Failed to call get_stack_trace"
    )
    main = dumps["pyspy_stopped_scheduler"].main
    assert main is not None
    assert main.frames[0] == stacks.Frame("EnvField.get", "environ.py", 55)
    assert [thread.role for thread in dumps["pyspy_idle_main"].threads][:3] == [
        "MainThread",
        "monitor",
        "_watchdog_thread",
    ]


@pytest.mark.recordings
def test_the_real_mismatch_shows_the_odd_rank(recordings: Path) -> None:
    dumps = [
        parse_dump((recordings / f"gpu/pyspy/g_mismatch_pyspy_{pid}.txt").read_text(), pid) for pid in (758, 798, 799)
    ]
    found = cluster(dumps, {758: "launcher", 798: "rank", 799: "rank"})
    assert [one.pids for one in found if one.odd] == [(799,)]
    told = describe(found, {798: "rank 0", 799: "rank 1"}, twice=False)
    assert (
        "rank 0 in synchronize (torch/cuda/__init__.py:1162); rank 1 in <module> (ddp.py:23): rank 1 is the odd one"
        in told
    )


RANKS = """Process {pid}: python train.py
Python v3.12.3 (/usr/bin/python3.12)

Thread {pid} (active): "MainThread"
    {top}
    step (train.py:{line})
    main (train.py:9)
"""


def test_seven_of_eight() -> None:
    waiting, odd = (
        "all_reduce (torch/distributed/distributed_c10d.py:2810)",
        "rendezvous (torch/_symmetric_memory.py:7)",
    )
    dumps = [
        parse_dump(RANKS.format(pid=rank, top=odd if rank == 3 else waiting, line=40 + rank), rank) for rank in range(8)
    ]
    found = cluster(dumps, dict.fromkeys(range(8), "python train.py"), dumps)
    assert [one.pids for one in found if one.odd] == [(3,)]
    names = {rank: f"rank {rank}" for rank in range(8)}
    assert describe(found, names, twice=True) == [
        f"7 of 8 stand in {waiting}; rank 3 stands in {odd}: rank 3 is the odd one"
    ]
    # Rank 3 goes on working: the others wait for it.
    moved = [*dumps[:3], parse_dump(RANKS.format(pid=3, top="forward (model.py:1)", line=1), 3), *dumps[4:]]
    found = cluster(moved, dict.fromkeys(range(8), "python train.py"), dumps)
    assert [(one.pids, one.standing) for one in found if one.odd] == [((3,), ())]
    assert "rank 3 moves through forward (model.py:1): rank 3 is the odd one" in describe(found, names, twice=True)[0]


def test_who_holds_the_gil_all_the_time() -> None:
    text = RANKS.format(pid=1, top="rendezvous (torch/_symmetric_memory.py:7)", line=1).replace("active", "active+gil")
    held, moved = parse_dump(text, 1), parse_dump(text.replace(":7)", ":8)"), 1)
    assert stacks.hold_the_gil([held], [held]) == [1]
    assert stacks.hold_the_gil([held], [moved]) == []
    assert stacks.hold_the_gil([held], []) == []


MANIFEST_NAME = st.text(max_size=12) | st.sampled_from(
    ["../x", "/etc/x", "a/../../x", "a//b", ".hidden", "a/b.json", "before"]
)


@given(
    st.fixed_dictionaries({"steps": st.lists(st.fixed_dictionaries({"files": st.lists(MANIFEST_NAME)}) | st.none())})
)
def test_a_foreign_manifest_moves_nothing_out_of_its_folder(manifest: dict[str, Any]) -> None:
    for name in dossier._names(manifest):
        top = name.split("/", 1)[0]
        assert top not in ("", ".", "..")
        assert not top.startswith(".")


def test_two_that_do_different_things_are_not_blamed() -> None:
    dumps = [parse_dump(RANKS.format(pid=rank, top=f"work_{rank} (x.py:1)", line=1), rank) for rank in range(2)]
    assert not any(one.odd for one in cluster(dumps, {0: "job", 1: "job"}))
    assert stacks.normalise(dumps[0].threads[0].frames)[1].line is None


KILLED = (
    "[{at}.1] python invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
    "[{at}.2] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg={group},"
    "task_memcg={group},task=python,pid={pid},uid=0",
    "[{at}.3] Memory cgroup out of memory: Killed process {pid} (python) total-vm:74948kB, anon-rss:59144kB",
)


def _killed(pid: int, group: str = "/other", at: int = 100) -> list[str]:
    return [line.format(pid=pid, group=group, at=at) for line in KILLED]


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        pytest.param(_killed(7), 2, id="one of them"),
        pytest.param(_killed(8), 0, id="somebody else"),
        pytest.param(_killed(8, "/jobs/a/b"), 2, id="of their group, and gone"),
        pytest.param(_killed(8, "/jobs/ab"), 0, id="of a group with a longer name"),
        pytest.param(_killed(7, at=10), 0, id="long before"),
        pytest.param(["[100.0] INFO: task python3:8 blocked for more than 122 seconds."], 0, id="a task of another"),
        pytest.param(["[100.0] INFO: task python3:7 blocked for more than 122 seconds."], 1, id="a task of theirs"),
        pytest.param(["[100.0] python3[8]: segfault at 0 ip 0 sp 0 error 4 in libc.so.6"], 0, id="a crash of another"),
        pytest.param(["[100.0] watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python3:7]"], 1, id="a lockup"),
        pytest.param(["[100.0] nfs: server a not responding, still trying"], 1, id="names nobody"),
        pytest.param(
            ["[100.0] NVRM: Xid (PCI:0000:19:00): 79, pid='<unknown>', GPU has fallen off the bus"], 1, id="xid"
        ),
    ],
)
def test_what_the_kernel_says_of_others_is_no_evidence(
    lines: list[str], told: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_contained", lambda: False)
    processes = [{"pid": 7, "name": "python", "cgroup": "1:cpu:/\n0::/jobs/a\n"}]
    assert len(machine.kernel_findings(lines, processes, since_s=50.0)) == told


def test_in_a_container_the_programs_name_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_contained", lambda: True)
    for name, told in (("python", 2), ("java", 0)):
        found = machine.kernel_findings(_killed(99), [{"pid": 7, "name": name, "cgroup": "0::/\n"}])
        assert len(found) == told
