"""Are products the same, whichever numbers they are made in, and of the dtype that was asked for?"""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from eagle3ops.eagle3 import arithmetic
from eagle3ops.eagle3.arithmetic import product, widen_products, widened
from eagle3ops.eagle3.drafter import Drafter

CPU = torch.device("cpu")


@pytest.fixture(params=[True, False], ids=["fast", "slow"])
def fast(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[bool]:
    """A processor with bfloat16 units, and one without."""
    monkeypatch.setattr(arithmetic, "fast_bfloat16", lambda device: request.param)
    widened.cache_clear()
    yield request.param
    widened.cache_clear()


def test_a_product_is_rounded_once_and_has_the_dtype_of_what_went_in(fast: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(size, generator=generator).bfloat16() for size in ((9, 64), (32, 64), (32,)))
    exact = F.linear(x.double(), weight.double(), bias.double())
    for kept in (torch.bfloat16, widened(torch.bfloat16, CPU)):
        found = product(x, weight.to(kept), bias.to(kept))
        assert found.dtype == torch.bfloat16
        # Half a unit of the last of eight binary digits, and a little for the sum.
        assert float(((found.double() - exact).abs() / exact.abs().clamp_min(0.05)).max()) < 2**-8 * 1.1
    assert widened(torch.bfloat16, CPU) == (torch.bfloat16 if fast else torch.float32)
    assert widened(torch.float32, CPU) == torch.float32
    assert widened(torch.float16, CPU) == torch.float16
    assert product(x.float(), weight).dtype == torch.float32


def test_a_widened_module_gives_what_it_gave(fast: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    layer = nn.Linear(64, 32).bfloat16()
    x = torch.randn(5, 64, generator=generator).bfloat16()
    before = layer(x)
    widen_products(layer)
    assert layer.weight.dtype == widened(torch.bfloat16, CPU)
    after = layer(x)
    assert after.dtype == torch.bfloat16
    torch.testing.assert_close(after, before, rtol=2**-7, atol=2**-9)


def test_a_drafter_takes_and_gives_bfloat16(fast: bool, drafter_of: Callable[..., Drafter]) -> None:
    drafter = drafter_of(torch.bfloat16)
    plain = drafter_of(torch.bfloat16)
    widen_products(drafter)
    aux = torch.randn(3, drafter.config.aux_size, generator=torch.Generator().manual_seed(1)).bfloat16()
    with torch.inference_mode():
        g = drafter.fuse(aux)
        logits = drafter.logits(g)
        assert g.dtype == logits.dtype == torch.bfloat16
        torch.testing.assert_close(logits, plain.logits(plain.fuse(aux)), rtol=0.05, atol=0.05)
    assert drafter.norm.weight.dtype == torch.bfloat16
