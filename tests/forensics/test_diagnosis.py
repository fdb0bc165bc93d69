"""Is the one cause found, and nothing where nothing failed? On logs of every kind, and on what is left of them."""

import json
import random
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mutations import FILES, MUTATIONS, beside_a_healthy_one, healthy, interleaved, write

from eagle3ops.errors import RequestError
from eagle3ops.forensics import scan
from eagle3ops.forensics.diagnosis import Diagnosis, diagnose_files
from eagle3ops.forensics.lines import visible
from eagle3ops.runs.redact import redact

ISSUES = tomllib.loads((Path(__file__).parent / "issues.toml").read_text(encoding="utf-8"))["log"]
LOGS = tomllib.loads((Path(__file__).parent / "logs.toml").read_text(encoding="utf-8"))["log"]


def diagnose(folder: Path, data: bytes) -> Diagnosis:
    path = folder / "a.log"
    path.write_bytes(data)
    return diagnose_files([path])


@pytest.mark.parametrize("log", LOGS + ISSUES, ids=[log["name"] for log in LOGS + ISSUES])
def test_a_log_of_each_kind(log: dict[str, Any], tmp_path: Path) -> None:
    found = diagnose(tmp_path, log["text"].encode())
    assert found.verdict == log.get("verdict", "failure"), found
    if "root" not in log:
        assert found.root is None
        return
    assert found.root is not None
    assert log["root"] in found.root.text or log.get("also", "\0") in found.root.text
    assert found.root.category == log["category"]
    assert found.root.fix
    assert found.root.explanation
    assert found.root.source
    assert len(found.root.fingerprint) == 16
    assert found.suspect_ranks == log.get("suspects", found.suspect_ranks)
    stands_at(found, tmp_path / "a.log")


def stands_at(found: Diagnosis, path: Path) -> None:
    """Offset and number of every line point at what is said to stand there."""
    data = path.read_bytes()
    for place in (found.root, *found.discounted):
        if place is not None:
            end = data.find(b"\n", place.offset)
            assert place.offset == 0 or data[place.offset - 1 : place.offset] == b"\n"
            assert redact(visible(data[place.offset : end if end >= 0 else len(data)]))[:1000] == place.text
            assert data.count(b"\n", 0, place.offset) + 1 == place.line_no


def test_each_kind_in_a_log_that_is_too_long_to_read_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "WHOLE", 0)
    monkeypatch.setattr(scan, "HEAD", 200)
    monkeypatch.setattr(scan, "TAIL", 8000)
    quiet = b"".join(b"[launcher] preflight %d: fine\n" % n for n in range(2000))
    for log in LOGS:
        if "root" in log and log["category"] != "hang_silent":
            found = diagnose(tmp_path, quiet + log["text"].encode())
            assert found.root is not None, log["name"]
            assert found.root.category == log["category"], log["name"]
            stands_at(found, tmp_path / "a.log")


def test_a_cause_among_very_many_errors(tmp_path: Path) -> None:
    noise = b"ERROR 03-11 09:14:14 [client.py:7] request %d failed: Connection reset by peer\nstep %d loss 3.1\n"
    many = b"".join(noise % (number, number) for number in range(30_000))
    cause = b"[rank3]: OSError: [Errno 28] No space left on device\n"
    found = diagnose(tmp_path, many + cause + noise.partition(b"\n")[0] + b"\n" + many.replace(b"step", b"stop"))
    assert found.root is not None
    assert found.root.category == "disk_full"
    stands_at(found, tmp_path / "a.log")


def test_a_cause_in_another_file(tmp_path: Path) -> None:
    first, second = tmp_path / "rank0.log", tmp_path / "rank1.log"
    first.write_text(
        "2026-04-02 11:00:03 - t - ERROR - [rank0] RuntimeError: Connection closed by peer [10.0.0.2]:7073\n"
        "2026-04-02 11:00:04 - t - ERROR - ValueError: nothing came\n"
    )
    second.write_text("2026-04-02 11:00:02 - t - ERROR - ValueError: row 7 is empty\n")
    found = diagnose_files([first, second])
    assert found.root is not None
    assert found.root.file == str(second)
    assert found.root.text.endswith("row 7 is empty")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="cannot be read: No such file"):
        diagnose_files([tmp_path / "none.log"])
    with pytest.raises(RequestError, match="cannot be read: Is a directory"):
        diagnose_files([tmp_path])


def test_memory_stays_small_and_nothing_is_lost_between_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "BLOCK", 257)
    for log in LOGS:
        found = diagnose(tmp_path, log["text"].encode())
        assert found.verdict == log.get("verdict", "failure"), log["name"]
        stands_at(found, tmp_path / "a.log")


PIECES = st.sampled_from(
    [
        b"Traceback (most recent call last):\n",
        b'  File "a.py", line 1, in <module>\n',
        b"ValueError: \x1b[31mred\x1b[0m\n",
        b"[rank3]: ",
        b"(Worker_TP1 pid=7) ERROR 99-99 99:99:99 [a.py:1] ",
        b"[2026-13-45 25:61:61 TP0] ",
        b"During handling of the above exception, another exception occurred:\n",
        b"Process 1: scheduler_PP1\n",
        b"CUDA out of memory\r",
        b"\n",
        b"  | ",
        b"\x9b31m\xe2\x80\xae\x00",
    ]
)


@settings(max_examples=150)
@given(st.lists(st.one_of(PIECES, st.binary(max_size=40)), max_size=40).map(b"".join))
def test_garbage(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    folder = tmp_path_factory.mktemp("log")
    found = diagnose(folder, data)
    said = json.dumps(found.plain(), ensure_ascii=False)
    assert said.isprintable()
    stands_at(found, folder / "a.log")


def right(found: Diagnosis, truth: dict[str, Any]) -> tuple[bool, bool]:
    """Is the line the right one, and the category?"""
    wanted = [words for words in (truth["root_cause_line_contains"], *truth.get("also_ok", [])) if words]
    if not wanted:
        return found.root is None and found.verdict == "no_failure", found.root is None
    line = found.root is not None and any(words in found.root.text for words in wanted)
    return line, found.root is not None and found.root.category == truth["category"]


def known(cases: Path) -> list[tuple[Path, dict[str, Any]]]:
    return [(path.with_suffix(".log"), json.loads(path.read_text())) for path in sorted(cases.glob("*.json"))]


@pytest.mark.cases
def test_logs_with_known_causes(cases: Path) -> None:
    wrong_line, wrong_category = [], []
    found_cases = known(cases)
    for path, truth in found_cases:
        found = diagnose_files([path])
        line, category = right(found, truth)
        wrong_line += [] if line else [path.name]
        wrong_category += [] if category else [path.name]
        stands_at(found, path)
        assert found.verdict == ("no_failure" if truth["kind"] == "clean" else truth["kind"]), path.name
        if "suspect_ranks" in truth:
            assert found.suspect_ranks == truth["suspect_ranks"]
    assert not wrong_line
    assert len(wrong_category) <= 0.05 * len(found_cases), wrong_category


@pytest.mark.cases
@pytest.mark.parametrize("name", MUTATIONS)
def test_logs_with_known_causes_as_another_run_would_write_them(name: str, cases: Path, tmp_path: Path) -> None:
    missed, tried = [], 0
    for path, truth in known(cases):
        marks = [words.encode() for words in (truth["root_cause_line_contains"], *truth.get("also_ok", [])) if words]

        def is_root(line: bytes, marks: list[bytes] = marks) -> bool:
            return any(mark in line for mark in marks)

        mutate: Callable[..., list[bytes]] = MUTATIONS[name]
        lines = mutate(random.Random(path.name), path.read_bytes().split(b"\n"), is_root)
        tried += 1
        if not all(right(diagnose(tmp_path, b"\n".join(lines)), truth)):
            missed.append(path.name)
    assert len(missed) < 0.05 * tried, missed


@pytest.mark.cases
@pytest.mark.parametrize("name", FILES)
def test_logs_with_known_causes_in_several_files(name: str, cases: Path, tmp_path: Path) -> None:
    missed, tried = [], 0
    for path, truth in known(cases):
        files = FILES[name](random.Random(path.name), path.read_bytes().split(b"\n"))
        tried += 1
        if not all(right(diagnose_files(write(tmp_path, files)), truth)):
            missed.append(path.name)
    assert len(missed) < 0.05 * tried, missed


@pytest.mark.cases
def test_an_end_that_a_log_names_is_none_of_its_neighbours(cases: Path, tmp_path: Path) -> None:
    """Where a log says that an engine has ended, what another one writes into the same log does not hide it."""
    ends = (b"sigquit from a child", b"EngineCore failed to start", b"ChildFailedError", b"EngineDeadError")
    missed, tried = [], 0
    for path, truth in known(cases):
        lines = path.read_bytes().split(b"\n")
        if truth["kind"] == "failure" and any(end in line for line in lines for end in ends):
            tried += 1
            data = b"\n".join(beside_a_healthy_one(random.Random(path.name), lines))
            if not all(right(diagnose(tmp_path, data), truth)):
                missed.append(path.name)
    assert tried > 15
    assert len(missed) < 0.05 * tried, missed


@pytest.mark.parametrize("engine", ["sglang", "vllm", "trainer"])
def test_two_healthy_logs_in_one(engine: str, tmp_path: Path) -> None:
    one = healthy(engine, 80)
    two = [line.replace(b"9", b"2") for line in one]
    for seed in range(5):
        assert diagnose(tmp_path, b"\n".join(interleaved(random.Random(seed), one, two))).verdict == "no_failure"


@pytest.mark.recordings
def test_real_healthy_logs_in_one(recordings: Path, tmp_path: Path) -> None:
    for names in (("sglang-cpu/c23a", "sglang-cpu/cpu2"), ("vllm-cpu/base", "vllm-cpu/eagle"), ("vllm-cpu/bench",) * 2):
        logs = [(recordings / f"{name}.log").read_bytes().split(b"\n") for name in names]
        for seed in range(3):
            found = diagnose(tmp_path, b"\n".join(interleaved(random.Random(seed), *logs)))
            assert (found.verdict, found.root) == ("no_failure", None)


@pytest.mark.recordings
def test_logs_of_real_engines(recordings: Path) -> None:
    def verdict(name: str) -> tuple[str, str | None]:
        found = diagnose_files([recordings / name])
        return found.verdict, found.root.category if found.root is not None else None

    for name in ("base", "bench", "eagle"):
        assert verdict(f"vllm-cpu/{name}.log") == ("no_failure", None)
    for name in ("c23a", "cpu2", "cpu5", "wd"):
        assert verdict(f"sglang-cpu/{name}.log") == ("no_failure", None)
    assert verdict("vllm-cpu/noeagle3.log") == ("failure", "missing_eagle3_interface")
    assert verdict("vllm-cpu/fail_torchvision.log") == ("failure", "abi_mismatch")
    assert verdict("sglang-cpu/wd2.log") == ("hang", "hang_watchdog")
    assert verdict("gpu/logs/ddp-mismatch.log") == ("hang", "nccl_timeout")
    # Of a real server on a GPU, packed; none of them was in view when the tables were written.
    for name in ("E-server_s3k1d4", "E-server_s3k4d16", "E-server_s5k1d6", "E-wrong-server_shift", "runA-server_base"):
        assert verdict(f"gpu/logs/{name}.log.gz") == ("no_failure", None)
    assert verdict("gpu/logs/E-wrong-server_embed.log.gz") == ("failure", "python_exception")
    assert verdict("gpu/logs/F-server_s3k1d4.log.gz") == ("failure", "process_killed")
    assert verdict("gpu/logs/runA-server_hs.log.gz") == ("failure", "cuda_kernel_fault")
