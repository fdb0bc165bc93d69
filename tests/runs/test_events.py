"""Is the event log whole after crashes, with several writers, and whatever bytes are in it?"""

import fcntl
import json
import multiprocessing
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3ops.runs import events
from eagle3ops.runs.events import Event, EventLog, EventReader, parse_line, read_events

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def write_many(path: Path, count: int) -> None:
    with EventLog(path) as log:
        for number in range(count):
            log.append("info", {"number": number}, "stage")


def test_several_processes_number_their_events_without_gaps(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=write_many, args=(path, 50)) for _ in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [event.seq for event in read_events(path)] == list(range(1, 151))


def test_threads_share_one_log(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with EventLog(path) as log:
        threads = [
            threading.Thread(target=lambda: [log.append("metric", {"value": n}) for n in range(50)]) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [event.seq for event in read_events(path)] == list(range(1, 201))


@pytest.mark.parametrize("torn", [b'{"seq":3,"ts":1.0,"sta', b"\x00\x00\x00", b"{", b'{"seq":9}'])
def test_a_torn_last_line_is_skipped_and_repaired(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "events.jsonl"
    write_many(path, 2)
    with path.open("ab") as file:
        file.write(torn)
    reader = EventReader(path)
    assert [event.seq for event in reader.read()] == [1, 2]
    with EventLog(path) as log:
        assert log.append("info", {}).seq == 3
    assert [event.seq for event in reader.read()] == [3]
    assert all(json.loads(line) for line in path.read_text().splitlines())


def test_numbers_go_on_behind_a_long_damaged_stretch(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    write_many(path, 3)
    with path.open("ab") as file:
        file.write(b"garbage\n" * 40_000)
    with EventLog(path) as log:
        assert log.append("info", {}).seq == 4


def test_a_reader_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    reader = EventReader(path, after=1)
    assert reader.read() == []
    write_many(path, 3)
    assert [event.seq for event in reader.read()] == [2, 3]
    assert reader.read() == []
    assert [event.seq for event in read_events(path, after=2)] == [3]


@given(st.binary(max_size=200))
def test_any_bytes_can_be_read(content: bytes) -> None:
    event = parse_line(content)
    if event is not None:
        assert parse_line(event.line().encode("utf-8", errors="replace")) is not None


@given(st.dictionaries(st.sampled_from(["seq", "ts", "stage", "kind", "data", "x"]), json_values))
def test_any_json_can_be_read(fields: dict[str, object]) -> None:
    parse_line(json.dumps(fields).encode())


@given(content=st.binary(max_size=300), data=st.dictionaries(st.text(), json_values, max_size=3))
def test_after_any_content_a_new_event_can_be_written_and_read(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, data: dict[str, object]
) -> None:
    path = tmp_path_factory.mktemp("events") / "events.jsonl"
    path.write_bytes(content)
    with EventLog(path) as log:
        written = log.append("info", data, "stage")
    assert [event.seq for event in read_events(path)][-1] == written.seq
    assert path.read_bytes().startswith(content[: content.rfind(b"\n") + 1])


@given(
    pieces=st.lists(st.sampled_from([b"garbage\n", b"\n", b"\xff\xfe{}\n", b"event"]), max_size=12),
    size=st.integers(1, 200),
    torn=st.sampled_from([b"", b'{"seq":99,"ts"']),
)
def test_reading_in_pieces_is_reading_at_once_and_can_go_on_anywhere(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes], size: int, torn: bytes
) -> None:
    path = tmp_path_factory.mktemp("events") / "events.jsonl"
    content, number = b"", 0
    for piece in pieces:
        if piece == b"event":
            number += 1
            event = Event(number, 1.5, "stage", "info", {"text": "x" * number * 7})
            piece = event.line().encode() + b"\n"
        content += piece
    path.write_bytes(content + torn)
    found = []
    reader = EventReader(path)
    while (chunk := reader.read_raw(size)) is not None:
        found += chunk
    assert [raw.event for raw in found] == EventReader(path).read() == list(read_events(path))
    assert reader.offset == len(content)
    for raw in found:
        assert parse_line(raw.line) == raw.event
        assert content[: raw.offset].endswith(raw.line + b"\n")
        rest = EventReader(path, raw.event.seq, raw.offset).read()
        assert [event.seq for event in rest] == list(range(raw.event.seq + 1, number + 1))


def test_a_reader_notices_that_the_file_was_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    write_many(path, 5)
    reader = EventReader(path)
    assert len(reader.read()) == 5
    path.write_bytes(b"")
    assert reader.read() == []
    write_many(path, 7)
    assert [event.seq for event in reader.read()] == [6, 7]


def test_a_writer_that_was_stopped_with_the_lock_in_its_hand_stops_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "LOCK_S", 0.1)
    path = tmp_path / "events.jsonl"
    with EventLog(path) as stopped, EventLog(path) as other:
        stopped.append("run", {})
        fcntl.flock(stopped._fd, fcntl.LOCK_EX)
        assert [other.append("metric", {}).seq for _ in range(3)] == [2, 3, 4]
        fcntl.flock(stopped._fd, fcntl.LOCK_UN)
        assert stopped.append("metric", {}).seq == 5
    assert [event.seq for event in read_events(path)] == [1, 2, 3, 4, 5]
