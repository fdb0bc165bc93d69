"""Shards: what was written comes back, and what was damaged is found, named and made again."""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3ops.eagle3.layers import AuxLayers
from eagle3ops.eagle3.space import bytes_per_token, row_bytes, split_bytes, used_bytes
from eagle3ops.features import FeatureError, FeatureHeader, FeatureReader, FeatureRow, FeatureWriter
from eagle3ops.features.format import NoSoundRow
from eagle3ops.features.quantised import QuantisedRow
from eagle3ops.features.writer import scan

HEADER = FeatureHeader(
    target_fingerprint="abc", aux_layers=AuxLayers((1, 2), 4), hidden_size=8, dtype="bfloat16", final_state="pre_norm"
)


def make_row(name: str, tokens: int = 5) -> FeatureRow:
    generator = torch.Generator().manual_seed(sum(map(ord, name)))
    return FeatureRow(
        id=name,
        token_ids=torch.randint(0, 50, (tokens,), generator=generator, dtype=torch.int32),
        loss_mask=torch.arange(tokens) > 1,
        aux=torch.randn(tokens, 16, generator=generator).bfloat16(),
        final=torch.randn(tokens, 8, generator=generator).bfloat16(),
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    writer = FeatureWriter(tmp_path / "features", HEADER)
    writer.write_shard("00000", [make_row("a"), make_row("b", 7)])
    writer.write_shard("00001", [make_row("c", 3)])
    return tmp_path / "features"


def test_rows_come_back_as_they_were_written(folder: Path) -> None:
    reader = FeatureReader(folder)
    assert reader.header == HEADER
    assert reader.tokens == 15
    assert reader.verify() == []
    rows = list(reader.rows())
    assert [row.id for row in rows] == ["a", "b", "c"]
    for row, wanted in zip(rows, (make_row("a"), make_row("b", 7), make_row("c", 3)), strict=True):
        for field in ("token_ids", "loss_mask", "aux", "final"):
            assert torch.equal(getattr(row, field), getattr(wanted, field))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def flip_last_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "kind"), [(truncate, "truncated"), (flip_last_bit, "checksum"), (Path.unlink, "missing")]
)
def test_a_damaged_shard_is_found_named_and_only_it_is_redone(
    folder: Path, damage: Callable[[Path], None], kind: str
) -> None:
    damage(folder / "00000.safetensors")
    assert [(p.shard, p.kind) for p in FeatureReader(folder).verify()] == [("00000", kind)]
    writer = FeatureWriter(folder, HEADER)
    assert writer.verified() == {"00001"}
    assert [(p.shard, p.kind) for p in writer.problems] == [("00000", kind)]
    assert not (folder / "00000.safetensors").exists()
    writer.write_shard("00000", [make_row("a"), make_row("b", 7)])
    assert FeatureReader(folder).verify() == []


def test_a_shard_that_never_reached_the_manifest_is_not_trusted(folder: Path) -> None:
    manifest = folder / "manifest.jsonl"
    first, second, _ = manifest.read_bytes().split(b"\n")
    manifest.write_bytes(first + b"\n" + second[: len(second) // 2])
    (folder / ".00002.safetensors.99.tmp").write_bytes(b"half")
    assert [p.kind for p in FeatureReader(folder).verify()] == ["manifest"]
    writer = FeatureWriter(folder, HEADER)
    assert manifest.read_bytes() == first + b"\n"
    assert writer.verified() == {"00000"}
    assert [(p.shard, p.kind) for p in writer.problems] == [("manifest.jsonl", "manifest"), ("00001", "unlisted")]
    assert not list(folder.glob(".*.tmp"))
    writer.write_shard("00001", [make_row("c", 3)])
    assert FeatureReader(folder).verify() == []


def test_a_damaged_line_in_the_middle_is_named(folder: Path) -> None:
    manifest = folder / "manifest.jsonl"
    data = bytearray(manifest.read_bytes())
    data[12] ^= 4
    manifest.write_bytes(data)
    assert [(p.kind, "line 1" in p.detail) for p in FeatureReader(folder).verify()] == [("manifest", True)]
    assert FeatureWriter(folder, HEADER).verified() == {"00001"}


def spoil(row: FeatureRow, field: str, value: float) -> FeatureRow:
    getattr(row, field)[1] = value
    return row


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("aux", float("nan"), "NaN in aux at token 1"),
        ("final", float("inf"), "infinity in final at token 1"),
        ("final", 0.0, "final is all zeros at token 1"),
    ],
)
def test_the_scan_keeps_bad_rows_out_and_names_them(tmp_path: Path, field: str, value: float, reason: str) -> None:
    writer = FeatureWriter(tmp_path, HEADER)
    record = writer.write_shard("x", [make_row("good"), spoil(make_row("bad"), field, value)])
    assert [(bad.id, bad.reason) for bad in record.dropped] == [("bad", reason)]
    assert [row.id for row in FeatureReader(tmp_path).rows()] == ["good"]
    with pytest.raises(FeatureError, match="shard y has no sound row: bad"):
        writer.write_shard("y", [spoil(make_row("bad"), field, value)])


def first_bad(states: torch.Tensor) -> str | None:
    """What is wrong with the first bad token, number by number; not finite goes before all zeros."""
    rows = [[float(x) for x in row] for row in states]
    for at, row in enumerate(rows):
        if not all(map(math.isfinite, row)):
            return f"{'NaN' if any(map(math.isnan, row)) else 'infinity'} in {{}} at token {at}"
    zeros = [at for at, row in enumerate(rows) if not any(row)]
    return f"{{}} is all zeros at token {zeros[0]}" if zeros else None


NUMBERS = st.sampled_from((0.0, -0.0, 1e-45, -3.0, 65504.0, float("nan"), float("inf"), float("-inf")))


@given(
    st.lists(st.lists(NUMBERS, min_size=3, max_size=3), min_size=1, max_size=6),
    st.sampled_from((torch.float32, torch.bfloat16)),
    st.integers(1, 30),
    st.booleans(),
)
def test_the_scan_finds_what_a_look_at_every_number_finds(
    numbers: list[list[float]], dtype: torch.dtype, times: int, quantised: bool
) -> None:
    states, tokens = torch.tensor(numbers).to(dtype).repeat(1, times), len(numbers)
    fine = torch.ones(tokens, 3, dtype=dtype)
    ids, mask = torch.arange(tokens, dtype=torch.int32), torch.ones(tokens, dtype=torch.bool)
    wanted = first_bad(states)
    for name, pair in (("aux", (states, fine)), ("final", (fine, states))):
        row: FeatureRow | QuantisedRow = FeatureRow("x", ids, mask, *pair)
        if quantised:
            eight = fine.to(torch.float8_e4m3fn)
            row = QuantisedRow("x", ids, mask, eight, eight, pair[0].float(), pair[1].float())
        assert scan(row) == (None if wanted is None else wanted.format(name))


def test_of_many_shards_every_damaged_one_is_named_in_order(tmp_path: Path) -> None:
    writer = FeatureWriter(tmp_path, HEADER)
    for number in range(20):
        writer.write_shard(f"{number:05d}", [make_row("a")])
    truncate(tmp_path / "00017.safetensors")
    flip_last_bit(tmp_path / "00002.safetensors")
    (tmp_path / "00009.safetensors").unlink()
    found = [(problem.shard, problem.kind) for problem in FeatureReader(tmp_path).verify()]
    assert found == [("00002", "checksum"), ("00009", "missing"), ("00017", "truncated")]


def test_features_of_another_target_are_not_mixed_in(folder: Path) -> None:
    other = FeatureHeader(target_fingerprint="xyz", aux_layers=AuxLayers((1, 3), 4), hidden_size=8, dtype="bfloat16")
    with pytest.raises(FeatureError, match="another target_fingerprint, aux_layers"):
        FeatureWriter(folder, other)


def test_a_row_of_the_wrong_width_is_refused(tmp_path: Path) -> None:
    row = make_row("a")
    wrong = FeatureRow("a", row.token_ids, row.loss_mask, row.aux[:, :9], row.final)
    with pytest.raises(FeatureError, match="aux is"):
        FeatureWriter(tmp_path, HEADER).write_shard("x", [wrong])


def test_a_folder_without_features_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(FeatureError, match="run the extract job first"):
        FeatureReader(tmp_path)


def test_a_shard_name_cannot_leave_the_folder(tmp_path: Path) -> None:
    with pytest.raises(FeatureError, match="shard name"):
        FeatureWriter(tmp_path, HEADER).write_shard("../x", [make_row("a")])


def test_what_does_not_verify_is_deleted_where_space_is_short(folder: Path) -> None:
    truncate(folder / "00000.safetensors")
    (folder / "00007.safetensors").write_bytes(b"never finished")
    writer = FeatureWriter(folder, HEADER, keep_damaged=False)
    assert writer.verified() == {"00001"}
    assert {problem.shard for problem in writer.problems} == {"00000", "00007"}
    assert {path.name for path in folder.iterdir()} == {"header.json", "manifest.jsonl", "00001.safetensors"}


@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=12),
    ids=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=40), min_size=12, max_size=12),
    rejected=st.integers(0, 11),
    rows_per_shard=st.integers(1, 5),
)
@settings(max_examples=25)
def test_a_folder_is_never_larger_than_was_forecast(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], ids: list[str], rejected: int, rows_per_shard: int
) -> None:
    folder = tmp_path_factory.mktemp("bound") / "features"
    rows = [replace(make_row("x", tokens), id=name) for tokens, name in zip(lengths, ids, strict=False)]
    if len(rows) > 1 and rejected < len(rows):
        rows[rejected].aux[-1] = float("nan")
    width = bytes_per_token(8, 2, 2)
    bound = split_bytes([row_bytes(n, name, width) for n, name in zip(lengths, ids, strict=False)], rows_per_shard)
    writer = FeatureWriter(folder, HEADER)
    for first in range(0, len(rows), rows_per_shard):
        with suppress(NoSoundRow):
            writer.write_shard(str(first), rows[first : first + rows_per_shard])
        assert used_bytes(folder) <= bound
    assert used_bytes(folder) > sum(lengths[1:]) * width // 2


def test_rows_are_spread_over_all_shards(tmp_path: Path) -> None:
    header = FeatureHeader(target_fingerprint="x", aux_layers=AuxLayers((1, 2), 4), hidden_size=4, dtype="float32")
    writer = FeatureWriter(tmp_path, header)
    for shard, size in enumerate((3, 1, 6)):
        rows = [
            FeatureRow(
                f"{shard}-{number}", torch.arange(5, dtype=torch.int32), torch.ones(5, dtype=torch.bool),
                torch.ones(5, 8), torch.ones(5, 4),
            )
            for number in range(size)
        ]  # fmt: skip
        writer.write_shard(f"{shard:05d}", rows)
    reader = FeatureReader(tmp_path)
    assert [row.id for row in reader.spread(2)] == ["0-2", "2-3"]
    assert [row.id for row in reader.spread(5)] == ["0-1", "1-0", "2-1", "2-3", "2-5"]
    assert [row.id for row in reader.spread(99)] == [row.id for row in reader.rows()]
    assert reader.spread(0) == []


def test_token_ids_of_any_whole_type_are_stored_as_int32(tmp_path: Path) -> None:
    kinds = (torch.int64, torch.int16, torch.uint16, torch.int32)
    rows = [make_row(str(number)) for number in range(len(kinds))]
    given_rows = [replace(row, token_ids=row.token_ids.to(kind)) for row, kind in zip(rows, kinds, strict=True)]
    FeatureWriter(tmp_path, HEADER).write_shard("x", given_rows)
    for read, wanted in zip(FeatureReader(tmp_path).rows(), rows, strict=True):
        assert torch.equal(read.token_ids, wanted.token_ids)
