"""How does a drafter get from one form into another, and is it right there?"""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

from eagle3ops.eagle3.layers import AuxLayers
from eagle3ops.errors import RequestError
from eagle3ops.wiring.convert.forms import ConversionRefused, read
from eagle3ops.wiring.convert.write import ENGINES, write
from eagle3ops.wiring.lint.finding import Finding
from eagle3ops.wiring.lint.lint import lint, read_target

SGLANG, VLLM = "0.5.23", "0.32.0"
"""The versions for which it is written where none is said."""


@dataclass(frozen=True, slots=True)
class Converted:
    """What came of it."""

    form: str
    layers: AuxLayers
    assumed: bool
    """It named no layers, so these are the default of all trainers."""
    findings: tuple[tuple[str, Finding], ...]
    """Engine with its version, and what lint finds there."""


def convert(
    drafter: Path, target: Path, to: str, out: Path, *, form: str | None = None, sglang: str = SGLANG, vllm: str = VLLM
) -> Converted:
    """Write a drafter's checkpoint in the form of an engine, and hold it against that engine.

    Args:
        drafter: folder of the checkpoint.
        target: folder of the model that it is for.
        to: `sglang`, `vllm` or `both`.
        out: a new folder.
        form: whose form it has; None finds out.
        sglang: version that is to serve it.
        vllm: version that is to serve it.

    Raises:
        RequestError: a folder is none, or the conversion would have to guess.
        OSError: it cannot be written.
    """
    if to not in ENGINES:
        raise RequestError(f"no form {to!r} to convert to", remedy=f"one of {', '.join(ENGINES)}")
    for folder, what in ((drafter, "drafter"), (target, "target")):
        if not folder.is_dir():
            raise RequestError(f"{folder}: no folder, so no {what}", remedy="name the folder that holds config.json")
    for engine, version in (("SGLang", sglang), ("vLLM", vllm)):
        try:
            Version(version)
        except InvalidVersion as error:
            raise RequestError(f"{version!r} is no version of {engine}", remedy=f"such as {SGLANG}") from error
    model = read_target(target)
    with tempfile.TemporaryDirectory() as spare:
        source = unpickle(drafter, Path(spare))
        checkpoint, meaning = read(source, model, form, sglang)
        write(checkpoint, meaning, model, to, out, sglang)
    served = [("sglang", sglang)] * (to != "vllm") + [("vllm", vllm)] * (to != "sglang")
    found = [(f"{engine} {version}", one) for engine, version in served for one in lint(out, target, engine, version)]
    return Converted(meaning.form, meaning.layers, meaning.assumed, tuple(found))


def unpickle(drafter: Path, spare: Path) -> Path:
    """A folder with safetensors: the drafter's own, or one made of its pickle, which is read without running code.

    Raises:
        ConversionRefused: the pickle holds something else than tensors, or cannot be read.
    """
    pickles = sorted(drafter.glob("pytorch_model*.bin"))
    if not pickles or any(drafter.glob("*.safetensors")):
        return drafter
    import torch
    from safetensors.torch import save_file

    tensors: dict[str, torch.Tensor] = {}
    for file in pickles:
        try:
            held = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:
            raise ConversionRefused(
                f"{file}: cannot be read as tensors alone: {str(error).splitlines()[0][:200]}",
                remedy="it may hold code; ask its author for safetensors",
            ) from error
        if not isinstance(held, dict) or not all(isinstance(one, torch.Tensor) for one in held.values()):
            raise ConversionRefused(f"{file}: holds something else than tensors by name")
        tensors |= {str(name): one.contiguous().clone() for name, one in held.items()}
    save_file(tensors, spare / "model.safetensors")
    config = drafter / "config.json"
    if config.exists():
        (spare / "config.json").write_bytes(config.read_bytes())
    return spare
