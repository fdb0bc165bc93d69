"""Does the engine serve a recorded target and drafter as the real engine did?

Needs the embedded target as a folder in EAGLE3OPS_MODEL, beside the recordings.
"""

import gzip
import json
import os
from pathlib import Path

import pytest
import torch
from reference_tiny import answer_all
from safetensors.torch import load_file
from torch.nn import functional as F

from eagle3ops.eagle3.checkpoint import load_drafter
from eagle3ops.engines.reference.drafting import SpecSettings
from eagle3ops.engines.reference.model import Target, eos_ids
from eagle3ops.engines.reference.requests import SamplingParams

pytestmark = [
    pytest.mark.recordings,
    pytest.mark.skipif("EAGLE3OPS_MODEL" not in os.environ, reason="EAGLE3OPS_MODEL names no folder of the target"),
]


@pytest.fixture(scope="module")
def target() -> Target:
    """The embedded target in bf16."""
    return Target.load(Path(os.environ["EAGLE3OPS_MODEL"]))


def test_boundaries_are_those_of_the_recording(recordings: Path, target: Target) -> None:
    folder = recordings / "gpu" / "fingerprints"
    states = load_file(folder / "reference.safetensors")
    rows = json.loads((folder / "reference.json").read_text())
    for name, row in rows.items():
        ids = torch.tensor([row["input_ids"]])
        got = target.boundaries(ids, torch.tensor([ids.shape[1]]), range(31))[:, 0].float()
        for boundary in range(31):
            want = states[f"{name}.boundary_{boundary}"].float()
            assert float(F.cosine_similarity(got[boundary], want, dim=-1).mean()) > 0.998, (name, boundary)


def _accept_length(recordings: Path, target: Target, setting: SpecSettings, count: int) -> tuple[float, list[int]]:
    with gzip.open(recordings / "gpu" / "answers.jsonl.gz", "rt") as lines:
        prompts = [row["input_ids"] for row in map(json.loads, lines) if row["split"] == "eval"][:count]
    drafter = load_drafter(recordings / "gpu" / "drafter", 30, target.dtype)
    model = Path(os.environ["EAGLE3OPS_MODEL"])
    requests = answer_all(
        target,
        prompts,
        SamplingParams(max_new_tokens=256 if count > 20 else 64),
        drafter=drafter,
        settings=setting,
        stops=eos_ids(model),
        max_running=min(count, 16),
    )
    stats = [r.stats for r in requests if r.stats is not None]
    histogram = [sum(column) for column in zip(*(s.histogram for s in stats), strict=True)]
    return sum(len(r.output) for r in requests) / sum(s.verify_steps for s in stats), histogram


def test_a_few_prompts_have_the_shape_of_the_recorded_histogram(recordings: Path, target: Target) -> None:
    length, histogram = _accept_length(recordings, target, SpecSettings(3, 1, 4), 6)
    assert 2.0 < length < 3.4
    # As recorded: most steps are all right or all wrong, and two of three right is the rarest.
    assert min(histogram[0], histogram[3]) > histogram[2]


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("setting", "served"),
    [(SpecSettings(3, 1, 4), 2.684), (SpecSettings(5, 1, 6), 3.158), (SpecSettings(3, 4, 16), 3.305)],
    ids=str,
)
def test_accept_length_is_the_one_that_was_served(
    recordings: Path, target: Target, setting: SpecSettings, served: float
) -> None:
    length, _ = _accept_length(recordings, target, setting, 200)
    assert abs(length / served - 1) < 0.03
