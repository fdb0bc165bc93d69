"""Does the reference engine give the same answers on a GPU as on a CPU?"""

import pytest
import torch
from reference_tiny import CONFIG, MarkovDrafter, answer_all, prompts, tiny_target, tiny_tensors

from eagle3ops.eagle3.target_head import TargetShape
from eagle3ops.engines.reference.drafting import SpecSettings
from eagle3ops.engines.reference.model import Target
from eagle3ops.engines.reference.requests import SamplingParams

pytestmark = pytest.mark.gpu


def target_on_gpu() -> Target:
    tensors = {name: tensor.cuda() for name, tensor in tiny_tensors(depth_scale=0.35).items()}
    return Target(TargetShape.from_config(CONFIG, "tiny"), tensors)


def test_boundaries_on_a_gpu_are_those_of_the_cpu() -> None:
    ids, lengths = torch.tensor([[1, 5, 9, 13, 2], [3, 4, 5, 0, 0]]), torch.tensor([5, 3])
    ours = target_on_gpu().boundaries(ids, lengths, range(4)).cpu()
    theirs = tiny_target(depth_scale=0.35).boundaries(ids, lengths, range(4))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("settings", [SpecSettings(3, 1, 4), SpecSettings(3, 4, 16)], ids=str)
def test_speculation_on_a_gpu_is_plain_greedy_decoding(settings: SpecSettings) -> None:
    target = target_on_gpu()
    texts, params = prompts(6), SamplingParams(max_new_tokens=40, ignore_eos=True)
    plain = answer_all(target, texts, params)
    drafter = MarkovDrafter(target).cuda()
    drafted = answer_all(target, texts, params, drafter=drafter, settings=settings, max_running=4)
    assert [request.output for request in drafted] == [request.output for request in plain]
    on_cpu = answer_all(tiny_target(depth_scale=0.35), texts, params)
    assert [request.output for request in plain] == [request.output for request in on_cpu]
