"""Fingerprints recorded from a real SGLang on a real GPU, right and wrong, and made-up ones at the edges."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from eagle3ops.eagle3.layers import AuxLayers
from eagle3ops.errors import Eagle3opsError
from eagle3ops.wiring.cause import Held, explain, of_features, search
from eagle3ops.wiring.fingerprint import SegmentMatch, greedy_agreement, match_segments
from eagle3ops.wiring.noise import limits
from eagle3ops.wiring.verdict import judge, judge_states

TRAINED = AuxLayers((2, 15, 27), 30)


def recorded_probes(folder: Path, case: str) -> list[list[SegmentMatch]]:
    """Every recorded pass whose tokens are one of the reference prompts, matched."""
    reference = load_file(folder / "reference.safetensors")
    rows = json.loads((folder / "reference.json").read_text())
    served = load_file(folder / f"{case}.safetensors")
    probes = []
    for name in sorted({key.split(".")[0] for key in served}):
        ids = served[f"{name}.input_ids"].tolist()
        for row, facts in rows.items():
            # The drafter reads the prompt shifted left by one, the first new token appended.
            if facts["input_ids"][1:] == ids[:-1]:
                known = torch.stack([reference[f"{row}.boundary_{k}"] for k in range(31)])
                probes.append(match_segments(served[f"{name}.hidden"], known))
    return probes


@pytest.mark.recordings
@pytest.mark.parametrize("case", ["noids", "shift", "minus"])
def test_a_real_engine_is_judged_as_it_was_wired(recordings: Path, case: str) -> None:
    folder = recordings / "gpu" / "fingerprints"
    truth = json.loads((folder / "truth.json").read_text())
    probes = recorded_probes(folder, case)
    assert len(probes) >= 2
    for probe in probes:
        assert [match.boundary for match in probe] == truth[case]["captured_boundaries"]
    verdict = judge("SGLang", TRAINED, probes)
    assert verdict.passed == (truth[case]["verdict"] == "PASS")
    for trained, served in zip(TRAINED.boundary, truth[case]["captured_boundaries"], strict=True):
        if trained != served:
            assert f"boundary {trained} (output of layer {trained - 1})" in verdict.reason
            assert f"boundary {served} (output of layer {served - 1}) is served" in verdict.reason


def made_up(num_layers: int = 6, tokens: int = 8, hidden: int = 16) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(num_layers + 1, tokens, hidden, generator=generator)


def test_position_zero_is_left_out() -> None:
    reference = made_up()
    captured = torch.cat([reference[1], reference[3], reference[5]], dim=-1)
    captured[0] = 1e6
    assert [match.boundary for match in match_segments(captured, reference)] == [1, 3, 5]


def test_the_embedding_in_place_of_a_layer_is_named() -> None:
    reference = made_up()
    captured = torch.cat([reference[0], reference[3], reference[5]], dim=-1)
    verdict = judge("engine", AuxLayers((1, 3, 5), 6), [match_segments(captured, reference)])
    assert not verdict.passed
    assert "trained on boundary 1 (output of layer 0), but boundary 0 (embedding) is served" in verdict.reason
    assert [segment.passed for segment in verdict.segments] == [False, True, True]


def test_of_stored_features_it_is_the_record_that_is_wrong() -> None:
    """Training read what is stored, so it was not trained on what the record says, and no engine is to be set."""
    reference = made_up()
    captured = torch.cat([reference[3], reference[1], reference[5]], dim=-1)
    trained = AuxLayers((1, 3, 5), 6)
    verdict = judge("stored features", trained, [match_segments(captured, reference)])
    assert "segment 0 is recorded as boundary 1 (output of layer 0), but boundary 3" in verdict.reason
    assert "served" not in verdict.reason
    cause = explain(trained, [Held(3), Held(1), Held(5)])
    assert cause is not None
    told = of_features(cause)
    assert told.kind == "reordered"
    assert "extract the features again" in told.fix
    assert "engine" not in told.fix + told.words
    other = torch.randn(8, 48, generator=torch.Generator().manual_seed(2))
    assert "matches no boundary" in judge("stored features", trained, [match_segments(other, reference)]).reason


def test_states_of_another_model_match_nothing() -> None:
    reference = made_up()
    other = torch.randn(8, 48, generator=torch.Generator().manual_seed(2))
    verdict = judge("engine", AuxLayers((1, 3, 5), 6), [match_segments(other, reference)])
    assert not verdict.passed
    assert "matches no boundary" in verdict.reason


def test_neighbours_that_cannot_be_told_apart_do_not_pass() -> None:
    reference = made_up()
    reference[4] = reference[3] + 0.001
    captured = torch.cat([reference[1], reference[3] + 0.0004, reference[5]], dim=-1)
    verdict = judge("engine", AuxLayers((1, 3, 5), 6), [match_segments(captured, reference)])
    assert not verdict.passed
    assert "ambiguous" in verdict.reason


def test_a_single_dissenting_probe_fails_the_verdict() -> None:
    reference = made_up()
    right = match_segments(torch.cat([reference[1], reference[3], reference[5]], dim=-1), reference)
    wrong = match_segments(torch.cat([reference[1], reference[4], reference[5]], dim=-1), reference)
    assert judge("engine", AuxLayers((1, 3, 5), 6), [right]).passed
    assert not judge("engine", AuxLayers((1, 3, 5), 6), [right, wrong]).passed


def test_at_least_is_not_more_than_was_measured() -> None:
    match = SegmentMatch(0, 1, error=0.01, cosine=1.0, runner_up=2, runner_up_error=0.1679, norm=1.0, first_values=())
    verdict = judge("engine", AuxLayers((1,), 6), [[match]])
    assert match.margin > 16.7
    assert "at least 16 times" in verdict.reason


def test_a_different_number_of_segments_fails() -> None:
    reference = made_up()
    two = match_segments(torch.cat([reference[1], reference[3]], dim=-1), reference)
    verdict = judge("engine", AuxLayers((1, 3, 5), 6), [two])
    assert not verdict.passed
    assert "2 segments" in verdict.reason


@pytest.mark.parametrize(
    ("captured", "message"),
    [
        (torch.zeros(8, 47), "A x 16"),
        (torch.zeros(7, 48), "expected \\[8"),
        (torch.full((8, 48), float("nan")), "NaN"),
    ],
)
def test_shapes_and_values_that_cannot_be_compared_are_refused(captured: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        match_segments(captured, made_up())


def test_what_is_no_number_never_passes() -> None:
    nan = float("nan")
    match = SegmentMatch(0, 1, error=nan, cosine=nan, runner_up=2, runner_up_error=nan, norm=nan, first_values=())
    assert judge("engine", AuxLayers((1,), 6), [[match]]).verdict == "FAIL"
    reference = made_up()
    broken = torch.cat([reference[0], reference[3], reference[5]], dim=-1)
    broken[5, 3] = nan
    # Compared as it is, it would be nearest to the first that there is: the embedding.
    assert search([broken], [reference], [reference[-1]])[0] is None
    with pytest.raises(Eagle3opsError, match="NaN") as caught:
        judge_states("engine", AuxLayers((0, 3, 5), 6), [broken], [reference], [reference[-1]], limits())
    assert "nothing was compared" in str(caught.value)


def test_probes_of_different_widths_are_not_judged_by_the_first() -> None:
    reference = made_up()
    right = torch.cat([reference[1], reference[3]], dim=-1)
    wide = torch.cat([right, reference[0]], dim=-1)
    with pytest.raises(Eagle3opsError, match="different numbers of segments"):
        judge_states("engine", AuxLayers((1, 3), 6), [right, wide], [reference] * 2, [reference[-1]] * 2, limits())
    odd, _ = judge_states("engine", AuxLayers((1,), 6), [right[:, :-1]], [reference], [reference[-1]], limits())
    assert odd.verdict == "FAIL"
    assert "no multiple" in odd.reason


def test_greedy_agreement_counts_equal_tokens() -> None:
    assert greedy_agreement(torch.tensor([1, 2, 3, 4]), torch.tensor([1, 2, 0, 4])) == 0.75
    with pytest.raises(ValueError, match="cannot compare"):
        greedy_agreement(torch.tensor([1]), torch.tensor([1, 2]))
