"""How is vLLM started, and how does its log read?

Written for 0.32.0. Without a GPU every flag here was run; on GPUs they are as its sources read them. The forms of its
log lines are those of recorded logs.
"""

import json
import os
import re
import shlex
from datetime import UTC, datetime
from pathlib import Path

from eagle3ops import assets
from eagle3ops.engines.base import LogFact, ServeSpec, on_gpu
from eagle3ops.engines.installed import interpreter
from eagle3ops.engines.vllm import requirements

PLUGIN = Path(assets.__file__).parent / "vllm_plugin"
"""What makes a server hand over what its drafter is given, see the module there."""
_EXTENSION = "eagle3ops_vllm_capture.Capture"
_CPU_CACHE_GIB = "1"
"""For keys and values; left alone a CPU server takes half of the host's memory."""
_LINE_CHARACTERS = 2000

_COLOUR = re.compile(r"\x1b\[[0-9;]{0,20}m")
_PREFIX = re.compile(r"\((?P<process>[A-Za-z]\w{0,60}(?:-\d{1,4})?)(?: rank=\d{1,6})? pid=\d{1,10}[^)\n]{0,60}\) ?")
_RECORD = re.compile(
    r"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) (?P<at>\d\d-\d\d \d\d:\d\d:\d\d) \[[^\]:\n]{1,80}:\d{1,6}\] ?"
)
_THROUGHPUT = re.compile(
    r"(?:Engine \d{1,4}|\d{1,4} Engines Aggregated): .{0,120}?Avg generation throughput: "
    r"(?P<throughput>\d{1,9}(?:\.\d{1,9})?) tokens/s, "
    r"Running: (?P<running>\d{1,9}) reqs, Waiting: (?P<queued>\d{1,9}) reqs"
)
_ACCEPTANCE = re.compile(
    r"SpecDecoding metrics: Mean acceptance length: (?P<accept_len>\d{1,9}(?:\.\d{1,9})?), "
    r".{0,600}?Avg Draft acceptance rate: (?P<percent>\d{1,3}(?:\.\d{1,9})?)%"
)
_PHASES = (
    ("starting", re.compile(r"non-default args: |Initializing a V1 LLM engine ")),
    ("connecting", re.compile(r"world_size=\d{1,6} rank=\d{1,6} local_rank=")),
    ("loading", re.compile(r"Starting to load model |Loading drafter model")),
    ("compiling", re.compile(r"Warming up model for the compilation|(?:\[\w{1,40}\] )?Using cache directory: ")),
    ("capturing", re.compile(r"Capturing model for |Profiling CUDA graph memory")),
    # It says so before it answers.
    ("warming_up", re.compile(r"Starting vLLM server on http")),
)
_CACHE = re.compile(r"(?:GPU|CPU|XPU) KV cache size: (?P<tokens>\d{1,3}(?:,?\d{3}){0,5}) tokens")
_READY = re.compile(r"INFO: {1,8}Application startup complete\.")
_ERRORS = re.compile(
    r"WorkerProc failed to start|WorkerProc hit an exception|EngineCore failed to start|"
    r"EngineCore encountered a fatal error|AsyncLLM output_handler failed"
)
_EXCEPTION = re.compile(r"(?:\w{1,80}\.){0,12}\w{0,80}(?:Error|Exception|Interrupt): ")
_FOLLOWS = re.compile(
    r"WorkerProc initialization failed|Engine core initialization failed|EngineCore encountered an issue|"
    r"Worker failed with error"
)
"""Exceptions that pass on what another process has said before."""


class VllmAdapter:
    """vLLM as a process of its own, in an environment of its own if the pipeline file says so."""

    name = "vllm"

    def require(self, spec: ServeSpec) -> None:
        """See `Adapter.require`."""
        requirements.check(spec)

    def version(self, spec: ServeSpec) -> str:
        """See `Versioned.version`."""
        return requirements.check(spec)

    def environment(self, spec: ServeSpec) -> dict[str, str]:
        """See `Adapter.environment`."""
        variables = {
            # Our own packages must not be found before those of its environment.
            "PYTHONPATH": spec.variables.get("PYTHONPATH", ""),
            "PYTHONUNBUFFERED": "1",
            "VLLM_NO_USAGE_STATS": "1",
            # The target is a folder; nothing is to be looked up elsewhere.
            "HF_HUB_OFFLINE": "1",
        }
        if spec.return_hidden_states:
            variables |= {
                "PYTHONPATH": os.pathsep.join(filter(None, (str(PLUGIN), variables["PYTHONPATH"]))),
                # It brings /collective_rpc, by which the plugin is asked.
                "VLLM_SERVER_DEV_MODE": "1",
            }
        if not on_gpu(spec.device):
            variables["VLLM_CPU_KVCACHE_SPACE"] = _CPU_CACHE_GIB
        return variables | {name: text for name, text in spec.variables.items() if name != "PYTHONPATH"}

    def argv(self, spec: ServeSpec) -> list[str]:
        """See `Adapter.argv`."""
        gpu = on_gpu(spec.device)
        argv = [
            # `vllm serve` looks for a package called vllm, and that for CPUs is called vllm-cpu.
            interpreter(spec.python), "-m", "vllm.entrypoints.openai.api_server",
            "--model", str(spec.model),
            "--host", spec.host,
            "--port", str(spec.port),
            "--dtype", spec.dtype,
            "--max-num-seqs", str(spec.max_running_requests),
            # As long as the model can and the cache holds.
            "--max-model-len", "auto" if spec.context_length is None else str(spec.context_length),
            "--seed", str(spec.seed),
            # Otherwise temperature and penalties that stand beside the model count where a request says nothing.
            "--generation-config", "vllm",
        ]  # fmt: skip
        if gpu and spec.gpus > 1:
            argv += ["--tensor-parallel-size", str(spec.gpus)]
        if gpu and spec.memory_fraction is not None:
            argv += ["--gpu-memory-utilization", str(spec.memory_fraction)]
        if spec.attention_backend is not None:
            argv += ["--attention-backend", spec.attention_backend.upper()]
        if not gpu or spec.return_hidden_states:
            # Compilation takes minutes and changes none of what is computed.
            argv.append("--enforce-eager")
        if spec.trust_remote_code:
            argv.append("--trust-remote-code")
        if spec.return_hidden_states:
            # Rows that come from the prefix cache would be missing.
            argv += ["--worker-extension-cls", _EXTENSION, "--no-enable-prefix-caching"]
        return [*argv, *_speculation(spec), *spec.arguments]

    def parse_log(self, line: str) -> LogFact | None:
        """See `Adapter.parse_log`. A progress bar's pieces are lines of their own: split at carriage returns first."""
        line = _COLOUR.sub("", line[:_LINE_CHARACTERS])
        if _READY.match(line):
            return LogFact("ready")
        prefix = _PREFIX.match(line)
        record = _RECORD.match(line, prefix.end() if prefix else 0)
        rank = _rank(prefix["process"]) if prefix else {}
        if record is None:
            # A progress bar is no record.
            bar = line.startswith("Capturing ", prefix.end() if prefix else 0) and "CUDA graphs" in line
            return LogFact("phase", {"phase": "capturing", **rank}) if bar else None
        text, at = line[record.end() :], _seconds(record["at"])
        if record["level"] in ("ERROR", "CRITICAL"):
            if _ERRORS.match(text) or (_EXCEPTION.match(text) and not _FOLLOWS.search(text)):
                return LogFact("error", {"message": text[:500].strip(), **rank}, at)
            return None
        if found := _THROUGHPUT.match(text):
            return LogFact("decode", {**{key: float(value) for key, value in found.groupdict().items()}, **rank}, at)
        if found := _ACCEPTANCE.match(text):
            told = {"accept_len": float(found["accept_len"]), "accept_rate": float(found["percent"]) / 100}
            return LogFact("decode", {**told, **rank}, at)
        if found := _CACHE.match(text):
            tokens = float(found["tokens"].replace(",", ""))
            return LogFact("phase", {"phase": "allocating", "what": "limits", "tokens": tokens, **rank}, at)
        for phase, pattern in _PHASES:
            if pattern.match(text):
                return LogFact("phase", {"phase": phase, **rank}, at)
        return None

    def launch_line(self, spec: ServeSpec) -> str:
        """See `Adapter.launch_line`."""
        variables = [
            f"{name}={value}"
            for name, value in self.environment(spec).items()
            if name.startswith("VLLM_") or name in spec.variables
        ]
        return shlex.join([*(["env", *variables] if variables else []), *self.argv(spec)])


def _speculation(spec: ServeSpec) -> list[str]:
    """EAGLE-3 on the command line; none without a drafter."""
    if spec.drafter is None:
        return []
    config = {"method": "eagle3", "model": str(spec.drafter), "num_speculative_tokens": spec.steps}
    if spec.return_hidden_states:
        # What it is given does not depend on its weights, so its config is enough.
        config |= {"num_speculative_tokens": 1, "draft_load_config": {"load_format": "dummy"}}
    return ["--speculative-config", json.dumps(config), "--per-request-spec-decode-metrics", "summary"]


def _seconds(date: str) -> float | None:
    """Of a clock that counts from some year's beginning: vLLM writes none."""
    try:
        return datetime.strptime(f"2000-{date}", "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


def _rank(process: str) -> dict[str, float | str]:
    """`Worker_TP1` -> `TP1`, `EngineCore_DP0` -> `DP0`; nothing for a process that is alone of its kind."""
    kind, _, rank = process.partition("_")
    return {"rank": rank} if kind in ("Worker", "EngineCore", "ApiServer") and rank else {}
