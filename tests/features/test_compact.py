"""Features that take less space: are they read as what they were, and is what was not kept told from what was?"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

from eagle3ops.eagle3.layers import AuxLayers
from eagle3ops.eagle3.space import bytes_per_token, row_bytes, split_bytes, used_bytes
from eagle3ops.features import (
    FeatureError,
    FeatureHeader,
    FeatureReader,
    FeatureRow,
    FeatureWriter,
    QuantisedRow,
    StoredRow,
)
from eagle3ops.features.format import FinalTokens
from eagle3ops.features.quantised import dequantise, quantise, taught

HIDDEN = 16
PLAIN = FeatureHeader(target_fingerprint="abc", aux_layers=AuxLayers((1, 2), 4), hidden_size=HIDDEN, dtype="bfloat16")
EIGHT = replace(PLAIN, dtype="float8_e4m3fn")


def make_row(name: str, tokens: int = 6, prompt: int = 2) -> FeatureRow:
    generator = torch.Generator().manual_seed(sum(map(ord, name)))
    # As real ones: the first token is an attention sink, and boundaries differ in size.
    size = torch.tensor([30.0, *[1.0] * (tokens - 1)]).unsqueeze(1)
    return FeatureRow(
        id=name,
        token_ids=torch.randint(0, 50, (tokens,), generator=generator, dtype=torch.int32),
        loss_mask=torch.arange(tokens) >= prompt,
        aux=(torch.randn(tokens, 2 * HIDDEN, generator=generator) * size).bfloat16(),
        final=(torch.randn(tokens, HIDDEN, generator=generator) * 200 * size).bfloat16(),
    )


def far(one: Tensor, other: Tensor) -> float:
    return float((one.float() - other.float()).norm() / other.float().norm())


def test_eight_bits_come_back_as_bfloat16_near_to_what_they_were(tmp_path: Path) -> None:
    rows = [make_row("a"), make_row("b", 9)]
    record = FeatureWriter(tmp_path, EIGHT).write_shard("x", rows)
    reader = FeatureReader(tmp_path)
    assert reader.header == EIGHT
    assert reader.verify() == []
    assert json.loads((tmp_path / "header.json").read_text())["format"] == 2
    found = list(reader.rows())
    for row, wanted in zip(found, rows, strict=True):
        assert isinstance(row, StoredRow)
        assert row.aux.dtype == row.final.dtype == torch.bfloat16
        for token in range(wanted.token_ids.numel()):
            assert far(row.aux[token], wanted.aux[token]) < 0.05
        assert far(row.final, wanted.final) < 0.05
        assert torch.equal(row.loss_mask, wanted.loss_mask)
    plain = FeatureWriter(tmp_path / "plain", PLAIN).write_shard("x", rows)
    assert record.bytes < plain.bytes
    assert EIGHT.bytes_per_token() == 3 * (HIDDEN + 4)


def test_rows_that_are_in_eight_bits_already_are_stored_as_they_are(tmp_path: Path) -> None:
    row = make_row("a")
    (aux, aux_scale), (final, final_scale) = quantise(row.aux, HIDDEN), quantise(row.final, HIDDEN)
    made = QuantisedRow("a", row.token_ids, row.loss_mask, aux, final, aux_scale, final_scale)
    FeatureWriter(tmp_path / "a", EIGHT).write_shard("x", [made])
    FeatureWriter(tmp_path / "b", EIGHT).write_shard("x", [row])
    one, other = (load_file(tmp_path / name / "x.safetensors") for name in "ab")
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name].view(torch.uint8), other[name].view(torch.uint8)) for name in one)
    with pytest.raises(FeatureError, match="in eight bits"):
        FeatureWriter(tmp_path / "c", PLAIN).write_shard("x", [made])


@pytest.mark.parametrize("header", [PLAIN, EIGHT])
def test_final_states_of_prompts_are_left_out_and_read_as_nan(header: FeatureHeader, tmp_path: Path) -> None:
    whole, needed = tmp_path / "all", tmp_path / "needed"
    # The last one begins with what the target wrote: no reason to keep the last state of the row before it.
    rows = [make_row("a", 6, 3), make_row("b", 9, 1), make_row("c", 5, 5), make_row("d", 4, 0)]
    FeatureWriter(whole, header).write_shard("x", rows)
    FeatureWriter(needed, replace(header, final_tokens="taught")).write_shard("x", rows)
    reader = FeatureReader(needed)
    assert reader.verify() == []
    assert reader.header.final_tokens == "taught"
    for row, full in zip(reader.rows(), FeatureReader(whole).rows(), strict=True):
        keep = taught(row.loss_mask)
        assert torch.equal(row.aux, full.aux)
        assert torch.equal(row.final[keep], full.final[keep])
        assert bool(row.final[~keep].isnan().all())
    assert load_file(needed / "x.safetensors")["final"].shape[0] == 3 + 8 + 0 + 3


def test_older_features_are_as_they_were(tmp_path: Path) -> None:
    FeatureWriter(tmp_path, PLAIN)
    raw = json.loads((tmp_path / "header.json").read_text())
    assert raw["format"] == 1
    assert "final_tokens" not in raw


@pytest.mark.parametrize(
    ("change", "said"),
    [({"format": 3}, "format 3"), ({"final_tokens": "some"}, "final_tokens"), ({"dtype": "int8"}, "dtype")],
)
def test_a_header_that_is_not_understood_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(FeatureError, match=said):
        FeatureHeader.parse(json.dumps(replace(EIGHT, final_tokens="taught").render() | change))


@pytest.mark.parametrize(("value", "said"), [(float("nan"), "NaN in aux at token 1"), (0.0, "aux is all zeros")])
def test_the_scan_sees_through_eight_bits(value: float, said: str, tmp_path: Path) -> None:
    bad = make_row("bad")
    bad.aux[1] = value
    record = FeatureWriter(tmp_path, EIGHT).write_shard("x", [make_row("good"), bad])
    assert [(row.id, said in row.reason) for row in record.dropped] == [("bad", True)]


def test_shards_are_read_by_name_whichever_was_finished_first(tmp_path: Path) -> None:
    writer = FeatureWriter(tmp_path, PLAIN)
    for name in ("00001", "100000", "00000"):
        writer.write_shard(name, [make_row(name)])
    assert [row.id for row in FeatureReader(tmp_path).rows()] == ["00000", "00001", "100000"]


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=2 * HIDDEN, max_size=2 * HIDDEN))
@settings(max_examples=200, deadline=None)
def test_no_finite_number_becomes_another_kind_of_number(values: list[float]) -> None:
    states = torch.tensor([values]).clamp(-3e38, 3e38)
    stored, scale = quantise(states, HIDDEN)
    assert bool(stored.float().isfinite().all())
    # Of the largest number of a token's state at most a sixteenth is lost, of each other at most as much.
    lost = (stored.float().view(1, 2, -1) * scale.unsqueeze(-1) - states.view(1, 2, -1)).abs().amax(-1)
    most = states.view(1, 2, -1).abs().amax(-1)
    assert bool((lost <= most / 16 + 1e-37).all())
    assert dequantise(stored, scale).shape == states.shape


@pytest.mark.parametrize("final_tokens", ["all", "taught"])
def test_the_bound_of_the_space_holds(final_tokens: FinalTokens, tmp_path: Path) -> None:
    rows = [make_row(f"row {k}", 3 + k) for k in range(8)]
    writer = FeatureWriter(tmp_path, replace(EIGHT, final_tokens=final_tokens))
    for k in range(0, 8, 2):
        writer.write_shard(f"{k:05d}", rows[k : k + 2])
    width = bytes_per_token(HIDDEN, 2, 1, 4)
    bound = split_bytes([row_bytes(row.token_ids.numel(), row.id, width) for row in rows], 2)
    assert used_bytes(tmp_path) <= bound
