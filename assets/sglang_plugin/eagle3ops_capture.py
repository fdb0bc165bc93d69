"""Inside SGLang, by its own plugin hook: hand over what a drafter would be fed, without a drafter.

Loaded where SGLANG_PLUGINS names it and EAGLE3OPS_CAPTURE holds the drafter's layer ids as JSON (null: it names none).
The model's own `set_eagle3_layers_to_capture` gets them, as it would from a drafter's config, so what comes out is what
this version of the engine really captures for this class of target.
"""

import json
import os
from typing import Any


def register() -> None:
    told = os.environ.get("EAGLE3OPS_CAPTURE")
    if told is None:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType  # type: ignore[import-not-found]

    def capture(result: object, runner: Any, *_args: object, **_kwargs: object) -> None:
        runner.model.set_eagle3_layers_to_capture(json.loads(told))

    HookRegistry.register("sglang.srt.model_executor.model_runner.ModelRunner.load_model", capture, HookType.AFTER)
