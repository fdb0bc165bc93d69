"""Does a window into a log show exactly what stands there, whatever bytes it is made of and however it changes?"""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from agent_world import AgentWorld
from hypothesis import given
from hypothesis import strategies as st

from eagle3ops.errors import RequestError
from eagle3ops.hosts.agent import logs
from eagle3ops.hosts.agent.logs import LINE_CAP, LineIndex, LineIndexes, read_lines, read_window, torn_tail
from eagle3ops.hosts.client import AgentClient
from eagle3ops.runs import log_files

texts = st.lists(
    st.sampled_from(
        [b"a", b"line", b"\n", b"\n\n", b"\r", "ü".encode(), "漢".encode(), "🙂".encode(), b"\xff", b"\x80"]
    ),
    max_size=40,
).map(b"".join)


@contextmanager
def opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY)
    try:
        yield fd
    finally:
        os.close(fd)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("log") / "x.log"


def expected_lines(content: bytes) -> list[str]:
    lines = content.split(b"\n")
    if not lines[-1]:
        lines.pop()
    return [line.removesuffix(b"\r").decode("utf-8", errors="replace") for line in lines]


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries of the index so close together that small files have many."""
    monkeypatch.setattr(logs, "CHUNK", 7)
    monkeypatch.setattr(logs, "_PROOF", 4)


@given(content=texts, line=st.integers(-45, 45), count=st.integers(1, 45), chunk=st.integers(1, 9))
def test_lines_are_those_of_the_file(file: Path, content: bytes, line: int, count: int, chunk: int) -> None:
    with pytest.MonkeyPatch.context() as patch, opened_with(file, content) as fd:
        patch.setattr(logs, "CHUNK", chunk)
        patch.setattr(logs, "_PROOF", 1)
        window = read_lines(fd, line, count, LineIndex())
    lines = expected_lines(content)
    first = max(0, len(lines) + line) if line < 0 else min(line, len(lines))
    assert list(window.lines) == lines[first : first + count]
    assert window.first == first
    assert window.total == len(lines)
    assert content[window.offset : window.end].count(b"\n") == len(window.lines) - (not window.complete)
    assert window.offset == 0 or not window.lines or content[window.offset - 1 : window.offset] == b"\n"
    assert window.complete or not content.endswith(b"\n")


@contextmanager
def opened_with(path: Path, content: bytes) -> Iterator[int]:
    path.write_bytes(content)
    with opened(path) as fd:
        yield fd


@given(content=texts, offset=st.integers(-60, 60), length=st.integers(4, 30))
def test_a_raw_window_says_exactly_which_bytes_it_is(file: Path, content: bytes, offset: int, length: int) -> None:
    with opened_with(file, content) as fd:
        window = read_window(fd, offset, length)
    start, end = window["offset"], window["end"]
    assert window["text"] == content[start:end].decode("utf-8", errors="replace")
    assert window["size"] == len(content)
    asked = max(0, len(content) + offset) if offset < 0 else min(offset, len(content))
    assert asked <= start <= asked + 3
    assert end <= asked + length


@given(content=texts, length=st.integers(4, 9))
def test_windows_put_side_by_side_are_the_text(file: Path, content: bytes, length: int) -> None:
    text, offset = "", 0
    with opened_with(file, content) as fd:
        while (window := read_window(fd, offset, length))["end"] > offset:
            assert window["offset"] == offset
            text += window["text"]
            offset = window["end"]
    assert offset == len(content)
    assert text == content.decode("utf-8", errors="replace")


@given(st.text(min_size=1), st.integers(0, 3))
def test_a_torn_character_is_measured(text: str, missing: int) -> None:
    whole = text.encode("utf-8", errors="replace")
    last = text[-1].encode("utf-8", errors="replace")
    torn = whole[: len(whole) - min(missing, len(last) - 1)]
    kept = len(last) - (len(whole) - len(torn))
    assert torn_tail(torn) == (kept if len(torn) < len(whole) else 0)


def test_an_index_grows_with_its_file_and_is_begun_anew_for_another(tmp_path: Path, small_chunks: None) -> None:
    path = tmp_path / "x.log"
    index = LineIndex()
    content = b""
    for number in range(30):
        content += f"line {number}\n".encode()
        path.write_bytes(content)
        with opened(path) as fd:
            assert read_lines(fd, number, 1, index).lines == (f"line {number}",)
    assert index.covered > 200
    # Cut and written again to more than before, as logrotate's copytruncate does.
    path.write_bytes(b"other\n" * 100)
    with opened(path) as fd:
        assert read_lines(fd, 99, 1, index).lines == ("other",)
        assert read_lines(fd, 100, 1, index).lines == ()
    path.write_bytes(b"short\n")
    with opened(path) as fd:
        assert read_lines(fd, -1, 1, index).lines == ("short",)


def test_counting_goes_on_where_it_was(tmp_path: Path, small_chunks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(b"abc\n" * 1000)
    index = LineIndex()
    with opened(path) as fd:
        index.extend(fd, 4000)
        read: list[int] = []
        real = logs._read

        def counted(fd: int, at: int, length: int) -> bytes:
            read.append(length)
            return real(fd, at, length)

        monkeypatch.setattr(logs, "_read", counted)
        assert read_lines(fd, 990, 2, index).lines == ("abc", "abc")
        assert sum(read) < 600


def test_few_indexes_are_kept(tmp_path: Path) -> None:
    indexes = LineIndexes(keep=3)
    for number in range(10):
        path = tmp_path / f"{number}.log"
        path.write_bytes(b"x\n")
        with opened(path) as fd:
            assert indexes.of(fd) is indexes.of(fd)
    assert len(indexes) == 3


def test_a_huge_line_is_shown_by_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    huge = "ü".encode() * LINE_CAP
    path.write_bytes(b"before\n" + huge + b"\nafter\n")
    with opened(path) as fd:
        window = read_lines(fd, 0, 10, LineIndex())
    assert window.lines[::2] == ("before", "after")
    assert window.lines[1] == "ü" * (LINE_CAP // 2) + f" [... {LINE_CAP} more bytes]"
    assert window.end == path.stat().st_size


def test_a_window_that_is_full_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "WINDOW_BYTES", 100)
    path = tmp_path / "x.log"
    path.write_bytes(b"0123456789\n" * 50)
    with opened(path) as fd:
        window = read_lines(fd, 0, 50, LineIndex())
        assert (len(window.lines), window.more, window.end) == (10, True, 110)
        assert not read_lines(fd, 45, 50, LineIndex()).more


def test_a_log_too_long_to_count_is_shown_from_its_end_without_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "COUNT_AT_ONCE", 100)
    path = tmp_path / "x.log"
    path.write_bytes(b"".join(b"%d\n" % number for number in range(1000)))
    index = LineIndex()
    with opened(path) as fd:
        window = read_lines(fd, -2, 2, index)
        assert (window.lines, window.first, window.total) == (("998", "999"), None, None)
        assert index.covered == 0


BAD_NAMES = ["", "/etc/passwd", "../request.json", "a/../../x", "./x.log", "a//b", "x.log/", "a\0b.log", "\ud800.log"]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_name_does_not_lead_out_of_the_logs(agents: AgentWorld, name: str) -> None:
    run = agents.made_run()
    with pytest.raises(RequestError, match="is not the name of a log"):
        log_files.find_log(run, name)


def test_links_out_of_the_run_fifos_and_folders_are_refused(agents: AgentWorld, tmp_path: Path) -> None:
    run = agents.made_run()
    (run.logs / "real.log").write_text("x\n")
    (run.logs / "engine").mkdir()
    (run.logs / "engine" / "rank-0.log").write_text("y\n")
    (run.logs / "inside.log").symlink_to("real.log")
    (run.logs / "out.log").symlink_to("/etc/passwd")
    (run.logs / "folder").symlink_to(tmp_path)
    (run.logs / "loop").symlink_to("loop")
    os.mkfifo(run.logs / "fifo")
    assert [log["log"] for log in log_files.list_logs(run)] == ["engine/rank-0.log", "inside.log", "real.log"]
    for name, reason in [
        ("out.log", "leads out of the run"),
        ("folder/x", "leads out of the run"),
        ("fifo", "not a file"),
        ("engine", "not a file"),
        ("none.log", "has no log"),
    ]:
        with pytest.raises(RequestError, match=reason), log_files.open_log(run, name):
            raise AssertionError("opened")
    with log_files.open_log(run, "inside.log") as fd:
        assert os.read(fd, 9) == b"x\n"


def test_evidence_is_read_like_logs_and_leads_nowhere_else(agents: AgentWorld, tmp_path: Path) -> None:
    run = agents.made_run()
    folder = run.artifacts / "incident-1"
    (folder / "stacks-1").mkdir(parents=True)
    (folder / "stacks-1" / "7.txt").write_text("main\n")
    (folder / "dossier.json").write_text("{}\n")
    (folder / "out.txt").symlink_to("/etc/passwd")
    (run.artifacts / "incident-2").symlink_to(tmp_path)
    (run.artifacts / "train").mkdir()
    (run.artifacts / "train" / "x").write_text("x\n")
    assert [log["log"] for log in log_files.list_logs(run, "incident-1")] == [
        "incident-1/dossier.json", "incident-1/stacks-1/7.txt",
    ]  # fmt: skip
    assert not any("incident" in log["log"] for log in log_files.list_logs(run))
    assert log_files.list_logs(run, "incident-2") == log_files.list_logs(run, "incident-9") == []
    with log_files.open_log(run, "incident-1/stacks-1/7.txt") as fd:
        assert os.read(fd, 9) == b"main\n"
    for name in ("incident-1/out.txt", "incident-2/x", "incident-1/../train/x", "incident-1", "train/x"):
        with pytest.raises(RequestError), log_files.open_log(run, name):
            raise AssertionError("opened")
    for name in ("train", "..", "incident-1/..", "/etc"):
        with pytest.raises(RequestError, match="folder of evidence"):
            log_files.list_logs(run, name)


async def test_windows_and_following_through_an_agent(agents: AgentWorld) -> None:
    run = agents.made_run(alive=True)
    async with await AgentClient.connect(agents.transport()) as client:
        stream = client.stream("log.follow", run="last", log="train.log")
        first = asyncio.ensure_future(anext(stream))
        await client.call("ping")
        log = run.logs / "train.log"
        log.write_bytes("eins\nzwei ü".encode()[:-1])
        assert await first == [{"offset": 0, "end": 10, "text": "eins\nzwei "}]
        with log.open("ab") as file:
            file.write("ü\n".encode()[1:])
        assert await anext(stream) == [{"offset": 10, "end": 13, "text": "ü\n"}]
        log.write_bytes(b"new\n")
        anew = await anext(stream)
        assert anew[0]["reset"]
        assert anew[0]["offset"] == 0
        # Emptied first, written afterwards: the agent may look in between.
        while anew[-1]["end"] < 4:
            anew += await anext(stream)
        assert "".join(piece["text"] for piece in anew) == "new\n"
        with log.open("ab") as file:
            file.write(b"\xf0\x9f")
        listed = await client.call("log.list", run="last")
        assert [(entry["log"], entry["size"]) for entry in listed["logs"]] == [("train.log", 6)]
        agents.set_alive(run, False)
        # What never became a character is shown once the run is over.
        assert [piece async for items in stream for piece in items] == [{"offset": 4, "end": 6, "text": "\ufffd"}]
        assert stream.result == {"run": run.run_id, "log": "train.log", "status": "interrupted", "end": 6}
        window = await client.call("log.lines", run="last", log="train.log", line=-1, count=5)
        assert (window["lines"], window["first"], window["complete"]) == (["\ufffd"], 1, False)
        raw = await client.call("log.read", run="last", log="train.log", offset=-5, max_bytes=4)
        assert (raw["offset"], raw["end"], raw["text"]) == (1, 4, "ew\n")
        end = client.stream("log.follow", run="last", log="train.log", offset=-3)
        assert (await anext(end))[0]["offset"] == 3
        for bad in ({"count": 0}, {"line": "x"}):
            with pytest.raises(RequestError):
                await client.call("log.lines", run="last", log="train.log", **bad)
        with pytest.raises(RequestError, match=r"its logs: train\.log"):
            await client.call("log.read", run="last", log="none.log")
