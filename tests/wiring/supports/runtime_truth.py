"""What an engine itself says of every class of its registry: runs in the Python that has the engine, prints JSON.

    ENGINE_PYTHON runtime_truth.py vllm|sglang

For each architecture: `class`, and either `supported` (the very test that the engine makes before it starts with
EAGLE-3) or `error` where the class cannot be imported here.
"""

import json
import logging
import os
import sys


def vllm() -> dict[str, dict[str, object]]:
    from vllm.model_executor.models.interfaces import supports_eagle3  # type: ignore
    from vllm.model_executor.models.registry import ModelRegistry  # type: ignore

    found: dict[str, dict[str, object]] = {}
    for name, entry in ModelRegistry.models.items():
        try:
            model = entry.load_model_cls()
            found[name] = {
                "class": model.__name__,
                "module": model.__module__,
                "supported": bool(supports_eagle3(model)),
            }
        except BaseException as error:  # noqa: BLE001 - whatever an engine's import raises
            found[name] = {"error": f"{type(error).__name__}: {error}"[:300]}
    return found


def sglang() -> dict[str, dict[str, object]]:
    import torch
    from sglang.srt.models.registry import ModelRegistry  # type: ignore

    found: dict[str, dict[str, object]] = {}
    for name, model in ModelRegistry.models.items():
        found[name] = {
            "class": model.__name__,
            "module": model.__module__,
            "supported": hasattr(model, "set_eagle3_layers_to_capture"),
        }
    # beyond the registry: every module class that the model files define, by module and name
    for module_name, module in list(sys.modules.items()):
        if not module_name.startswith("sglang.srt.models."):
            continue
        for name, value in list(vars(module).items()):
            if (
                name != "EntryClass"
                and isinstance(value, type)
                and issubclass(value, torch.nn.Module)
                and value.__module__ == module_name
            ):
                found[f"{module_name}:{name}"] = {
                    "class": name,
                    "module": module_name,
                    "supported": hasattr(value, "set_eagle3_layers_to_capture"),
                }
    return found


if __name__ == "__main__":
    logging.disable(logging.ERROR)
    answer = {"vllm": vllm, "sglang": sglang}[sys.argv[1]]()
    sys.stdout.flush()
    os.write(1, ("\n" + json.dumps(answer) + "\n").encode())
