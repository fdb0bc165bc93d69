"""On a GPU: does a training step keep the queue of its work full, and is it the step that a CPU takes?"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal

import pytest
import torch
from test_trainer import CONFIG
from toy_drafter import LAYERS, SHAPE

from eagle3ops.eagle3.optim import build_optimizers
from eagle3ops.eagle3.packing import Batch
from eagle3ops.eagle3.target_head import TargetHead
from eagle3ops.eagle3.train_config import TrainConfig
from eagle3ops.eagle3.trainer import Trainer
from eagle3ops.features import FeatureRow

pytestmark = pytest.mark.gpu

ON_GPU = replace(CONFIG, device="cuda", ttt_steps=3)


def trainer_of(config: TrainConfig, head: TargetHead, row_of: Callable[..., FeatureRow]) -> Trainer:
    rows = [row_of(str(i), [0] * 3 + [1] * (6 + i % 7), i) for i in range(24)]
    on_device = TargetHead(
        SHAPE, *(t.to(config.device) for t in (head.embed_weight, head.norm_weight, head.lm_head_weight))
    )
    trainer = Trainer(rows, LAYERS, on_device, config)
    trainer.start(None)
    return trainer


def step(trainer: Trainer, optimizers: list[torch.optim.Optimizer], batch: Batch) -> torch.Tensor:
    """As `course.run_course` takes one."""
    loss, _ = trainer.loss(trainer.drafter, batch, trainer.scale)
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(trainer.drafter.parameters(), trainer.config.clip)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return loss.detach()


@contextmanager
def no_waiting() -> Iterator[None]:
    """Everything that would wait for the GPU is an error."""
    try:
        with warnings.catch_warnings(category=UserWarning, action="ignore"):  # that the mode is a prototype
            torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_step_waits_for_nothing(
    dtype: Literal["float32", "bfloat16"], head: TargetHead, row_of: Callable[..., FeatureRow]
) -> None:
    trainer = trainer_of(replace(ON_GPU, dtype=dtype), head, row_of)
    optimizers = build_optimizers(trainer.drafter, trainer.config)
    first, second = trainer.batch([0, 5, 9]), trainer.batch([2, 3, 11, 17])
    step(trainer, optimizers, first)  # optimisers make their state, kernels are loaded
    with no_waiting():
        step(trainer, optimizers, second)
        step(trainer, optimizers, first)
    with pytest.raises(RuntimeError, match="synchroniz"), no_waiting():
        float(step(trainer, optimizers, second))


def test_batches_packed_ahead_are_whole_when_they_are_read(head: TargetHead, row_of: Callable[..., FeatureRow]) -> None:
    trainer = trainer_of(ON_GPU, head, row_of)
    course = [(0, [i % 24, (i * 7 + 3) % 24, (i * 5 + 1) % 24]) for i in range(60)]
    in_turn = [batch for _, batch in trainer.packed(iter(course), ahead=0)]
    busy = torch.randn(1024, 1024, device="cuda")
    for one, (_, other) in zip(in_turn, trainer.packed(iter(course), ahead=3), strict=True):
        assert one is not None
        assert other is not None
        for _ in range(20):
            busy = (busy @ busy).tanh()  # the queue is behind, as in a training
        copies = [tensor.clone() for tensor in other.tensors()]
        del other
        for mine, theirs in zip(one.tensors(), copies, strict=True):
            assert torch.equal(mine, theirs)


def test_training_on_a_gpu_follows_training_on_a_cpu(head: TargetHead, row_of: Callable[..., FeatureRow]) -> None:
    courses = [[0, 5, 9], [2, 3, 11, 17], [4, 8], [1, 20, 23]]
    losses = []
    for device in ("cpu", "cuda"):
        trainer = trainer_of(replace(ON_GPU, device=device), head, row_of)
        optimizers = build_optimizers(trainer.drafter, trainer.config)
        losses.append([float(step(trainer, optimizers, trainer.batch(one))) for one in courses])
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
    assert losses[0][-1] != pytest.approx(losses[0][0], rel=1e-3)
