"""What the shard writer writes, read by the safetensors library."""

import errno
import hashlib
import resource
from io import FileIO
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from eagle3ops.eagle3.layers import AuxLayers
from eagle3ops.features import FeatureHeader, FeatureReader, FeatureRow, FeatureWriter, shard_file
from eagle3ops.features.shard_file import write_tensors

HEADER = FeatureHeader(
    target_fingerprint="abc", aux_layers=AuxLayers((1, 2), 4), hidden_size=8, dtype="bfloat16", final_state="pre_norm"
)
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
    # Two keys would come in any order from the library.
    metadata = {"ids": '["a", "b\\u00fc"]\tü ☃ 😀 \x00\x1f\x7f\u2028'}
    save_file(whole, tmp_path / "theirs", metadata=metadata)
    cut = {name: [tensor[:2], tensor[2:]] for name, tensor in whole.items()}
    write_tensors(tmp_path / "ours", cut, metadata)
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


def test_a_full_disk_says_so() -> None:
    with pytest.raises(OSError, match="No space left"):
        write_tensors(Path("/dev/full"), {"a": [torch.zeros(3)]}, {})


def test_what_is_no_text_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    for name, metadata in (("a", {"id": "\ud800"}), ("\ud800", {})):
        with pytest.raises(UnicodeEncodeError):
            write_tensors(tmp_path / "shard", {name: [torch.zeros(3)]}, metadata)
        assert not (tmp_path / "shard").exists()


def test_a_system_that_takes_less_than_it_is_given_is_asked_again(tmp_path: Path) -> None:
    class Hesitant(FileIO):
        def write(self, data: memoryview) -> int:  # type: ignore[override]
            return super().write(data[:7])

    data = bytes(range(100))
    with Hesitant(tmp_path / "file", "w") as file:
        shard_file._write(file, memoryview(data))
    assert (tmp_path / "file").read_bytes() == data


def test_a_disk_that_fills_up_halfway_leaves_nothing(tmp_path: Path) -> None:
    tokens = 100
    row = FeatureRow(
        "a", torch.arange(tokens, dtype=torch.int32), torch.ones(tokens, dtype=torch.bool),
        torch.ones(tokens, 16).bfloat16(), torch.ones(tokens, 8).bfloat16(),
    )  # fmt: skip
    writer = FeatureWriter(tmp_path / "features", HEADER)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, hard))
    try:
        with pytest.raises(OSError, match=r"0\.safetensors") as caught:
            writer.write_shard("0", [row])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.errno == errno.EFBIG
    assert [path.name for path in (tmp_path / "features").iterdir()] == ["header.json"]
    writer.write_shard("0", [row])
    assert FeatureReader(tmp_path / "features").verify() == []
