"""Is every miswiring named for what it is, and no right wiring accused, on targets of two families?"""

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from eagle3ops.eagle3.layers import AuxLayers
from eagle3ops.eagle3.target_head import TargetShape
from eagle3ops.engines.reference.model import Target
from eagle3ops.wiring.cause import explain, search
from eagle3ops.wiring.fingerprint import match_segments
from eagle3ops.wiring.noise import limits
from eagle3ops.wiring.verdict import judge

LAYERS, TOKENS, PROBES = 8, 24, 2
KINDS = ("shifted", "reordered", "repeated", "embedding", "normed", "tokens", "other_layers", "unknown", "width")


def target(family: str, seed: int = 0, *, dtype: torch.dtype = torch.float32) -> Target:
    shape = TargetShape(
        model_type=family, num_layers=LAYERS, hidden_size=32, intermediate_size=48, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, vocab_size=64, rms_norm_eps=1e-5, rope_theta=10000.0,
        max_position_embeddings=128, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    chance = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, size in Target.shapes(shape).items():
        value = torch.randn(size, generator=chance)
        small = len(size) == 1
        tensors[name] = ((1 + 0.1 * value) if small else value * size[1] ** -0.5).to(dtype)
    return Target(replace(shape), tensors)


class Wiring:
    """A reference in float32 and an engine in bfloat16, of the same weights: as far apart as they really are."""

    def __init__(self, family: str) -> None:
        self.family = family
        self.reference = target(family)
        engine = target(family, dtype=torch.bfloat16)
        self.other = target(family, seed=99)
        ids = torch.randint(0, 64, (PROBES, TOKENS), generator=torch.Generator().manual_seed(1))
        lengths = torch.full((PROBES,), TOKENS)
        every = range(LAYERS + 1)
        self.known = [each.float() for each in self.reference.boundaries(ids, lengths, every).unbind(1)]
        self.normed = [self.reference.normed(each[LAYERS]).float() for each in self.known]
        self.served = [each.float() for each in engine.boundaries(ids, lengths, every).unbind(1)]
        self.served_normed = [engine.normed(each[LAYERS].bfloat16()).float() for each in self.served]
        self.strange = [each.float() for each in self.other.boundaries(ids, lengths, every).unbind(1)]

    def capture(
        self, boundary: list[int], *, normed: int | None = None, shift: int = 0, strange: bool = False
    ) -> list[Tensor]:
        """What an engine would hand over; `normed` names the segment that is taken after the norm."""
        found = []
        for probe in range(PROBES):
            states = self.strange[probe] if strange else self.served[probe]
            parts = [self.served_normed[probe] if at == normed else states[k] for at, k in enumerate(boundary)]
            found.append(torch.cat(parts, dim=-1).roll(-shift, dims=0))
        return found

    def judged(self, trained: AuxLayers, captured: list[Tensor]) -> tuple[str, Any]:
        """The verdict as verify makes it, and the cause."""
        allowed = limits("bfloat16", "cpu")
        matches = [match_segments(c, k) for c, k in zip(captured, self.known, strict=True)]
        cause = explain(trained, search(captured, self.known, self.normed, allowed.unrelated))
        return judge("engine", trained, matches, allowed).settled(cause).verdict, cause


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def wiring(request: pytest.FixtureRequest) -> Wiring:
    return Wiring(request.param)


def test_right_wirings_pass(wiring: Wiring) -> None:
    chance = random.Random(5)
    for _ in range(50):
        boundary = sorted(chance.sample(range(LAYERS + 1), chance.choice((2, 3, 4))))
        verdict, cause = wiring.judged(AuxLayers(tuple(boundary), LAYERS), wiring.capture(boundary))
        assert verdict == "PASS", boundary
        assert cause is None, (boundary, cause)


def miswired(wiring: Wiring, chance: random.Random, kind: str) -> tuple[AuxLayers, list[Tensor]]:
    """A random wiring that is wrong in one way."""
    while True:
        trained = sorted(chance.sample(range(1, LAYERS + 1), 3))
        served, options = list(trained), {}
        if kind == "shifted":
            step = chance.choice((-2, -1, 1, 2))
            served = [k + step for k in trained]
        elif kind == "reordered":
            chance.shuffle(served)
        elif kind == "repeated":
            served[chance.randrange(3)] = served[chance.randrange(3)]
        elif kind == "embedding":
            served[chance.randrange(3)] = 0
        elif kind == "normed":
            options["normed"] = chance.randrange(3)
            served[options["normed"]] = trained[options["normed"]] = LAYERS
        elif kind == "tokens":
            options["shift"] = chance.choice((-1, 1))
        elif kind == "other_layers":
            served[chance.randrange(3)] = chance.randrange(1, LAYERS + 1)
        elif kind == "width":
            served = served[: chance.choice((1, 2))] if chance.random() < 0.5 else [0, *served]
        steps = {a - b for a, b in zip(served, trained, strict=False)}
        plain = kind not in ("normed", "tokens", "unknown")
        sound = all(0 <= k <= LAYERS for k in served) and len(set(trained)) == 3
        sound &= not plain or served != trained
        sound &= kind in ("reordered", "repeated", "width") or len(set(served)) == len(served)
        sound &= kind != "other_layers" or (len(steps) > 1 and sorted(served) != sorted(trained))
        sound &= kind != "embedding" or len(steps) > 1
        sound &= kind != "shifted" or 0 not in served
        if sound:
            captured = wiring.capture(served, strange=kind == "unknown", **options)
            return AuxLayers(tuple(trained), LAYERS), captured


def test_200_miswirings_are_named(wiring: Wiring) -> None:
    chance = random.Random(11)
    for number in range(200):
        kind = KINDS[number % len(KINDS)]
        trained, captured = miswired(wiring, chance, kind)
        verdict, cause = wiring.judged(trained, captured)
        assert verdict == "FAIL", (kind, trained)
        assert cause is not None, (kind, trained)
        assert cause.kind == kind, (trained, cause)
        assert cause.words
        assert cause.fix


def test_a_cause_names_the_segment_and_both_layers(wiring: Wiring) -> None:
    trained = AuxLayers((2, 4, 6), LAYERS)
    _, cause = wiring.judged(trained, wiring.capture([0, 4, 6]))
    assert "segment 0 holds boundary 0 (embedding), and training used boundary 2 (output of layer 1)" in cause.detail
    _, cause = wiring.judged(trained, wiring.capture([3, 5, 7]))
    assert "off by +1" in cause.words
    assert "[1, 3, 5]" in cause.fix
    assert "[2, 4, 6]" in cause.fix
