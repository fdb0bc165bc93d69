"""The manifest parser: whatever the bytes are, it never raises and never believes a damaged line."""

import json
from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from eagle3ops.features.format import BadRow, FeatureError, FeatureHeader, ShardRecord, parse_manifest, render_record

NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)
COUNTS = st.integers(min_value=0, max_value=2**40)
RECORDS = st.builds(
    ShardRecord,
    shard=NAMES,
    rows=COUNTS,
    tokens=COUNTS,
    bytes=COUNTS,
    sha256=st.from_regex(r"[0-9a-f]{64}", fullmatch=True),
    dropped=st.lists(st.builds(BadRow, st.text(), st.text()), max_size=2).map(tuple),
)


def latest(records: list[ShardRecord]) -> dict[str, ShardRecord]:
    return {record.shard: record for record in records}


@given(st.lists(RECORDS, max_size=5))
def test_round_trip(records: list[ShardRecord]) -> None:
    parsed = parse_manifest(b"".join(map(render_record, records)))
    assert parsed.records == latest(records)
    assert not parsed.damaged
    assert not parsed.torn


@given(st.lists(RECORDS, min_size=1, max_size=4), st.data())
def test_a_cut_loses_only_the_line_it_hits(records: list[ShardRecord], data: st.DataObject) -> None:
    lines = [render_record(record) for record in records]
    whole = b"".join(lines)
    cut = data.draw(st.integers(min_value=0, max_value=len(whole)))
    parsed = parse_manifest(whole[:cut])
    kept, used = 0, 0
    while kept < len(lines) and used + len(lines[kept]) <= cut:
        used += len(lines[kept])
        kept += 1
    assert parsed.records == latest(records[:kept])
    assert parsed.torn == (cut > used)
    assert parsed.sound_bytes == used


@given(RECORDS, st.data())
def test_a_flipped_bit_is_never_believed(record: ShardRecord, data: st.DataObject) -> None:
    line = bytearray(render_record(record))
    bit = data.draw(st.integers(min_value=0, max_value=8 * len(line) - 1))
    line[bit // 8] ^= 1 << bit % 8
    found = parse_manifest(bytes(line)).records
    assert found in ({}, {record.shard: record})


@given(st.binary(max_size=300))
def test_any_bytes_are_survived(data: bytes) -> None:
    parsed = parse_manifest(data)
    assert parsed.records == {}
    assert parsed.sound_bytes <= len(data)


@given(st.one_of(st.binary(max_size=200), st.text(max_size=200)))
def test_any_header_gives_a_header_or_a_named_error(text: bytes | str) -> None:
    with suppress(FeatureError):
        FeatureHeader.parse(text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)


@given(
    st.fixed_dictionaries(
        {"format": st.just(1)},
        optional=dict.fromkeys(
            ("target_fingerprint", "aux_boundaries", "target_layers", "hidden_size", "dtype", "final_state"), JSON
        ),
    )
)
def test_any_header_values_give_a_header_or_a_named_error(raw: dict[str, object]) -> None:
    with suppress(FeatureError):
        FeatureHeader.parse(json.dumps(raw))
