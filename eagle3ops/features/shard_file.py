"""How do rows become one safetensors file in a single pass over their bytes?

`safetensors.torch.save_file` wants every tensor whole, copies it twice more and holds the interpreter's lock while it
writes, so that threads that write shards wait for each other; the hash then reads the file again. Here pieces go from
where they lie to the file, hashed on the way, and other threads run meanwhile (decision 53). The format is that of
https://github.com/huggingface/safetensors#format; files are read by that library.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from io import FileIO
from pathlib import Path

import torch
from torch import Tensor

from eagle3ops.features.pieces import parts

_DTYPES = {
    torch.int64: "I64",
    torch.int32: "I32",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.bool: "BOOL",
}
_ALIGNMENT = 8


def write_tensors(path: Path, tensors: Mapping[str, Sequence[Tensor]], metadata: Mapping[str, str]) -> str:
    """Write tensors that are given in pieces along their first dimension; returns the SHA-256 of the file.

    Args:
        tensors: by name at least one piece, all of one dtype and one shape behind the first dimension.

    Raises:
        OSError: the disk is full or cannot be written.
        UnicodeEncodeError: a name or the metadata is no Unicode text (half a surrogate pair).
    """
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    # The widest first, so that every tensor begins at a multiple of its item's size.
    names = sorted(tensors, key=lambda name: (-tensors[name][0].itemsize, name))
    end = 0
    for name in names:
        pieces, begin = tensors[name], end
        end += sum(piece.numel() * piece.itemsize for piece in pieces)
        shape = [sum(piece.shape[0] for piece in pieces), *pieces[0].shape[1:]]
        header[name] = {"dtype": _DTYPES[pieces[0].dtype], "shape": shape, "data_offsets": [begin, end]}
    # As UTF-8, as the library writes it: escaped, half a surrogate pair would get in and make a file nobody can read.
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    digest = hashlib.sha256()
    with path.open("wb", buffering=0) as file:
        for head in (len(text).to_bytes(8, "little"), text):
            _write(file, memoryview(head))
            digest.update(head)
        for name in names:
            for part in parts(tensors[name]):
                # Not flatten: a tensor of one item counts as contiguous whatever its stride.
                flat = part.contiguous().as_strided((part.numel(),), (1,))
                data = flat.view(torch.uint8).numpy().data
                _write(file, data)
                digest.update(data)
    return digest.hexdigest()


def _write(file: FileIO, data: memoryview) -> None:
    # Unbuffered, one call may take less than all: two gigabytes at most, or what a disk still holds.
    while data:
        data = data[file.write(data) :]
