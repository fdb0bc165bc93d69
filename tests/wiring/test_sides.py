"""Is one verdict over data, training, checkpoint and engine right, with every fault made for real and named?"""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from eagle3ops.answers import AnswerRow
from eagle3ops.eagle3.checkpoint import export_drafter
from eagle3ops.eagle3.drafter import Drafter, DrafterConfig
from eagle3ops.eagle3.layers import AuxLayers
from eagle3ops.eagle3.packing import Document, pack, trained_positions
from eagle3ops.eagle3.ttt import unroll
from eagle3ops.engines.reference.model import Target
from eagle3ops.engines.tokenizer import ChatTokenizer
from eagle3ops.errors import Eagle3opsError
from eagle3ops.features import FeatureHeader, FeatureRow, FeatureWriter
from eagle3ops.targets.tiny import HIDDEN, LAYERS, VOCABULARY, make_tiny
from eagle3ops.wiring.checks import Check
from eagle3ops.wiring.pairing import behind, check_greedy, check_pairing
from eagle3ops.wiring.sides import Judged, Served, Stored, judge_all

BOUNDARY = (2, 4, 5)
TRAINED = AuxLayers(BOUNDARY, LAYERS)
Change = Callable[[FeatureRow], FeatureRow]


class World:
    """A tiny target with answers of its own, and what stages and engine would have of them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.model = folder, folder / "model"
        self.model.mkdir()
        make_tiny(self.model)
        self.target = Target.load(self.model, torch.float32)
        self.tokenizer = ChatTokenizer(self.model)
        self.messages, self.answers, self.rows = {}, [], []
        self.normed: dict[str, Tensor] = {}
        talks = ["Name a colour and say why.", "What is a drafter?", "Count to ten, slowly.", "Where does rain go?",
                 "Tell me of the sea.", "Who was it?"]  # fmt: skip
        for at, talk in enumerate(talks):
            name = f"row/{at}"
            self.messages[name] = [{"role": "user", "content": talk}]
            prompt = self.tokenizer.encode_chat(self.messages[name])
            output = self.greedy(prompt, 20)
            row = AnswerRow(id=name, split="heldout" if at < 4 else "train", messages=self.messages[name],
                            prompt_ids=prompt, output_ids=output, finish_reason="length")  # fmt: skip
            self.answers.append(row)
            states = self.boundaries(prompt + output)
            mask = torch.arange(len(prompt + output)) >= len(prompt)
            ids = torch.tensor(prompt + output, dtype=torch.int32)
            aux = states[list(BOUNDARY)].movedim(0, 1).flatten(1)
            self.rows.append(FeatureRow(name, ids, mask, aux, states[LAYERS]))
            self.normed[name] = self.target.normed(states[LAYERS])
        torch.manual_seed(1)
        config = DrafterConfig(
            hidden_size=HIDDEN, intermediate_size=128, num_attention_heads=4, num_key_value_heads=2,
            head_dim=HIDDEN // 4, vocab_size=VOCABULARY, draft_vocab_size=VOCABULARY, target_hidden_size=HIDDEN,
            aux_layers=TRAINED, rms_norm_eps=1e-5, rope_theta=10000.0, max_position_embeddings=512,
            bos_token_id=1, eos_token_id=2,
        )  # fmt: skip
        drafter = Drafter(config)
        drafter.t2d.fill_(True)
        self.drafter = export_drafter(drafter, folder / "drafter")
        self.made = 0

    def boundaries(self, ids: list[int]) -> Tensor:
        """`[n + 1, T, H]`."""
        return self.target.boundaries(torch.tensor([ids]), torch.tensor([len(ids)]), range(LAYERS + 1))[:, 0]

    def greedy(self, prompt: list[int], count: int) -> list[int]:
        ids = list(prompt)
        for _ in range(count):
            ids.append(int(self.target.logits(self.target.normed(self.boundaries(ids)[LAYERS, -1])).argmax()))
        return ids[len(prompt) :]

    def served(self, layers: tuple[int, ...] = BOUNDARY, noise: float = 0.0) -> Served:
        """What a right engine hands over, or one of other layers, or with noise."""
        texts = [(row.prompt_ids + row.output_ids)[:48] for row in self.answers[:3]]
        states = [self.boundaries(ids)[list(layers)].movedim(0, 1).flatten(1) for ids in texts]
        chance = torch.Generator().manual_seed(3)
        loud = [one + noise * one.std() * torch.randn(one.shape, generator=chance) for one in states]
        chats = {row.id: (tuple(row.prompt_ids), len(row.prompt_ids)) for row in self.answers}
        return Served(name="engine reference", texts=texts, states=loud, chats=chats)

    def stored(self, change: Change = lambda row: row, **header: Any) -> Stored:
        """Shards of the rows, changed as a faulty stage would."""
        self.made += 1
        features = self.folder / f"features{self.made}"
        known: dict[str, Any] = {"target_fingerprint": "x", "aux_layers": TRAINED, "hidden_size": HIDDEN}
        about = FeatureHeader(**(known | {"dtype": "float32"} | header))
        for split in ("heldout", "train"):
            kind = torch.bfloat16 if about.dtype == "bfloat16" else torch.float32
            rows = [
                replace(one := change(row), aux=one.aux.to(kind), final=one.final.to(kind))
                for row, of in zip(self.rows, self.answers, strict=True)
                if of.split == split
            ]
            FeatureWriter(features / split, about).write_shard("00000", rows)
        return Stored(target=self.model, features=features, drafter=self.drafter, answers=self.answers,
                      messages=self.messages)  # fmt: skip

    def judged(self, stored: Stored | None = None, served: Served | None = None, **options: Any) -> Judged:
        known: dict[str, Any] = {"dtype": "float32", "device": "cpu", "least_agreement": 0.95, "max_error": None,
                 "tokenizer": self.tokenizer}  # fmt: skip
        return judge_all(stored or self.stored(), served or self.served(), **(known | options))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


def outcomes(judged: Judged) -> dict[str, str]:
    return {check.name: check.verdict for check in judged.checks}


def test_all_right_passes(world: World) -> None:
    judged = world.judged()
    assert judged.verdict == "PASS", judged.reason
    assert outcomes(judged) == {
        "template": "PASS", "engine_template": "PASS", "tokens": "PASS", "loss_mask": "PASS", "final_state": "PASS",
        "greedy": "PASS", "pairing": "not made",
    }  # fmt: skip
    assert "the drafter proposes too little rightly" in judged.reason
    assert {side.verdict for side in judged.sides} == {"PASS"}
    assert judged.as_dict()["checks"][0]["between"] == ["data", "engine"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn"])
@pytest.mark.parametrize("finals", ["all", "taught"])
def test_features_that_are_stored_smaller_pass_and_are_told_apart(world: World, dtype: str, finals: str) -> None:
    options: dict[str, Any] = {"dtype": dtype, "final_tokens": finals}
    judged = world.judged(world.stored(**options))
    assert judged.verdict == "PASS", judged.reason
    # Its prompts fill the probes of some rows; of the others the answer's states are kept.
    assert outcomes(judged)["final_state"] == "PASS"
    assert outcomes(judged)["greedy"] == "PASS"
    wrong = world.judged(world.stored(lambda row: moved(row, 1), **options))
    assert wrong.causes["stored features"].kind == "tokens"
    late = world.judged(world.stored(lambda row: replace(row, final=world.normed[row.id]), **options))
    assert next(one for one in late.checks if one.name == "final_state").kind == "post_norm"


def moved(row: FeatureRow, shift: int) -> FeatureRow:
    """Row t holds the states of token t + shift."""
    return replace(row, aux=row.aux.roll(-shift, 0), final=row.final.roll(-shift, 0))


@pytest.mark.parametrize(
    ("change", "check", "kind"),
    [
        (lambda row: replace(row, loss_mask=torch.ones_like(row.loss_mask)), "loss_mask", "mask_covers_prompt"),
        (lambda row: replace(row, loss_mask=torch.zeros_like(row.loss_mask)), "loss_mask", "mask_empty"),
        (lambda row: replace(row, loss_mask=row.loss_mask.roll(-1)), "loss_mask", "mask_early"),
        (lambda row: replace(row, loss_mask=row.loss_mask.roll(1)), "loss_mask", "mask_late"),
        (lambda row: replace(row, token_ids=row.token_ids.roll(-1)), "tokens", "tokens_shifted"),
        (lambda row: replace(row, token_ids=row.token_ids.roll(1)), "tokens", "tokens_shifted"),
        (lambda row: moved(row, 1), "final_state", "final_shifted"),
        (lambda row: moved(row, -1), "final_state", "final_shifted"),
    ],
)  # fmt: skip
def test_a_fault_of_the_features_fails_and_is_named(world: World, change: Change, check: str, kind: str) -> None:
    judged = world.judged(world.stored(change))
    assert judged.verdict == "FAIL"
    found = next(one for one in judged.checks if one.name == check)
    assert (found.verdict, found.kind) == ("FAIL", kind), found
    assert found.fix in judged.reason
    if kind == "final_shifted":
        # The layers are right, and one token off.
        assert judged.causes["stored features"].kind == "tokens"
        assert judged.sides[0].verdict == "FAIL"
        assert judged.sides[1].verdict == "PASS"


def test_a_final_state_after_the_norm_is_found(world: World) -> None:
    judged = world.judged(world.stored(lambda row: replace(row, final=world.normed[row.id])))
    (check,) = [one for one in judged.checks if one.name == "final_state"]
    assert (check.verdict, check.kind) == ("FAIL", "post_norm")
    before = {
        row.id: states for row, states in zip(world.answers, map(_before_last(world), world.answers), strict=True)
    }
    judged = world.judged(world.stored(lambda row: replace(row, final=before[row.id])))
    (check,) = [one for one in judged.checks if one.name == "final_state"]
    assert check.kind == "other_final"
    assert "output of layer 6" in check.reason


def _before_last(world: World) -> Callable[[AnswerRow], Tensor]:
    return lambda row: world.boundaries(row.prompt_ids + row.output_ids)[LAYERS - 1]


def test_a_template_of_the_data_that_is_not_the_engines(world: World) -> None:
    served = world.served()
    chats = {name: ((1, *ids), count + 1) for name, (ids, count) in served.chats.items() if ids is not None}
    judged = world.judged(served=replace(served, chats=chats))
    (check,) = [one for one in judged.checks if one.name == "engine_template"]
    assert (judged.verdict, check.kind) == ("FAIL", "doubled_bos")
    counts = {name: (None, count) for name, (_, count) in chats.items()}
    judged = world.judged(served=replace(served, chats=counts))
    assert next(one for one in judged.checks if one.name == "engine_template").kind == "doubled_bos"
    judged = world.judged(served=replace(served, chats={}, chat_words="404"))
    assert judged.verdict == "PASS"
    assert "engine template not made: 404" in judged.reason


def test_a_wrong_layer_of_the_engine_fails_and_noise_is_open(world: World) -> None:
    judged = world.judged(served=world.served((3, 5, 6)))
    assert judged.verdict == "FAIL"
    assert judged.causes["engine reference"].kind == "shifted"
    judged = world.judged(served=world.served(noise=0.02))
    assert judged.verdict == "UNDECIDED"
    assert [side.verdict for side in judged.sides] == ["PASS", "UNDECIDED"]
    assert "what would decide it: measure how far this engine moves" in judged.reason
    assert world.judged(served=world.served(noise=0.02), dtype="bfloat16").verdict == "PASS"
    assert world.judged(served=world.served(noise=0.02), max_error=0.05).verdict == "PASS"


def test_states_one_token_off_in_the_engine_fail(world: World) -> None:
    served = world.served()
    judged = world.judged(served=replace(served, states=[one.roll(-1, 0) for one in served.states]))
    assert judged.verdict == "FAIL"
    assert judged.causes["engine reference"].kind == "tokens"


def test_sampled_answers_do_not_fail_for_being_sampled(world: World) -> None:
    judged = world.judged(replace(world.stored(), temperature=0.7))
    assert judged.verdict == "PASS"
    assert outcomes(judged)["greedy"] == "not made"


def test_a_check_from_elsewhere_counts(world: World) -> None:
    check = Check(name="lint", between=("checkpoint", "engine"), verdict="FAIL", reason="d2t is missing", fix="export")
    judged = world.judged(further=[check])
    assert judged.verdict == "FAIL"
    assert "d2t is missing; export" in judged.reason


@pytest.mark.parametrize(
    ("wrong", "count", "verdict"),
    [(0, 200, "PASS"), (8, 200, "PASS"), (20, 200, "UNDECIDED"), (120, 200, "FAIL"), (10, 20, "UNDECIDED"),
     (19, 20, "FAIL")],
)  # fmt: skip
def test_greedy_agreement_fails_only_where_it_is_sure(wrong: int, count: int, verdict: str) -> None:
    tokens = torch.zeros(count, dtype=torch.long)
    logits = torch.zeros(count, 4)
    logits[:, 0] = 1.0
    logits[:wrong, 1] = 1.1
    check = check_greedy(behind(logits, tokens), 0.95)
    assert check.verdict == verdict, check
    assert check.figures["near_ties"] == wrong
    assert bool(check.fix) == (verdict != "PASS")


def test_states_that_are_not_kept_are_no_agreement() -> None:
    nan = float("nan")
    assert check_greedy(torch.tensor([nan] * 200), 0.95).verdict == "not made"
    mostly = check_greedy(torch.tensor([nan] * 180 + [2.0] * 20), 0.95)
    assert mostly.verdict == "FAIL"
    assert mostly.figures["tokens"] == 20


def test_a_verdict_says_which_rows_it_does_not_rest_on(world: World) -> None:
    stored = world.stored()
    shutil.rmtree(stored.features / "train")
    judged = world.judged(stored, replace(world.served(), chat_words="503: busy"))
    assert judged.verdict == "PASS"
    assert "training rows not made: none is kept" in judged.reason
    (check,) = [one for one in judged.checks if one.name == "engine_template"]
    assert check.reason.endswith("it did not answer all: 503: busy")


def test_training_rows_that_are_not_found_are_told(world: World) -> None:
    stored = world.stored(lambda row: replace(row, id=row.id.replace("row/", "other/")) if row.id > "row/3" else row)
    judged = world.judged(stored)
    assert judged.verdict == "PASS"
    assert "training rows not made: of the first 2 training answers none is among the first 64" in judged.reason


def test_without_a_held_out_row_nothing_is_judged(world: World) -> None:
    with pytest.raises(Eagle3opsError, match="nothing to compare"):
        world.judged(served=Served(name="engine reference", texts=[], states=[], chats={}))


def test_a_template_that_does_not_take_the_data_fails(world: World) -> None:
    class Strict:
        """As templates that know no system message are."""

        bos_id = world.tokenizer.bos_id
        decode = world.tokenizer.decode

        def encode_chat(self, messages: Any, **options: Any) -> list[int]:
            if "sea" in messages[0]["content"]:
                raise Eagle3opsError("the chat template refuses it")
            return world.tokenizer.encode_chat(messages, **options)

    judged = world.judged(tokenizer=Strict())
    (check,) = [one for one in judged.checks if one.name == "template"]
    assert (judged.verdict, check.verdict, check.kind) == ("FAIL", "FAIL", "template")
    assert "1 of 6 conversations" in check.reason


@pytest.mark.parametrize("pairing", [1, 0, 2])
def test_how_a_drafter_was_trained_is_found_out(pairing: int) -> None:
    """Text in which a token follows from the two before it: each alone says little."""
    torch.manual_seed(5)
    vocab, hidden = 16, 32
    table = torch.randint(0, vocab, (vocab, vocab), generator=torch.Generator().manual_seed(2))
    embedding = torch.randn(vocab, hidden)
    rows = []
    for start in range(24):
        text = [start % vocab, (start * 7 + 3) % vocab]
        while len(text) < 64:
            # A restart now and then keeps it from running in a circle.
            text.append(int(table[text[-2], text[-1]]) if len(text) % 9 else (start * 5 + len(text)) % vocab)
        ids = torch.tensor(text)
        aux = embedding[ids].repeat(1, 3)
        rows.append(FeatureRow(str(start), ids, torch.ones(64, dtype=torch.bool), aux, embedding[ids]))
    config = DrafterConfig(
        hidden_size=hidden, intermediate_size=64, num_attention_heads=2, num_key_value_heads=2, head_dim=16,
        vocab_size=vocab, draft_vocab_size=vocab, target_hidden_size=hidden, aux_layers=AuxLayers((1, 2, 3), 4),
    )  # fmt: skip
    drafter = Drafter(config)
    drafter.t2d.fill_(True)
    embed = lambda ids: F.embedding(ids, embedding)  # noqa: E731
    documents = [
        Document(row.token_ids.roll(1 - pairing), row.loss_mask, row.aux, row.final, torch.zeros_like(row.token_ids))
        for row in rows[4:]
    ]
    truth = torch.cat([row.token_ids[trained_positions(row.loss_mask, 0) + 2] for row in rows[4:]])
    batch = pack(documents, 1)
    assert batch is not None
    optimiser = torch.optim.Adam(drafter.parameters(), lr=3e-3)
    for _ in range(120):
        loss = F.cross_entropy(drafter.logits(unroll(drafter, batch, embed, steps=1)[0]), truth)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    check = check_pairing(drafter, rows[:4], embed)
    shares = {1: check.figures["right"], 0: check.figures["same_token"], 2: check.figures["two_ahead"]}
    assert max(shares, key=lambda one: shares[one]) == pairing, check
    assert (check.verdict, check.kind) == (("PASS", "") if pairing == 1 else ("FAIL", "pairing")), check
    if pairing == 0:
        assert "token t itself" in check.reason


@pytest.mark.parametrize("name", ["row/3", "row/5"], ids=["a-later-held-out-row", "a-training-row"])
def test_a_fault_outside_of_the_probes_is_found(world: World, name: str) -> None:
    def swapped(row: FeatureRow) -> FeatureRow:
        first, second, third = row.aux.chunk(3, -1)
        return replace(row, aux=torch.cat((second, first, third), -1)) if row.id == name else row

    judged = world.judged(world.stored(swapped))
    assert judged.verdict == "FAIL"
    stored, engine = judged.sides
    assert (stored.verdict, engine.verdict) == ("FAIL", "PASS")
    assert "boundary 2 (output of layer 1), but boundary 4 (output of layer 3) is stored" in stored.reason
