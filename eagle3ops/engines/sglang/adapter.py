"""How is SGLang started, and how does its log read?

Written for 0.5.14, whose flags used here are those of the later 0.5 too. The forms of its log lines are those of
recorded logs of both.
"""

import json
import os
import re
import shlex
from pathlib import Path

from eagle3ops import assets
from eagle3ops.engines.base import LogFact, ServeSpec, on_gpu, speculation_flags
from eagle3ops.engines.sglang import requirements

_CPU_FLAGS = (
    "--device", "cpu",
    "--attention-backend", "torch_native",
    "--sampling-backend", "pytorch",
    "--disable-overlap-schedule",
)  # fmt: skip
_CPU_POOL_TOKENS = 16384
"""Tokens for which a CPU server keeps keys and values at least; left alone it takes most of the host's memory."""
_CPU_POOL_TOKENS_A_REQUEST = 1024
_GRPC_OFFSET, _LAST_PORT = 10000, 65535

_PREFIX = re.compile(
    r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?P<rank>(?: (?:DP|PP|ATTN_CP|MOE_DP|TP|EP)\d{1,5})*)\] "
)
_DECODE = re.compile(
    r"Decode batch.{0,40}?, #running-req: (?P<running>\d{1,9}),"
    r"(?:.{0,200}? accept len: (?P<accept_len>\d{1,9}(?:\.\d{1,9})?), accept rate: (?P<accept_rate>\d(?:\.\d{1,9})?))?"
    r".{0,300}?gen throughput \(token/s\): (?P<throughput>\d{1,9}(?:\.\d{1,9})?)"
    r"(?:, #queue-req: (?P<queued>\d{1,9}))?"
)
_PHASES = (
    ("connecting", re.compile(r"Init (?:torch distributed|parallel) begin")),
    ("loading", re.compile(r"Load weight begin")),
    ("allocating", re.compile(r"Load weight end|KV Cache is allocated")),
    ("capturing", re.compile(r"Capture [a-z ]{1,30} CUDA graph begin")),
    ("warming_up", re.compile(r"INFO: {1,8}Uvicorn running on ")),
)
_ERRORS = re.compile(
    r"Scheduler hit an exception|Received sigquit from a child process|Initialization failed\. |"
    r"Rank \d{1,9} scheduler died during initialization|Health check failed\.|\w{1,40} watchdog timeout "
)
PLUGIN = Path(assets.__file__).parent / "sglang_plugin"
"""What makes a server hand over what a drafter would be fed, see the module there."""
READY = "The server is fired up and ready to roll!"
_LINE_CHARACTERS = 2000


def drafter_ids(drafter: Path | None) -> list[int] | None:
    """The layer ids that SGLang reads in a drafter's config; None where it reads none, and takes its default.

    It takes whatever it cannot read for none, without a word.
    """
    if drafter is None:
        return None
    try:
        ids = json.loads((drafter / "config.json").read_text())["eagle_config"]["eagle_aux_hidden_state_layer_ids"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return ids if isinstance(ids, list) and all(type(one) is int for one in ids) else None


class SglangAdapter:
    """SGLang as a process of its own, in an environment of its own if the pipeline file says so."""

    name = "sglang"

    def require(self, spec: ServeSpec) -> None:
        """See `Adapter.require`."""
        requirements.check(
            python=spec.python,
            variables=spec.variables,
            on_gpu=on_gpu(spec.device),
            drafter=spec.drafter is not None and not spec.return_hidden_states,
            aux_layers=spec.aux_layers is not None,
        )

    def environment(self, spec: ServeSpec) -> dict[str, str]:
        """See `Adapter.environment`."""
        variables = {
            # Our own packages must not be found before those of its environment.
            "PYTHONPATH": spec.variables.get("PYTHONPATH", ""),
            "PYTHONUNBUFFERED": "1",
            "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1",
            # A crashed server would keep its GPUs for a minute more, waiting for a core dump that nobody asked for.
            "SGLANG_CUDA_COREDUMP_BEFORE_CRASH": "0",
        }
        if spec.return_hidden_states:
            variables |= {
                "PYTHONPATH": os.pathsep.join(filter(None, (str(PLUGIN), variables["PYTHONPATH"]))),
                "SGLANG_PLUGINS": "eagle3ops_capture",
                "EAGLE3OPS_CAPTURE": json.dumps(drafter_ids(spec.drafter)),
            }
        if spec.port + _GRPC_OFFSET > _LAST_PORT:
            # It reserves this one although it does not listen on it, and refuses to start where there is none.
            variables["SGLANG_GRPC_PORT"] = str(spec.port - _GRPC_OFFSET)
        if not on_gpu(spec.device):
            # Without it the rotary embedding is looked for in vLLM.
            variables["SGLANG_USE_CPU_ENGINE"] = "1"
        return variables | {name: text for name, text in spec.variables.items() if name != "PYTHONPATH"}

    def argv(self, spec: ServeSpec) -> list[str]:
        """See `Adapter.argv`."""
        argv = [
            requirements.interpreter(spec.python), "-m", "sglang.launch_server",
            "--model-path", str(spec.model),
            "--host", spec.host,
            "--port", str(spec.port),
            "--dtype", spec.dtype,
            "--max-running-requests", str(spec.max_running_requests),
            "--random-seed", str(spec.seed),
            "--grammar-backend", "none",
            # Otherwise the numbers of verification steps are up to 40 steps old.
            "--decode-log-interval", "10",
        ]  # fmt: skip
        if on_gpu(spec.device):
            argv += ["--tp-size", str(spec.gpus)] if spec.gpus > 1 else []
            argv += ["--max-total-tokens", str(spec.pool_tokens)] if spec.pool_tokens is not None else []
        else:
            tokens = max(_CPU_POOL_TOKENS, _CPU_POOL_TOKENS_A_REQUEST * spec.max_running_requests)
            argv += [*_CPU_FLAGS, "--max-total-tokens", str(tokens)]
        if spec.trust_remote_code:
            argv.append("--trust-remote-code")
        if spec.context_length is not None:
            argv += ["--context-length", str(spec.context_length)]
        if spec.return_hidden_states:
            # Rows that come from the prefix cache would be missing.
            argv += ["--enable-return-hidden-states", "--disable-radix-cache"]
        else:
            argv += speculation_flags(spec)
        return [*argv, *spec.arguments]

    def parse_log(self, line: str) -> LogFact | None:
        """See `Adapter.parse_log`. A progress bar's pieces are lines of their own: split at carriage returns first."""
        found = _PREFIX.match(line)
        if found is None:
            return None
        text = line[found.end() : found.end() + _LINE_CHARACTERS]
        rank: dict[str, float | str] = {"rank": found["rank"].strip()} if found["rank"] else {}
        # All options of the server stand in this one, names of errors and of handlers among them.
        if text.startswith("server_args="):
            return LogFact("phase", {"phase": "starting", **rank})
        if text.startswith(READY):
            return LogFact("ready", rank)
        if decode := _DECODE.match(text):
            numbers = {key: float(value) for key, value in decode.groupdict().items() if value is not None}
            return LogFact("decode", {**numbers, **rank})
        for phase, pattern in _PHASES:
            if pattern.match(text):
                return LogFact("phase", {"phase": phase, **rank})
        if _ERRORS.match(text):
            return LogFact("error", {"message": text[:500].strip(), **rank})
        return None

    def launch_line(self, spec: ServeSpec) -> str:
        """See `Adapter.launch_line`."""
        variables = [
            f"{name}={value}"
            for name, value in self.environment(spec).items()
            if name.startswith("SGLANG_") or name in spec.variables
        ]
        return shlex.join([*(["env", *variables] if variables else []), *self.argv(spec)])
