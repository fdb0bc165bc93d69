"""How is a server started that only reads prompts and hands their hidden states over?"""

import os
from dataclasses import replace

from eagle3ops.engines.base import ServeSpec, on_gpu
from eagle3ops.engines.sglang.adapter import PLUGIN
from eagle3ops.engines.sglang.extraction.spool import Spool

PREFILL_TOKENS = {True: 16384, False: 4096}
"""Tokens of a forward pass on a GPU, and on a CPU; longer requests are taken in several."""
RUNNING_ON_GPU = 512


def extraction_spec(base: ServeSpec, spool: Spool) -> ServeSpec:
    """The settings of a server that only reads prompts and hands their states to `spool`.

    Args:
        base: the target alone.
    """
    gpu = on_gpu(base.device)
    paths = (str(PLUGIN), base.variables.get("PYTHONPATH", ""))
    tokens = str(PREFILL_TOKENS[gpu])
    return replace(
        base,
        max_running_requests=max(base.max_running_requests, RUNNING_ON_GPU) if gpu else base.max_running_requests,
        arguments=(
            *base.arguments,
            # Of what comes from the prefix cache there would be no states.
            "--disable-radix-cache",
            "--skip-tokenizer-init",
            # Hooks are not called when a graph is replayed, and nothing is decoded.
            "--cuda-graph-backend-prefill", "disabled",
            "--cuda-graph-backend-decode", "disabled",
            "--chunked-prefill-size", tokens,
            "--max-prefill-tokens", tokens,
        ),
        variables={**base.variables, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **spool.variables()},
    )  # fmt: skip
