"""Do the limits of the verdict rest on what was measured, and is noise that nobody has seen before told as such?"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from eagle3ops.eagle3.layers import AuxLayers
from eagle3ops.wiring.cause import Cause
from eagle3ops.wiring.fingerprint import match_segments
from eagle3ops.wiring.noise import coarser, limits, table
from eagle3ops.wiring.verdict import MAX_ERROR, MIN_MARGIN, judge, worst_of

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
TRAINED = AuxLayers((1, 3, 5), 6)


def worst_and_least(figures: Any) -> tuple[float, float]:
    """The worst error and the least margin of all that a result holds."""
    if "error_worst" in figures:
        assert figures["not_nearest"] == 0
        return max(figures["error_worst"]), min(figures["margin_least"])
    # Verify compares prompts; what is decoded after them are too few rows for a mean.
    found = [worst_and_least(value) for name, value in figures.items() if isinstance(value, dict) and name != "decode"]
    return max((error for error, _ in found), default=0.0), min((margin for _, margin in found), default=1e9)


def test_a_row_says_what_its_results_say() -> None:
    checked = 0
    for row in table():
        file = RESULTS / row.source.partition(":")[0].rpartition("/")[2]
        if row.engine not in ("reference", "sglang") or not row.source.startswith("benchmarks/results/"):
            continue
        kinds = {key: value for key, value in json.loads(file.read_text())["figures"].items()
                 if isinstance(value, dict) and key.endswith(f", {row.dtype}")}  # fmt: skip
        if row.dtype == "float32":
            # What is stored in bfloat16 is a row of its own.
            kinds = {key: {name: one for name, one in value.items() if "stored" not in name}
                     for key, value in kinds.items()}  # fmt: skip
        error, margin = worst_and_least(kinds)
        assert 0 < error <= row.error <= 1.1 * error, row
        assert 0.9 * margin <= row.margin <= margin, row
        checked += 1
    assert checked >= 4


def test_limits_are_what_was_measured_times_safety() -> None:
    known = {(row.dtype, row.device): row.error for row in table()}
    assert limits("bfloat16", "cuda:1").error == pytest.approx(3 * known["bfloat16", "cuda"], rel=1e-3)
    assert limits("auto", "cpu") == limits("bfloat16", "cpu")
    assert limits().error == MAX_ERROR == max(limits("bfloat16", each).error for each in ("cpu", "cuda"))
    assert limits("float32", "cpu").error < 0.01
    never = limits("fp8", "cuda")
    assert never.error == MAX_ERROR
    assert "fp8 on cuda was never measured" in never.source
    assert limits(most=0.3).error == 0.3
    assert coarser(limits("float32", "cpu"), limits("bfloat16", "cpu")) == limits("bfloat16", "cpu")
    # No layer is told apart by less because an engine is finer.
    assert limits("float32", "cpu").margin == limits("bfloat16", "cuda").margin == MIN_MARGIN
    eight = coarser(limits("bfloat16", "cuda"), limits("float8_e4m3fn, stored", "cuda"))
    assert eight.error > limits("bfloat16", "cuda").error
    assert eight.margin < MIN_MARGIN


def states(noise: float, boundary: tuple[int, ...] = (1, 3, 5)) -> tuple[torch.Tensor, torch.Tensor]:
    """A reference, and what an engine would hand over that is off by `noise`."""
    chance = torch.Generator().manual_seed(1)
    reference = torch.randn(7, 24, 64, generator=chance)
    captured = torch.cat([reference[k] for k in boundary], dim=-1)
    return reference, captured + noise * torch.randn(captured.shape, generator=chance)


@pytest.mark.parametrize(
    ("noise", "outcome"),
    [(0.0, "PASS"), (0.02, "PASS"), (0.12, "UNDECIDED"), (0.2, "UNDECIDED"), (3.0, "FAIL")],
)
def test_more_noise_than_is_known_leaves_it_open_with_the_figure(noise: float, outcome: str) -> None:
    reference, captured = states(noise)
    verdict = judge("engine", TRAINED, [match_segments(captured, reference)])
    assert (verdict.verdict, verdict.passed) == (outcome, outcome == "PASS")
    if outcome == "UNDECIDED":
        assert f"relative error of {max(segment.error for segment in verdict.segments):.3f}" in verdict.reason
        assert "wiring_noise.py" in verdict.decides
        assert judge("engine", TRAINED, [match_segments(captured, reference)], limits(most=0.25)).passed


def test_a_wrong_layer_fails_whatever_the_noise() -> None:
    reference, captured = states(0.12, (1, 4, 5))
    verdict = judge("engine", TRAINED, [match_segments(captured, reference)])
    assert verdict.verdict == "FAIL"
    assert "trained on boundary 3 (output of layer 2), but boundary 4 (output of layer 3) is served" in verdict.reason


def test_what_float32_cannot_do_is_no_pass_in_float32() -> None:
    reference, captured = states(0.02)
    verdict = judge("engine", TRAINED, [match_segments(captured, reference)], limits("float32", "cpu"))
    assert verdict.verdict == "UNDECIDED"


def test_two_layers_that_are_alike_leave_it_open() -> None:
    reference, _ = states(0.0)
    reference[4] = reference[3] + 0.01 * torch.randn(24, 64, generator=torch.Generator().manual_seed(2))
    near = torch.cat([reference[1], 0.5 * (reference[3] + reference[4]), reference[5]], dim=-1)
    verdict = judge("engine", TRAINED, [match_segments(near, reference)])
    assert verdict.verdict == "UNDECIDED"
    assert "ambiguous" in verdict.reason
    assert "probe_tokens" in verdict.decides


def test_a_cause_that_is_known_settles_it() -> None:
    reference, captured = states(0.12)
    verdict = judge("engine", TRAINED, [match_segments(captured, reference)])
    assert verdict.settled(None) is verdict
    assert verdict.settled(Cause("unknown", "nothing is near", "", "")).verdict == "UNDECIDED"
    settled = verdict.settled(Cause("tokens", "the tokens are not aligned", "", ""))
    assert (settled.verdict, settled.passed) == ("FAIL", False)


def test_one_fail_fails_all() -> None:
    assert worst_of(["PASS", "UNDECIDED", "FAIL"]) == "FAIL"
    assert worst_of(["PASS", "UNDECIDED"]) == "UNDECIDED"
    assert worst_of([]) == "UNDECIDED", "nothing was compared"
    assert 4 < MIN_MARGIN < 6
