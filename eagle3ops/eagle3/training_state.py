"""How does training go on after a kill exactly where it was?

A checkpoint holds weights, optimiser state, step and the random generator; the data order is a function of seed and
step and needs none. The index names the last two checkpoints with their checksums, newest last, and the key of the
inputs they belong to; a damaged one is named and the one before it is used.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from eagle3ops.eagle3.durable import TMP_SUFFIX, sha256_of, write_bytes_durably, write_durably
from eagle3ops.errors import Eagle3opsError, RequestError

INDEX = "index.json"
KEEP = 2


EXTRA = "extra."


def _collect(module: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, Tensor]:
    tensors = {f"model.{name}": value for name, value in module.state_dict().items()}
    for number, optimizer in enumerate(optimizers):
        for index, state in optimizer.state_dict()["state"].items():
            for name, value in state.items():
                tensors[f"optimizer.{number}.{index}.{name}"] = value
    tensors["random"] = torch.get_rng_state()
    return {name: value.detach().cpu().contiguous() for name, value in tensors.items()}


class TrainingState:
    """The checkpoints in one folder."""

    def __init__(self, folder: Path, key: str) -> None:
        """`key`: identifies data, configuration and target; checkpoints of another key are refused."""
        self.folder = folder
        self.key = key
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in folder.glob(f".*{TMP_SUFFIX}"):
            leftover.unlink()

    def save(
        self,
        step: int,
        module: nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        extra: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Write the state after `step` steps; returns when it would survive a power cut.

        Args:
            extra: further tensors to keep, for `newest`.

        Raises:
            OSError: the disk is full or cannot be written; earlier checkpoints are as they were.
        """
        name = f"step-{step:08d}.safetensors"
        tensors = _collect(module, optimizers)
        tensors |= {EXTRA + label: value.detach().cpu().contiguous() for label, value in (extra or {}).items()}
        write_durably(self.folder / name, lambda path: save_file(tensors, path, metadata={"step": str(step)}))
        entries = [entry for entry in self._entries() if entry["file"] != name]
        entries.append({"file": name, "step": step, "sha256": sha256_of(self.folder / name)})
        entries = entries[-KEEP:]
        write_bytes_durably(
            self.folder / INDEX, json.dumps({"key": self.key, "checkpoints": entries}, indent=1).encode()
        )
        kept = {entry["file"] for entry in entries}
        for path in self.folder.glob("step-*.safetensors"):
            if path.name not in kept:
                path.unlink()

    def _entries(self) -> list[dict[str, Any]]:
        key, entries = _read_index(self.folder)
        if key is not None and key != self.key:
            raise RequestError(
                f"{self.folder}: holds checkpoints of a training with other data, settings or target",
                remedy="train into another folder, or remove this one",
            )
        return entries

    def newest(self, warn: Callable[[str], None]) -> tuple[int, dict[str, Tensor]]:
        """Step and extra tensors of the newest sound checkpoint; (0, nothing) where there is none."""
        return self._newest(warn, EXTRA) or (0, {})

    def load(
        self,
        module: nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        warn: Callable[[str], None],
    ) -> int:
        """Restore the newest sound checkpoint; returns its step, 0 where there is none.

        Args:
            warn: told about each damaged checkpoint, by name.
        """
        found = self._newest(warn, "")
        if found is None:
            return 0
        step, tensors = found
        _restore(tensors, module, optimizers)
        return step

    def _newest(self, warn: Callable[[str], None], prefix: str) -> tuple[int, dict[str, Tensor]] | None:
        """The newest sound checkpoint's step, and its tensors whose names begin with `prefix`, without it."""
        for entry in reversed(self._entries()):
            path = self.folder / Path(entry["file"]).name
            try:
                _check(path, entry)
                with safe_open(path, framework="pt") as handle:
                    # Cloned: mapped tensors lie at odd addresses, where vector units sum in another order.
                    tensors = {
                        name.removeprefix(prefix): handle.get_tensor(name).clone()
                        for name in handle.keys()  # noqa: SIM118
                        if name.startswith(prefix)
                    }
            except (OSError, ValueError, SafetensorError) as error:
                warn(f"checkpoint {path}: {error}; going on from an earlier one")
                continue
            return int(entry["step"]), tensors
        return None


def newest_step(folder: Path) -> int:
    """Step of the newest sound checkpoint in a folder, whatever training it belongs to; 0 where there is none.

    Raises:
        Eagle3opsError: the index is damaged.
    """
    for entry in reversed(_read_index(folder)[1]):
        try:
            _check(folder / Path(entry["file"]).name, entry)
        except (OSError, ValueError):
            # Whoever loads it names it.
            continue
        return int(entry["step"])
    return 0


def _check(path: Path, entry: Mapping[str, Any]) -> None:
    if sha256_of(path) != entry["sha256"]:
        raise ValueError("its bytes are not those that were written")


def _read_index(folder: Path) -> tuple[str | None, list[dict[str, Any]]]:
    """Key and checkpoints, newest last; (None, []) where there is no index."""
    path = folder / INDEX
    if not path.exists():
        return None, []
    try:
        raw = json.loads(path.read_bytes())
        entries = [
            {"file": str(e["file"]), "step": int(e["step"]), "sha256": str(e["sha256"])} for e in raw["checkpoints"]
        ]
        return str(raw["key"]), entries
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Eagle3opsError(
            f"{path}: is damaged: {error}", remedy=f"remove {folder} to train from the start"
        ) from error


def _restore(tensors: Mapping[str, Tensor], module: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> None:
    module.load_state_dict({n.removeprefix("model."): t for n, t in tensors.items() if n.startswith("model.")})
    for number, optimizer in enumerate(optimizers):
        whole = optimizer.state_dict()
        prefix = f"optimizer.{number}."
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            if name.startswith(prefix):
                index, field = name.removeprefix(prefix).split(".", 1)
                state.setdefault(int(index), {})[field] = value
        optimizer.load_state_dict({**whole, "state": state})
    torch.set_rng_state(tensors["random"])
