"""What does an engine count? Its Prometheus text and its load, turned into the few figures that a watchdog uses.

    forward_passes    steps of the model; for SGLang `cuda_graph_passes_total` of all modes, which moves every second
                      while anything is computed; for vLLM the number of its engine steps
    running, queued   requests
    used_tokens       in the key-value cache now
    generated_tokens  moves in SGLang only when a request *ends*: it stands still during one long healthy request
    requests          that were taken

Sums over all ranks. What is no figure, or no line of the format, is passed over.
"""

import math
import re
from collections.abc import Mapping

_NAMES = {
    "sglang:cuda_graph_passes_total": "forward_passes",
    "sglang:forward_passes_total": "forward_passes",
    "vllm:iteration_tokens_total_count": "forward_passes",
    "sglang:num_running_reqs": "running",
    "vllm:num_requests_running": "running",
    "sglang:num_queue_reqs": "queued",
    "vllm:num_requests_waiting": "queued",
    "sglang:num_used_tokens": "used_tokens",
    "sglang:generation_tokens_total": "generated_tokens",
    "vllm:generation_tokens_total": "generated_tokens",
    "sglang:num_requests_total": "requests",
}
_WORD = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]*")
_MAX_LINES = 200_000


def parse_metrics(text: str) -> dict[str, float]:
    """The figures above, as far as the text has them."""
    found: dict[str, float] = {}
    for line in text.splitlines()[:_MAX_LINES]:
        word = _WORD.match(line)
        name = _NAMES.get(word[0]) if word is not None else None
        if name is None:
            continue
        # A label's value may hold anything, blanks and braces included.
        rest = line[line.rfind("}") + 1 :] if "{" in line else line.split(None, 1)[-1]
        value = _number(rest.split()[0] if rest.split() else None)
        if value is not None:
            found[name] = found.get(name, 0.0) + value
    return found


def parse_load(data: object) -> dict[str, float]:
    """`running` and `queued` from SGLang's /get_load, a list with an entry for each data-parallel rank."""
    found: dict[str, float] = {}
    for entry in data if isinstance(data, list) else [data]:
        if not isinstance(entry, Mapping):
            continue
        requests, waiting = _number(entry.get("num_reqs")), _number(entry.get("num_waiting_reqs"))
        if requests is not None and waiting is not None:
            found["running"] = found.get("running", 0.0) + max(0.0, requests - waiting)
            found["queued"] = found.get("queued", 0.0) + waiting
    return found


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) and abs(number) < 1e18 else None
