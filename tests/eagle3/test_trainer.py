"""Training: resumes exactly, exports what it trained, starts where it is told, refuses what cannot be trained."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from eagle3ops.eagle3.checkpoint import CheckpointError, export_drafter, load_drafter
from eagle3ops.eagle3.drafter import Drafter
from eagle3ops.eagle3.listener import Listener
from eagle3ops.eagle3.losses import StepSums
from eagle3ops.eagle3.packing import pack
from eagle3ops.eagle3.target_head import TargetHead
from eagle3ops.eagle3.train_config import TrainConfig
from eagle3ops.eagle3.trainer import Trainer
from eagle3ops.eagle3.ttt import unroll
from eagle3ops.errors import RequestError
from eagle3ops.features import FeatureError, FeatureHeader, FeatureRow, FeatureWriter
from eagle3ops.features.training import train

CONFIG = TrainConfig(
    draft_vocab_size=24,
    ttt_steps=2,
    steps=18,
    tokens_per_step=90,
    checkpoint_every=4,
    log_every=4,
    warmup=2,
    threads=1,
    dtype="float32",
)

KILLED = """
import json, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from toy_drafter import make_head
from test_trainer import CONFIG
from eagle3ops.eagle3.listener import Listener
from eagle3ops.features.training import train
slow = Listener(progress=lambda done, total: time.sleep(0.2))
train(Path(sys.argv[2]), None, make_head(), Path(sys.argv[3]), CONFIG, listener=slow)
"""


def write_features(folder: Path, row_of: Callable[..., FeatureRow], rows: int = 24, first: int = 0) -> Path:
    from eagle3ops.eagle3.layers import AuxLayers

    header = FeatureHeader(
        target_fingerprint="tiny", aux_layers=AuxLayers((1, 2, 3), 4), hidden_size=16, dtype="float32"
    )
    writer = FeatureWriter(folder, header)
    made = [row_of(str(i), [0] * (2 + i % 3) + [1] * (8 + i % 5), i) for i in range(first, first + rows)]
    writer.write_shard("0", made[: rows // 2])
    writer.write_shard("1", made[rows // 2 :])
    return folder


@pytest.fixture
def features(tmp_path: Path, row_of: Callable[..., FeatureRow]) -> Path:
    return write_features(tmp_path / "features", row_of)


def exported(out: Path) -> bytes:
    return (out / "drafter" / "model.safetensors").read_bytes()


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_killed_training_ends_with_the_same_bytes(
    tmp_path: Path, features: Path, head: TargetHead, optimizer: str
) -> None:
    config = CONFIG if optimizer == "adamw" else replace(CONFIG, optimizer="muon")
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    train(features, None, head, whole, config)
    if optimizer == "muon":
        # Interrupted from within, once; the process of its own is paid for by the other case.
        class StopHere(Exception):
            pass

        def stop(done: int, total: int) -> None:
            if done == 11:
                raise StopHere

        with pytest.raises(StopHere):
            train(features, None, head, cut, config, listener=Listener(progress=stop))
    else:
        child = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(Path(__file__).parent), str(features), str(cut)],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        try:
            deadline = time.monotonic() + 60
            while not (cut / "checkpoint" / "step-00000008.safetensors").exists():
                assert child.poll() is None, "the child ended before it could be killed"
                assert time.monotonic() < deadline
                time.sleep(0.02)
        finally:
            child.send_signal(signal.SIGKILL)
            child.wait()
    assert not (cut / "drafter").exists()
    result = train(features, None, head, cut, config)
    assert 4 <= result.resumed_from < 18
    assert exported(cut) == exported(whole)
    lines = [[json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()] for out in (whole, cut)]
    assert [(x["step"], x["name"]) for x in lines[0]] == [(x["step"], x["name"]) for x in lines[1]]
    assert any((cut / "tensorboard").iterdir())


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(
    tmp_path: Path, features: Path, head: TargetHead
) -> None:
    train(features, None, head, tmp_path / "out", CONFIG)
    wanted = exported(tmp_path / "out")
    newest = max((tmp_path / "out" / "checkpoint").glob("step-*"))
    data = bytearray(newest.read_bytes())
    data[-1] ^= 1
    newest.write_bytes(data)
    warnings: list[str] = []
    result = train(features, None, head, tmp_path / "out", CONFIG, listener=Listener(warn=warnings.append))
    assert [newest.name in text for text in warnings] == [True]
    assert result.resumed_from == 16
    assert exported(tmp_path / "out") == wanted


def test_checkpoints_of_another_training_are_refused(tmp_path: Path, features: Path, head: TargetHead) -> None:
    train(features, None, head, tmp_path / "out", replace(CONFIG, steps=2))
    with pytest.raises(RequestError, match="other data, settings or target"):
        train(features, None, head, tmp_path / "out", replace(CONFIG, steps=2, lr=0.5))


def test_the_loss_falls_and_the_export_is_evaluated(
    tmp_path: Path, features: Path, head: TargetHead, row_of: Callable[..., FeatureRow]
) -> None:
    heldout = write_features(tmp_path / "heldout", row_of, rows=8, first=100)
    seen: list[tuple[str, float, int | None]] = []
    steps: list[int] = []
    config = replace(CONFIG, steps=60, eval_every=30, lr=0.01)
    result = train(
        features,
        heldout,
        head,
        tmp_path / "out",
        config,
        listener=Listener(
            progress=lambda done, total: steps.append(done),
            metric=lambda name, value, step: seen.append((name, value, step)),
        ),
    )
    # Whoever waits for the evaluation sees that it goes on.
    assert steps.count(29) > 1
    losses = [value for name, value, _ in seen if name == "train/loss_0"]
    assert losses[-1] < 0.8 * losses[0]
    assert [step for name, _, step in seen if name == "heldout/full_acc_1"] == [30]
    assert result.renewals[3].verify_steps > 0
    assert len(result.renewals[3].histogram) == 4
    assert len(result.heldout) == 2
    assert 0 < result.vocab_coverage <= 1
    assert result.heldout_coverage is not None


def test_the_export_computes_from_raw_states_what_training_computed_from_scaled_ones(
    tmp_path: Path, head: TargetHead, row_of: Callable[..., FeatureRow], drafter_of: Callable[..., Drafter]
) -> None:
    rows = [row_of(str(i), [0] * 3 + [1] * 9, i) for i in range(4)]
    trainer = Trainer(rows, drafter_of().config.aux_layers, head, CONFIG)
    trainer.start(None)
    batch = trainer.batch([0, 1, 2, 3])
    trainer.scale.mul_(torch.linspace(0.1, 300, trainer.scale.numel()))
    export_drafter(trainer.drafter, tmp_path, aux_scale=trainer.scale, dtype=torch.float32)
    served = load_drafter(tmp_path, 4)
    with torch.no_grad():
        scaled = unroll(trainer.drafter, batch, head.embed, steps=2, aux_scale=trainer.scale)
        raw = unroll(served, batch, head.embed, steps=2)
        for a, b in zip(scaled, raw, strict=True):
            torch.testing.assert_close(served.logits(b), trainer.drafter.logits(a), atol=1e-4, rtol=1e-4)


def test_a_warm_start_begins_where_the_drafter_ended(
    tmp_path: Path, features: Path, head: TargetHead, row_of: Callable[..., FeatureRow]
) -> None:
    first = train(features, None, head, tmp_path / "first", CONFIG)
    said: list[str] = []
    barely = replace(CONFIG, steps=1, lr=1e-12, weight_decay=0.0)
    heard = Listener(info=said.append)
    train(features, None, head, tmp_path / "second", barely, init_from=first.drafter, listener=heard)
    one, two = load_drafter(first.drafter, 4), load_drafter(tmp_path / "second" / "drafter", 4)
    for name, value in one.state_dict().items():
        torch.testing.assert_close(two.state_dict()[name], value, atol=1e-2, rtol=1e-2, msg=name)
    assert "15 loaded" in said[0]
    with pytest.raises(CheckpointError, match=r"lm_head.weight is \[24, 16\], not \[20, 16\]"):
        train(features, None, head, tmp_path / "third", replace(barely, draft_vocab_size=20), init_from=first.drafter)


def test_a_damaged_shard_is_named_before_training(tmp_path: Path, features: Path, head: TargetHead) -> None:
    (features / "1.safetensors").unlink()
    with pytest.raises(FeatureError, match="1: missing"):
        train(features, None, head, tmp_path / "out", CONFIG)


def test_rows_without_answers_cannot_be_trained_on(
    row_of: Callable[..., FeatureRow], head: TargetHead, drafter_of: Callable[..., Drafter]
) -> None:
    with pytest.raises(RequestError, match="nothing to train on"):
        Trainer([row_of("a", [0] * 9, 1)], drafter_of().config.aux_layers, head, CONFIG)


@pytest.mark.parametrize(
    "setting", [{"ttt_steps": 0}, {"lr": 0.0}, {"warmup": -1}, {"steps": 0}, {"predict_steps": ()}]
)
def test_settings_that_make_no_sense_are_named(setting: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=next(iter(setting))):
        replace(CONFIG, **setting)


def test_a_document_with_nothing_trained_gives_no_batch(document_of: Callable[..., object]) -> None:
    assert pack([document_of([0] * 6, 0)], 2) is None  # type: ignore[list-item]


def test_batches_packed_ahead_are_those_packed_in_turn(
    head: TargetHead, row_of: Callable[..., FeatureRow], drafter_of: Callable[..., Drafter]
) -> None:
    rows = [row_of(str(i), [0] * 3 + [1] * (6 + i % 4), i) for i in range(12)]
    trainer = Trainer(rows, drafter_of().config.aux_layers, head, CONFIG)
    course = [(0, [3, 1]), (0, []), (0, [0, 2, 4]), (1, [5]), (1, []), (1, [7, 6])]
    in_turn = list(trainer.packed(iter(course), ahead=0))
    ahead = list(trainer.packed(iter(course), ahead=2))
    assert [epoch for epoch, _ in ahead] == [0, 0, 0, 1, 1, 1]
    for (_, one), (_, other) in zip(in_turn, ahead, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            for mine, theirs in zip(one.tensors(), other.tensors(), strict=True):
                assert torch.equal(mine, theirs)


def test_what_fails_in_the_packing_thread_is_raised_where_the_batch_is_asked_for(
    head: TargetHead, row_of: Callable[..., FeatureRow], drafter_of: Callable[..., Drafter]
) -> None:
    rows = [row_of(str(i), [0] * 3 + [1] * 6, i) for i in range(3)]
    trainer = Trainer(rows, drafter_of().config.aux_layers, head, CONFIG)
    packed = trainer.packed(iter([(0, [0]), (0, [99]), (0, [1])]), ahead=2)
    assert next(packed)[1] is not None
    with pytest.raises(IndexError):
        next(packed)


def test_the_scale_comes_from_rows_all_over_a_long_text(
    row_of: Callable[..., FeatureRow], monkeypatch: pytest.MonkeyPatch
) -> None:
    from eagle3ops.eagle3 import training_data

    rows = [replace(row_of(str(i), [0, 1, 1, 1], i), aux=torch.full((4, 48), float(i))) for i in range(10)]
    whole = training_data.aux_rms(rows)
    assert torch.allclose(whole, torch.tensor(sum(i * i for i in range(10)) / 10).sqrt().expand(48))
    # Two kinds of text that take turns: both are seen, in about equal parts, and only as many rows as were asked for.
    read: list[int] = []

    class Told(FeatureRow):
        __slots__ = ()

        def __getattribute__(self, name: str) -> Any:
            if name == "aux":
                read.append(int(super().__getattribute__("id")))
            return super().__getattribute__(name)

    kinds = [row_of(str(i), [0, 1, 1, 1], i) for i in range(400)]
    turns = [
        Told(row.id, row.token_ids, row.loss_mask, torch.full((4, 48), 1.0 + 2 * (i % 2)), row.final)
        for i, row in enumerate(kinds)
    ]
    monkeypatch.setattr(training_data, "SCALE_TOKENS", 400)
    some = training_data.aux_rms(turns)
    seen = read[1:]  # The first tells the width.
    assert seen == sorted(set(seen))
    assert len(seen) == 100
    assert 35 <= sum(number % 2 for number in seen) <= 65
    squares = sum(9 if number % 2 else 1 for number in seen) / 100
    assert torch.allclose(some, torch.tensor(squares).sqrt().expand(48))
    assert torch.equal(training_data.aux_rms(turns), some)


def test_a_new_drafter_has_the_targets_head_over_its_vocabulary_and_noise_below_it(
    head: TargetHead, row_of: Callable[..., FeatureRow], drafter_of: Callable[..., Drafter]
) -> None:
    rows = [row_of(str(i), [0] * 3 + [1] * 6, i) for i in range(6)]

    def started(seed: int) -> Drafter:
        trainer = Trainer(rows, drafter_of().config.aux_layers, head, replace(CONFIG, seed=seed))
        assert trainer.start(None) == "from the target: lm_head"
        return trainer.drafter

    one, same, other = started(0), started(0), started(1)
    ids = one.target_ids(torch.arange(CONFIG.draft_vocab_size))
    assert torch.equal(one.lm_head.weight, head.lm_head_weight[ids])
    for name, value in one.named_parameters():
        assert torch.equal(value, same.get_parameter(name)), name
        if value.ndim == 1:
            assert bool((value == 1).all()), name
        elif name != "lm_head.weight":
            assert not torch.equal(value, other.get_parameter(name)), name
            bound = value.shape[1] ** -0.5
            assert 0.8 * bound < float(value.detach().abs().max()) <= bound * (1 + 1e-6), name


class Waits(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the operations that a GPU would have to finish its work for."""

    WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "unique", "equal", "repeat_interleave")

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        picks = args[1] if name in ("index", "index_put", "index_put_", "_index_put_impl_") else ()
        by_mask = any(index is not None and index.dtype == torch.bool for index in picks)
        if by_mask or name.startswith(self.WAITING):
            self.found.append(name)
        return func(*args, **(kwargs or {}))


def test_nothing_in_a_step_waits_for_a_gpu(
    head: TargetHead, row_of: Callable[..., FeatureRow], drafter_of: Callable[..., Drafter]
) -> None:
    rows = [row_of(str(i), [0] * 3 + [1] * (6 + i), i) for i in range(4)]
    trainer = Trainer(rows, drafter_of().config.aux_layers, head, CONFIG)
    trainer.start(None)
    batch, sums = trainer.batch([0, 1, 2, 3]), StepSums()
    with Waits() as waits:
        loss, part = trainer.loss(trainer.drafter, batch, trainer.scale)
        sums.add(part)
        sums.add(part)
        assert waits.found == []
        loss.backward()  # type: ignore[no-untyped-call]
        assert waits.found == ["_local_scalar_dense"], "on a CPU, whether the factor is one"
        waits.found.clear()
        torch.nn.utils.clip_grad_norm_(trainer.drafter.parameters(), 0.5)
        assert waits.found == []
        sums.report()
    assert batch.trained == sum(row["rows"] for row in part.rows())
    assert [row["rows"] for row in sums.rows()] == [2 * row["rows"] for row in part.rows()]


def test_the_sum_of_nothing_reports_nothing() -> None:
    sums = StepSums()
    sums.add(StepSums())
    assert sums.report() == []
