"""Is every line either a message or refused by name, whatever bytes come in whatever pieces?"""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3ops.errors import (
    Eagle3opsError,
    HostUnreachable,
    Interrupted,
    Refused,
    RequestError,
    VerdictFailed,
    WatchdogStopped,
)
from eagle3ops.hosts.agent.protocol import (
    Hello,
    LineSplitter,
    ProtocolError,
    decode,
    encode,
    encode_items,
    error_from,
    error_message,
    parse_hello,
    parse_request,
    shown,
)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
messages = st.dictionaries(st.text(), json_values, max_size=4)


@given(st.binary())
def test_any_bytes_are_a_message_or_refused_by_name(line: bytes) -> None:
    with suppress(ProtocolError):
        assert isinstance(decode(line), dict)


@given(messages)
def test_a_message_survives_its_line(message: dict[str, Any]) -> None:
    line = encode(message)
    assert line.endswith(b"\n")
    assert b"\n" not in line[:-1]
    assert decode(line[:-1]) == message


@given(st.lists(st.binary().map(lambda raw: raw.replace(b"\n", b"")), max_size=5), st.data())
def test_lines_come_out_whole_whatever_pieces_they_arrive_in(lines: list[bytes], data: st.DataObject) -> None:
    flow = b"".join(line + b"\n" for line in lines) + b"rest"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(flow)), max_size=6)))
    splitter = LineSplitter()
    found: list[bytes] = []
    for start, end in zip([0, *cuts], [*cuts, len(flow)], strict=True):
        found += splitter.feed(flow[start:end])
    assert found == lines
    assert splitter.rest() == b"rest"


@given(st.integers(1, 50), st.integers(1, 7))
def test_an_overlong_line_is_refused_and_the_next_one_read(length: int, piece: int) -> None:
    splitter = LineSplitter(limit=20)
    flow = b"x" * length + b"\n{}\n"
    found: list[bytes] = []
    for start in range(0, len(flow), piece):
        found += splitter.feed(flow[start : start + piece])
    assert len(found) == 2
    assert found[1] == b"{}"
    assert len(found[0]) == min(length, 21)
    if length > 20:
        with pytest.raises(ProtocolError, match="longer than 20 bytes"):
            decode(found[0], limit=20)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"\xff\xfe", "not UTF-8 at byte 0"),
        (b"[1]", "not a JSON object"),
        (b"{", "not JSON"),
        (b"\x00", "not JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' + b"9" * 5000 + b"}", "not JSON"),
    ],
)
def test_what_is_wrong_with_a_line_is_said(line: bytes, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        decode(line)


def test_values_that_json_has_no_form_for_become_strings() -> None:
    line = encode({"value": float("nan"), "text": "\ud800", "inner": [{"x": float("inf")}]})
    assert json.loads(line) == {"value": "nan", "text": "\ud800", "inner": [{"x": "inf"}]}


@given(messages)
def test_any_object_is_a_request_or_refused_by_name(message: dict[str, Any]) -> None:
    with suppress(ProtocolError):
        assert parse_request(message).op == message["op"]


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "id": st.sampled_from([1, "a", None, True, 1.5, [], {}]),
            "op": st.sampled_from(["ping", "stop", "", None, 3, []]),
            "args": st.sampled_from([{}, {"x": 1}, None, [], "x", 3]),
            "window": st.sampled_from([1, 1024, 0, 1025, True, "2", None, 1.0]),
            "more": st.just(1),
        },
    )
)
def test_requests_of_every_wrong_shape_are_refused(message: dict[str, Any]) -> None:
    message_id, op = message.get("id"), message.get("op")
    window = message.get("window")
    right = (
        (type(message_id) in (int, str) or (message_id is None and op == "stop"))
        and op in ("ping", "stop")
        and isinstance(message.get("args", {}), dict | None)
        and (window is None or (type(window) is int and 1 <= window <= 1024))
        and "more" not in message
    )
    if right:
        assert parse_request(message).message_id == message_id
    else:
        with pytest.raises(ProtocolError):
            parse_request(message)


@pytest.mark.parametrize(
    "kind", [Eagle3opsError, RequestError, VerdictFailed, WatchdogStopped, HostUnreachable, Refused, Interrupted]
)
@pytest.mark.parametrize("remedy", [None, "do that"])
def test_an_error_arrives_as_the_class_that_it_was(kind: type[Eagle3opsError], remedy: str | None) -> None:
    sent = kind("this is wrong", remedy=remedy)
    told = error_from(decode(encode(error_message(7, sent)).strip())["error"])
    assert type(told) is kind
    assert (told.what, told.remedy) == (sent.what, sent.remedy)


@given(json_values)
def test_an_error_in_any_form_is_an_error(body: Any) -> None:
    assert isinstance(error_from(body), Eagle3opsError)


def test_items_that_are_json_already_are_passed_on_as_they_are() -> None:
    assert encode_items("a", [b'{"x": 1}', b"2"]) == b'{"id":"a","items":[{"x": 1},2]}\n'
    assert json.loads(encode_items(7, [])) == {"id": 7, "items": []}


SAID = Hello(1, "0.1.0", "3.11.2", "h", "b", 7, 1.5, "/r", ("ping",))


@pytest.mark.parametrize("banner", [b"", b"Welcome! ", b"\xff\x1b[31m", b'{"agent":"other"} '])
def test_a_hello_is_found_behind_a_banner(banner: bytes) -> None:
    assert parse_hello(banner + SAID.line().strip()) == SAID


@given(st.binary())
def test_any_bytes_are_a_hello_or_none(line: bytes) -> None:
    assert parse_hello(line) is None
    found = parse_hello(SAID.line()[:22] + line)
    assert found is None or isinstance(found, Hello)


@given(messages)
def test_a_hello_with_anything_in_it_is_read_or_none(fields: dict[str, Any]) -> None:
    line = b'{"agent":"eagle3ops",' + encode({"protocol": 1} | fields)[1:]
    found = parse_hello(line)
    assert found is None or isinstance(found.protocol, int)


@given(st.binary())
def test_what_is_shown_of_a_line_cannot_steer_a_terminal(line: bytes) -> None:
    assert shown(line).isprintable()
    assert shown(line).isascii()
