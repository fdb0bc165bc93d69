"""What does `sglang.bench_serving` measure at a server? Its command line, and the JSON line that it leaves.

It is the number that others quote, beside ours. It streams, takes prompts as text, and takes the accept length from
the server's own average, which is of the server's whole life and up to tens of steps old.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3ops.errors import Eagle3opsError

# The module has moved between versions; the new place is taken where there is one.
_RUN = (
    "import importlib.util, runpy\n"
    "new = importlib.util.find_spec('sglang.benchmark') and importlib.util.find_spec('sglang.benchmark.serving')\n"
    "runpy.run_module('sglang.benchmark.serving' if new else 'sglang.bench_serving', run_name='__main__', "
    "alter_sys=True)\n"
)
_NUMBERS = ("duration", "output_throughput", "total_throughput", "request_throughput", "accept_length", "concurrency")
_LATENCIES = ("ttft", "tpot", "itl", "e2e_latency")
_SHARES = {"mean": "mean", "median": "p50", "p90": "p90", "p95": "p95", "p99": "p99"}


class ToolError(Eagle3opsError):
    """It did not run, or what it left is not understood."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRun:
    """One run of it.

    Attributes:
        dataset: see `write_dataset`.
        output: the file that it appends its line to.
        natural_stop: let answers end by themselves; its own default is a forced length.
    """

    python: str
    url: str
    model: Path
    dataset: Path
    output: Path
    prompts: int
    tokens: int
    concurrency: int
    natural_stop: bool
    seed: int = 0

    def argv(self) -> list[str]:
        """The command, with flags that 0.5.14 and 0.5.23 share."""
        return [
            self.python, "-P", "-c", _RUN,
            "--backend", "sglang",
            "--base-url", self.url,
            "--model", str(self.model),
            "--tokenizer", str(self.model),
            "--dataset-name", "custom",
            "--dataset-path", str(self.dataset),
            "--apply-chat-template",
            "--num-prompts", str(self.prompts),
            "--sharegpt-output-len", str(max(4, self.tokens)),
            "--max-concurrency", str(self.concurrency),
            "--warmup-requests", "1",
            "--seed", str(self.seed),
            "--output-file", str(self.output),
            "--disable-tqdm",
            *(["--disable-ignore-eos"] if self.natural_stop else []),
        ]  # fmt: skip


def write_dataset(texts: Sequence[str], path: Path) -> None:
    """Questions in the form of its `custom` data set; the second turn is required and not used."""
    answer = {"role": "assistant", "content": "Yes, so it is."}
    lines = [json.dumps({"conversations": [{"role": "user", "content": text}, answer]}) for text in texts]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def parse_tool_line(text: str) -> dict[str, Any]:
    """The last line of its output file -> its figures under our names: seconds, not milliseconds.

    Raises:
        ToolError: there is no such line, or it holds no figures.
    """
    lines = text.splitlines()
    if not lines:
        raise ToolError("sglang.bench_serving left no result")
    try:
        raw = json.loads(lines[-1])
    except (ValueError, RecursionError) as error:
        raise ToolError(f"what sglang.bench_serving left is not JSON: {lines[-1][:120]!r}") from error
    if not isinstance(raw, Mapping):
        raise ToolError("what sglang.bench_serving left is not an object")
    found: dict[str, Any] = {name: value for name in _NUMBERS if (value := _number(raw.get(name))) is not None}
    completed = raw.get("completed")
    if type(completed) is not int or completed < 1 or "output_throughput" not in found:
        raise ToolError(f"sglang.bench_serving finished no request (completed: {str(completed)[:40]})")
    found["completed"] = completed
    for name in _LATENCIES:
        shares = {
            ours: value / 1000.0
            for theirs, ours in _SHARES.items()
            if (value := _number(raw.get(f"{theirs}_{name}_ms"))) is not None
        }
        found[f"{'e2e' if name == 'e2e_latency' else name}_s"] = shares
    return found


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) and 0 <= number < 1e15 else None
