"""What an engine itself says of every class of its registry: runs in the Python that has the engine, prints JSON.

    ENGINE_PYTHON runtime_truth.py vllm|sglang

For each architecture, and for each class that a module of models defines (as `module:Class`): its `class`, the classes
of the engine in its `mro`, and `supported` (the very test that the engine makes before it starts with EAGLE-3); or
`error` where it cannot be imported. Optional packages that are not installed, such as torchvision, are stood in for.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import json
import logging
import os
import sys
import types
from typing import Any

STOOD_IN = ("torchvision", "torchaudio", "timm", "terratorch")


class Anything(type):
    """A class that has every attribute."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class StandIn(types.ModuleType):
    """A package that is not there: whatever is asked of it is a class or a part of it."""

    __version__ = "0.0.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything(name, (), {"__init__": lambda self, *a, **k: None, "__call__": lambda self, *a, **k: None})


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds stand-ins."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname.split(".")[0] in STOOD_IN:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        module = StandIn(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run."""


def said(model: type, engine: str, *, supported: bool) -> dict[str, object]:
    mro = [f"{each.__module__}:{each.__name__}" for each in model.__mro__ if each.__module__.split(".")[0] == engine]
    return {"class": model.__name__, "module": model.__module__, "supported": supported, "mro": mro}


def beyond(engine: str, packages: tuple[str, ...]) -> dict[str, type]:
    """Every module class that the files of models define."""
    import torch

    return {
        f"{module_name}:{name}": value
        for module_name, module in list(sys.modules.items())
        if module_name.startswith(packages)
        for name, value in list(vars(module).items())
        if isinstance(value, type) and issubclass(value, torch.nn.Module)
        if value.__module__ == module_name and value.__name__ == name and name != "EntryClass"
    }


def vllm() -> dict[str, dict[str, object]]:
    from vllm.model_executor.models.interfaces import supports_eagle3  # type: ignore
    from vllm.model_executor.models.registry import ModelRegistry  # type: ignore

    found: dict[str, dict[str, object]] = {}
    for name, entry in ModelRegistry.models.items():
        try:
            model = entry.load_model_cls()
        except BaseException as error:  # noqa: BLE001 - whatever an engine's import raises
            found[name] = {"error": f"{type(error).__name__}: {error}"[:300]}
        else:
            found[name] = said(model, "vllm", supported=bool(supports_eagle3(model)))
    for name, model in beyond("vllm", ("vllm.model_executor.models.", "vllm.models.")).items():
        found[name] = said(model, "vllm", supported=bool(supports_eagle3(model)))
    return found


def sglang() -> dict[str, dict[str, object]]:
    from sglang.srt.models.registry import ModelRegistry  # type: ignore

    models = {**ModelRegistry.models, **beyond("sglang", ("sglang.srt.models.",))}
    return {
        name: said(model, "sglang", supported=hasattr(model, "set_eagle3_layers_to_capture"))
        for name, model in models.items()
    }


if __name__ == "__main__":
    logging.disable(logging.ERROR)
    sys.meta_path.append(Finder())  # last: what is installed is used
    answer = {"vllm": vllm, "sglang": sglang}[sys.argv[1]]()
    sys.stdout.flush()
    os.write(1, b"\n")
    with os.fdopen(1, "w", closefd=False) as out:
        out.write(json.dumps(answer) + "\n")
