"""Turns: the steps of ordinary training, cut to the space, with the same drafter at the end however often killed."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from eagle3ops.eagle3.conclusion import TrainResult
from eagle3ops.eagle3.layers import AuxLayers
from eagle3ops.eagle3.listener import Listener
from eagle3ops.eagle3.packing import plan_epoch
from eagle3ops.eagle3.target_head import TargetHead
from eagle3ops.eagle3.train_config import TrainConfig
from eagle3ops.eagle3.training import train_rows
from eagle3ops.eagle3.training_state import newest_step
from eagle3ops.eagle3.training_turns import Text, TextBuilder, conclude_turns, train_turn
from eagle3ops.eagle3.turns import Space, TooSmall, Turn, plan_turns
from eagle3ops.errors import Eagle3opsError
from eagle3ops.features import FeatureRow

CONFIG = TrainConfig(
    draft_vocab_size=24,
    ttt_steps=2,
    epochs=2,
    tokens_per_step=60,
    checkpoint_every=3,
    log_every=4,
    warmup=2,
    threads=1,
    dtype="float32",
)
LAYERS = AuxLayers((1, 2, 3), 4)


@given(
    lengths=st.lists(st.integers(1, 50), min_size=1, max_size=60),
    capacity=st.integers(50, 600),
    seed=st.integers(0, 3),
    rows_per_shard=st.integers(1, 9),
)
def test_turns_are_the_steps_of_ordinary_training_cut_to_the_space(
    lengths: list[int], capacity: int, seed: int, rows_per_shard: int
) -> None:
    config = replace(CONFIG, seed=seed)
    space = Space(capacity=capacity, rows=[2 * n for n in lengths], shard=7, rows_per_shard=rows_per_shard)
    batches = [batch for epoch in range(2) for batch in plan_epoch(lengths, config.tokens_per_step, seed, epoch)]
    try:
        turns = plan_turns(lengths, space, config)
    except TooSmall as error:
        # With what it asks for it works, with a byte less it does not.
        turns = plan_turns(lengths, replace(space, capacity=error.needed), config)
        with pytest.raises(TooSmall):
            plan_turns(lengths, replace(space, capacity=error.needed - 1), config)
        capacity = error.needed
    assert [step for turn in turns for step in range(turn.first, turn.last)] == list(range(len(batches)))
    for turn in turns:
        wanted = sorted(index for step in range(turn.first, turn.last) for index in batches[step])
        assert list(turn.rows) == wanted
        assert turn.bytes <= capacity
        assert turn.bytes == sum(2 * lengths[i] for i in wanted) + 7 * -(-len(wanted) // rows_per_shard)
    assert [turn.number for turn in turns] == list(range(len(turns)))
    assert {turn.parts for turn in turns if turn.epoch == 0} == {sum(turn.epoch == 0 for turn in turns)}


class World:
    """Toy rows, and what training by turns needs to know of them."""

    def __init__(self, out: Path, rows: list[FeatureRow], head: TargetHead, parts: int, config: TrainConfig) -> None:
        self.out, self.head, self.config = out, head, config
        self.rows = dict(enumerate(rows))
        builder = TextBuilder(head.shape.vocab_size, config.ttt_steps)
        for row in rows:
            builder.add(row.token_ids.tolist(), int((~row.loss_mask).sum()))
        self.text: Text = builder.text()
        sizes = list(self.text.lengths)
        capacity = -(-sum(sizes) // parts) + (10 if parts > 1 else 0)
        space = Space(capacity=capacity, rows=sizes, shard=0, rows_per_shard=8)
        self.turns = plan_turns(self.text.lengths, space, config)

    def train(self, turn: Turn, stop_at: int | None = None, without: int | None = None) -> None:
        """One turn; cut off after a step where asked to."""

        def progress(done: int, total: int) -> None:
            if done == stop_at:
                raise KeyboardInterrupt

        rows = {index: self.rows[index] for index in turn.rows if index != without}
        train_turn(
            rows,
            turn,
            self.text,
            [],
            LAYERS,
            self.head,
            self.out,
            self.config,
            data_key="k",
            listener=Listener(progress=progress),
        )

    def conclude(self, heldout: list[FeatureRow]) -> TrainResult:
        return conclude_turns(self.text, heldout, LAYERS, self.head, self.out, self.config, data_key="k")

    def exported(self) -> bytes:
        return (self.out / "drafter" / "model.safetensors").read_bytes()


@pytest.fixture
def world(tmp_path: Path, head: TargetHead, row_of: Callable[..., FeatureRow]) -> Callable[..., World]:
    rows = [row_of(str(i), [0] * (2 + i % 3) + [1] * (8 + i % 5), i) for i in range(24)]

    def make(name: str, parts: int = 3, config: TrainConfig = CONFIG) -> World:
        return World(tmp_path / name, rows, head, parts, config)

    return make


def test_one_turn_over_everything_is_ordinary_training(
    world: Callable[..., World], row_of: Callable[..., FeatureRow], tmp_path: Path
) -> None:
    heldout = [row_of(f"h{i}", [0] * 3 + [1] * 9, 100 + i) for i in range(5)]
    ours = world("turns", parts=1, config=replace(CONFIG, epochs=1))
    (turn,) = ours.turns
    ours.train(turn)
    by_turns = ours.conclude(heldout)
    whole = train_rows(
        list(ours.rows.values()), heldout, LAYERS, ours.head, tmp_path / "whole", ours.config, data_key="k"
    )
    assert ours.exported() == (tmp_path / "whole" / "drafter" / "model.safetensors").read_bytes()
    for field in ("steps", "positions", "vocab_unique", "vocab_coverage", "heldout_coverage", "heldout", "renewals"):
        assert getattr(by_turns, field) == getattr(whole, field), field


def test_turns_end_with_the_same_bytes_however_they_are_cut_off(world: Callable[..., World]) -> None:
    whole, cut = world("whole"), world("cut")
    assert len(whole.turns) >= 6
    assert any(turn.last - turn.first > 1 for turn in whole.turns)
    for turn in whole.turns:
        whole.train(turn)
    whole.conclude([])
    for turn in cut.turns:
        for stop in range(turn.first + 1, turn.last):
            with pytest.raises(KeyboardInterrupt):
                cut.train(turn, stop_at=stop)
        cut.train(turn)
        assert newest_step(cut.out / "checkpoint") == turn.last
    cut.conclude([])
    assert cut.exported() == whole.exported()


def test_a_turn_that_is_not_due_is_refused(world: Callable[..., World]) -> None:
    ours = world("out")
    with pytest.raises(Eagle3opsError, match="newest sound checkpoint is at step 0"):
        ours.train(ours.turns[1])
    ours.train(ours.turns[0])
    with pytest.raises(Eagle3opsError, match="newest sound checkpoint is at step"):
        ours.train(ours.turns[0])
    with pytest.raises(Eagle3opsError, match=f"at step {ours.turns[0].last} of {ours.turns[-1].last}"):
        ours.conclude([])


def test_a_damaged_checkpoint_takes_training_back_to_the_turn_before_it(world: Callable[..., World]) -> None:
    whole, hurt = world("whole"), world("hurt", config=replace(CONFIG, checkpoint_every=1000))
    whole.config = hurt.config
    for turn in whole.turns:
        whole.train(turn)
    whole.conclude([])
    for turn in hurt.turns[:3]:
        hurt.train(turn)
    newest = max((hurt.out / "checkpoint").glob("step-*"))
    newest.write_bytes(newest.read_bytes()[:-1])
    assert newest_step(hurt.out / "checkpoint") == hurt.turns[1].last
    for turn in hurt.turns[2:]:
        hurt.train(turn)
    hurt.conclude([])
    assert hurt.exported() == whole.exported()


def test_a_step_whose_rows_were_all_rejected_changes_nothing(world: Callable[..., World]) -> None:
    config = replace(CONFIG, tokens_per_step=1, checkpoint_every=1)  # a step a row
    ours = world("out", parts=1, config=config)
    (missing,) = plan_epoch(ours.text.lengths, 1, config.seed, 0)[5]
    with pytest.raises(KeyboardInterrupt):
        ours.train(ours.turns[0], without=missing, stop_at=6)
    before, after = (load_file(ours.out / "checkpoint" / f"step-{step:08d}.safetensors") for step in (5, 6))
    assert before.keys() == after.keys()
    assert all(tensor.equal(after[name]) for name, tensor in before.items())
    ours.train(ours.turns[0], without=missing)
    ours.train(ours.turns[1], without=missing)
    assert ours.conclude([]).steps == 48


def test_a_token_beyond_the_vocabulary_is_named() -> None:
    builder = TextBuilder(40, 2)
    with pytest.raises(Eagle3opsError, match="token 40 does not exist in a vocabulary of 40"):
        builder.add([1, 40], 1)
