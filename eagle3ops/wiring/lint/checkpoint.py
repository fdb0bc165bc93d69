"""What does a checkpoint's folder hold? Its config, and the name, shape, type and place of every tensor.

Of the weights only the headers are read, and single tensors or rows where a check needs their values.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eagle3ops.targets.headers import TensorInfo, read_header
from eagle3ops.wiring.lint.finding import Finding, error

CONFIG = "config.json"
MOST_CONFIG = 16 << 20


@dataclass(slots=True)
class Checkpoint:
    """A folder, as far as it can be read."""

    folder: Path
    config: Mapping[str, Any] | None = None
    """None where there is none that can be read."""
    tensors: dict[str, TensorInfo] | None = None
    """By the names that stand in the files; None where no header can be read."""
    findings: list[Finding] = field(default_factory=list)


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read a folder; what stands in the way is among the findings."""
    found = Checkpoint(folder)
    found.config = read_config(folder, found.findings)
    found.tensors = _read_tensors(folder, found.findings)
    return found


def read_config(folder: Path, findings: list[Finding]) -> Mapping[str, Any] | None:
    """`config.json`, or None."""
    path = folder / CONFIG
    try:
        if path.exists() and not path.is_file():
            raise ValueError("it is no regular file")
        if path.stat().st_size > MOST_CONFIG:
            raise ValueError("it is far too large to be a config")
        data = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(data, dict):
            raise TypeError(f"a JSON object was expected, not {type(data).__name__}")
    except FileNotFoundError:
        told = error("config-missing", str(path), "there is no config.json", "no engine can load it", "export it again")
        findings.append(told)
        return None
    except (OSError, ValueError, TypeError, RecursionError) as problem:
        why = getattr(problem, "strerror", None) or str(problem)
        findings.append(
            error("config-unreadable", str(path), f"cannot be read: {why}", "no engine can load it", "export it again")
        )
        return None
    return data


def _read_tensors(folder: Path, findings: list[Finding]) -> dict[str, TensorInfo] | None:
    try:
        files = sorted(file for file in folder.glob("*.safetensors") if file.is_file())
        named = _index(folder, findings)
    except OSError:
        files, named = [], {}
    if not files:
        pickles = [file.name for file in (*folder.glob("*.bin"), *folder.glob("*.pt"), *folder.glob("*.pth"))]
        if pickles:
            what, fix = f"its weights are pickles: {', '.join(sorted(pickles)[:5])}", "repack them as safetensors"
            findings.append(
                error("weights-pickle", str(folder), what, "loading a pickle may run code, and engines refuse it", fix)
            )
        else:
            findings.append(
                error("weights-missing", str(folder), "no *.safetensors", "there is nothing to load", "export it again")
            )
        return None
    tensors: dict[str, TensorInfo] = {}
    for file in files:
        try:
            read = read_header(file)
        except (OSError, ValueError) as problem:
            why = getattr(problem, "strerror", None) or str(problem)
            findings.append(
                error("weights-damaged", str(file), why, "it was not written to its end, or is no safetensors file",
                      "copy or export it again")
            )  # fmt: skip
            return None
        for name, info in read.items():
            if name in tensors:
                findings.append(
                    error("tensor-twice", f"{file.name}: {name}", f"stands in {tensors[name].file.name} as well",
                          "which of the two is served depends on the order of the files", "keep one of them")
                )  # fmt: skip
            tensors[name] = info
    for name, wanted in sorted(named.items()):
        if not (folder / wanted).is_file():
            findings.append(
                error("weights-file-missing", f"model.safetensors.index.json: {name}", f"{wanted} is not there",
                      "its tensors are missing", "copy the checkpoint again, whole")
            )  # fmt: skip
            return None
    return tensors


def _index(folder: Path, findings: list[Finding]) -> dict[str, str]:
    """Tensor -> file, by the index of a checkpoint in several files."""
    path = folder / "model.safetensors.index.json"
    if not path.exists():
        return {}
    try:
        table = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        return {str(k): str(v) for k, v in table.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
        findings.append(
            error("index-unreadable", str(path), f"cannot be read: {problem}", "engines look tensors up in it",
                  "copy the checkpoint again")
        )  # fmt: skip
        return {}
