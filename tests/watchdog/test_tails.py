"""Are logs followed whatever is done to them while they are written?"""

import os
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from eagle3ops.watchdog.guard import logs
from eagle3ops.watchdog.guard.logs import Tails, clean


def _texts(tails: Tails) -> list[str]:
    return [text for _, text, _ in tails.read()]


def test_only_whole_lines_and_each_once(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("first\nsecond\nhal")
    tails = Tails([log])
    assert [(name, text) for name, text, _ in tails.read()] == [("server.log", "first"), ("server.log", "second")]
    assert _texts(tails) == []
    with log.open("a") as file:
        file.write("f\nthird\n")
    assert _texts(tails) == ["half", "third"]


def test_segments_of_a_progress_bar_are_lines(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"\rLoading:  10%\rLoading:  20%\r\nnext\r\n")
    assert _texts(Tails([log])) == ["Loading:  10%", "Loading:  20%", "next"]


def test_a_log_that_is_cut_is_read_from_its_beginning(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("one\ntwo\nthree\n")
    tails = Tails([log])
    tails.read()
    os.truncate(log, 0)
    assert _texts(tails) == []
    with log.open("a") as file:
        file.write("new\n")
    assert _texts(tails) == ["new"]


def test_a_log_that_is_moved_away_is_read_to_its_end_and_then_the_new_one(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    with log.open("a") as writer:
        writer.write("one\n")
        writer.flush()
        tails = Tails([log])
        assert _texts(tails) == ["one"]
        log.rename(tmp_path / "a.log.1")
        writer.write("last words\n")
        writer.flush()
        assert _texts(tails) == ["last words"]  # while there is no new one
        log.write_text("begun anew\n")
        writer.write("very last words\n")
        writer.flush()
        assert _texts(tails) == ["very last words"]
        assert _texts(tails) == ["begun anew"]


def test_a_log_may_come_later(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    tails = Tails([log])
    assert tails.read() == []
    assert tails.reasons == {"a.log": "No such file or directory"}
    log.write_text("here\n")
    assert _texts(tails) == ["here"]
    assert tails.reasons == {}


def test_nobodys_pipe_is_opened(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    tails = Tails([pipe, tmp_path])
    assert tails.read() == []
    assert set(tails.reasons.values()) == {"not a regular file"}


def test_what_was_there_before_has_the_files_time(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("old\n")
    os.utime(log, (1000.0, 1000.0))
    tails = Tails([log], clock=lambda: 50.0, wall=lambda: 1030.0)
    assert tails.read() == [("a.log", "old", 20.0)]
    with log.open("a") as file:
        file.write("new\n")
    assert tails.read() == [("a.log", "new", 50.0)]


def test_of_a_long_log_the_beginning_and_the_end_are_read(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    with log.open("w") as file:
        file.write("the beginning\n")
        for number in range(100_000):
            file.write(f"line {number} ".ljust(50, ".") + "\n")
        file.write("the end\n")
    tails = Tails([log])
    lines = _texts(tails)
    assert lines[0] == "the beginning"
    assert lines[-1] == "the end"
    assert tails.skipped > 2_000_000
    assert sum(map(len, lines)) < logs.HEAD_BYTES + logs.READ_BYTES


def test_an_endless_line_is_cut(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"x" * 500_000)
    tails = Tails([log])
    assert [len(text) for text in _texts(tails)] == [logs.LINE_BYTES]
    with log.open("ab") as file:
        file.write(b"x" * 100_000 + b"\nnext\n")
    assert _texts(tails) == ["next"]


def test_logs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    paths = [tmp_path / name / "out.log" for name in ("a", "b")]
    for path in paths:
        path.parent.mkdir()
        path.write_text("x\n")
    assert [name for name, _, _ in Tails(paths).read()] == [str(path) for path in paths]


@given(st.binary(max_size=300))
def test_no_line_can_steer_a_terminal(data: bytes) -> None:
    assert all(character.isprintable() or ord(character) > 0x9F or character == "\t" for character in clean(data))


@given(st.lists(st.binary(max_size=200), max_size=6))
def test_any_bytes_in_any_pieces(tmp_path_factory: object, pieces: list[bytes]) -> None:
    import tempfile

    with tempfile.NamedTemporaryFile(suffix=".log") as file:
        tails = Tails([Path(file.name)])
        found: list[str] = []
        for piece in pieces:
            file.write(piece)
            file.flush()
            found += _texts(tails)
        whole = b"".join(pieces).replace(b"\r", b"\n").rpartition(b"\n")[0].split(b"\n")
        assert found == [text for line in whole if (text := clean(line))]
        tails.close()


def test_what_an_earlier_attempt_wrote_is_not_read(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("crashed with exit code -15\n")
    start = log.stat().st_size
    with log.open("a") as file:
        file.write("begun again\n")
    tails = Tails()
    tails.follow([log], {log: start})
    assert _texts(tails) == ["begun again"]
    log.write_text("anew\n")
    assert _texts(tails) == ["anew"]
    other = Tails()
    other.follow([log], {log: 10_000})  # it was replaced since
    assert _texts(other) == ["anew"]
