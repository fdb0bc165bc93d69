"""What the shard writer writes, read by the safetensors library."""

import hashlib
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from eagle3ops.features.shard_file import write_tensors

DTYPES = (
    torch.int64, torch.int32, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.bool,
)  # fmt: skip


@st.composite
def in_pieces(draw: st.DrawFn) -> list[Tensor]:
    dtype, width = draw(st.sampled_from(DTYPES)), draw(st.none() | st.integers(1, 5))
    seed = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    shapes = [(n,) if width is None else (n, width) for n in draw(st.lists(st.integers(0, 7), min_size=1, max_size=4))]
    pieces = [torch.randint(0, 2 if dtype == torch.bool else 90, shape, generator=seed).to(dtype) for shape in shapes]
    # As rows of a ring are: not contiguous.
    return [piece.repeat_interleave(2, 0)[::2] if draw(st.booleans()) and len(piece) else piece for piece in pieces]


@given(
    st.dictionaries(st.text(st.characters(codec="ascii", categories=["L"]), min_size=1), in_pieces(), max_size=5),
    st.dictionaries(st.text(), st.text(), max_size=3),
)
def test_the_library_reads_what_was_written(tensors: dict[str, list[Tensor]], metadata: dict[str, str]) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "shard"
        digest = write_tensors(path, tensors, metadata)
        assert digest == hashlib.sha256(path.read_bytes()).hexdigest()
        with safe_open(path, framework="pt") as handle:
            assert set(handle.keys()) == set(tensors)
            assert (handle.metadata() or {}) == metadata
            for name, pieces in tensors.items():
                found, wanted = handle.get_tensor(name), torch.cat(pieces)
                assert found.dtype == wanted.dtype
                assert found.shape == wanted.shape
                assert torch.equal(found.view(torch.uint8), wanted.contiguous().view(torch.uint8))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
def test_a_shard_has_the_bytes_that_the_library_would_write(dtype: torch.dtype, tmp_path: Path) -> None:
    whole = {
        "token_ids": torch.arange(5, dtype=torch.int32),
        "loss_mask": torch.tensor([False, True, True, False, True]),
        "aux": torch.arange(30.0).view(5, 6).to(dtype),
        "final": torch.arange(10.0).view(5, 2).to(dtype),
        "offsets": torch.tensor([0, 2, 5]),
    }
    save_file(whole, tmp_path / "theirs", metadata={"ids": '["a", "b"]'})
    cut = {name: [tensor[:2], tensor[2:]] for name, tensor in whole.items()}
    write_tensors(tmp_path / "ours", cut, {"ids": '["a", "b"]'})
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


def test_a_full_disk_says_so() -> None:
    with pytest.raises(OSError, match="No space left"):
        write_tensors(Path("/dev/full"), {"a": [torch.zeros(3)]}, {})
