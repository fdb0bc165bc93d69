"""Which branch does an engine's source take on a platform?"""

import ast
from typing import Literal, get_args

Platform = Literal["cuda", "cpu", "rocm", "xpu"]
PLATFORMS: tuple[Platform, ...] = get_args(Platform)

_ASKED: dict[str, frozenset[str]] = {
    "is_cuda": frozenset({"cuda"}),
    "is_rocm": frozenset({"rocm"}),
    "is_hip": frozenset({"rocm"}),
    "is_cuda_alike": frozenset({"cuda", "rocm"}),
    "is_cpu": frozenset({"cpu"}),
    "is_xpu": frozenset({"xpu"}),
    "is_host_cpu": frozenset({"cpu"}),
    **dict.fromkeys(
        ("is_tpu", "is_hpu", "is_npu", "is_musa", "is_mps", "is_neuron", "is_out_of_tree", "is_mlu"), frozenset[str]()
    ),
}
"""Function -> the platforms on which it says yes. vLLM asks `current_platform.is_rocm()`, SGLang `is_hip()`."""
_OBJECTS = ("current_platform", "platform", "_platform")


def ask(call: ast.Call, platform: Platform) -> bool | None:
    """What a question for the platform is answered with; None when the call is none."""
    if call.args or call.keywords:
        return None
    function = call.func
    if isinstance(function, ast.Attribute):
        holder = function.value
        name = holder.attr if isinstance(holder, ast.Attribute) else holder.id if isinstance(holder, ast.Name) else ""
        if name not in _OBJECTS:
            return None
        asked = function.attr
    elif isinstance(function, ast.Name):
        asked = function.id
    else:
        return None
    platforms = _ASKED.get(asked)
    return None if platforms is None else platform in platforms
