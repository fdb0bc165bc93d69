"""How is SGLang started?

Written for 0.5.14 and 0.5.23; what an installation in between knows is read in its own source (`flags`).
"""

import json
import os
import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from eagle3ops import assets
from eagle3ops.engines.base import LogFact, ServeSpec, on_gpu, speculation_flags
from eagle3ops.engines.gpu_memory import capability
from eagle3ops.engines.installed import interpreter, numbers
from eagle3ops.engines.sglang import flags, requirements
from eagle3ops.engines.sglang.defaults import CAPTURE_FRACTION, Choice, Gpu, choices
from eagle3ops.engines.sglang.installation import Installation, installation
from eagle3ops.engines.sglang.log import READY, parse_line
from eagle3ops.errors import Eagle3opsError, RequestError

__all__ = ["PLUGIN", "READY", "SglangAdapter", "drafter_ids"]

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
_CUDA_HOME = "/usr/local/cuda"

_IDS = "eagle_aux_hidden_state_layer_ids"
PLUGIN = Path(assets.__file__).parent / "sglang_plugin"
"""What makes a server hand over what a drafter would be fed, see the module there."""


def drafter_ids(drafter: Path | None) -> list[int] | None:
    """The layer ids that SGLang reads in a drafter's config; None where it reads none, and takes its default.

    Raises:
        RequestError: with this config it would not come to capture anything, which a capture of ours must not hide.
    """
    config = _config(drafter)
    if drafter is not None and config is None:
        raise RequestError(f"{drafter}: its config.json cannot be read", remedy="export the drafter again")
    if not _nested(config, "eagle_config", "use_aux_hidden_state", default=True):
        raise RequestError(
            f"{drafter}: eagle_config.use_aux_hidden_state is off, so SGLang hands it the last state and no aux layers",
            remedy="write true for EAGLE-3; eagle3ops lint looks at the rest",
        )
    ids = _nested(config, "eagle_config", _IDS)
    if ids is not None and not (isinstance(ids, list) and all(type(one) is int for one in ids)):
        raise RequestError(
            f"{drafter}: eagle_config.{_IDS} is no list of layer numbers, and SGLang fails on it",
            remedy="write the ids that it was trained with",
        )
    return ids


def _nested(data: Any, *keys: str, default: Any = None) -> Any:
    for key in keys:
        if not isinstance(data, dict) or key not in data:
            return default
        data = data[key]
    return data


def _config(folder: Path | None) -> dict[str, Any] | None:
    """A checkpoint's config; None where there is none that can be read."""
    if folder is None:
        return None
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return config if isinstance(config, dict) else None


class SglangAdapter:
    """SGLang as a process of its own, in an environment of its own if the pipeline file says so."""

    name = "sglang"

    def require(self, spec: ServeSpec) -> None:
        """See `Adapter.require`."""
        here = requirements.check(spec)
        flags.refuse_owned(spec.arguments, here.flags or flags.Flags(frozenset(), {}), "engine.arguments")
        if here.flags is not None:
            # First what a person wrote, so that it is not taken for a fault of ours.
            flags.check(spec.arguments, here.flags, here.version, "engine.arguments")
            backend = () if spec.attention_backend is None else ("--attention-backend", spec.attention_backend)
            flags.check(backend, here.flags, here.version, "engine.attention_backend")
            flags.check(self.argv(spec)[3:], here.flags, here.version, "eagle3ops")

    def version(self, spec: ServeSpec) -> str:
        """Of what would be started.

        Raises:
            RequestError: it cannot serve this.
        """
        return requirements.check(spec).version

    def environment(self, spec: ServeSpec) -> dict[str, str]:
        """See `Adapter.environment`."""
        given = spec.variables
        variables = {
            # Our own packages must not be found before those of its environment.
            "PYTHONPATH": given.get("PYTHONPATH", ""),
            "PYTHONUNBUFFERED": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1",
            # A crashed server would keep its GPUs for a minute more, waiting for a core dump that nobody asked for.
            "SGLANG_CUDA_COREDUMP_BEFORE_CRASH": "0",
            # Its watchdogs call py-spy, which comes with eagle3ops; its compilations ninja, which comes with it.
            "PATH": os.pathsep.join(
                [
                    os.environ.get("PATH", os.defpath),
                    *(str(Path(one).parent) for one in (interpreter(spec.python), sys.executable)),
                ]
            ),
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
        if on_gpu(spec.device):
            variables |= self._on_gpu(spec)
        else:
            # Without it the rotary embedding is looked for in vLLM.
            variables["SGLANG_USE_CPU_ENGINE"] = "1"
        return variables | {name: text for name, text in given.items() if name != "PYTHONPATH"}

    def _on_gpu(self, spec: ServeSpec) -> dict[str, str]:
        wanted: dict[str, str] = {}
        for choice in self._choices(spec):
            wanted |= choice.variables
        if spec.nodes == 1:
            # One machine: its processes meet on the loopback, which also works where the host's name does not resolve.
            wanted |= {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
        if not spec.trust_remote_code:
            # Everything is a folder here: ask no hub, and on a machine without a network do not wait for one.
            wanted |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
        if Path(_CUDA_HOME).is_dir():
            # Its kernels are compiled with what lies there; guessed from `which nvcc`, a wrapper misleads it.
            wanted["CUDA_HOME"] = _CUDA_HOME
        return {name: text for name, text in wanted.items() if not os.environ.get(name)}

    def argv(self, spec: ServeSpec) -> list[str]:
        """See `Adapter.argv`."""
        argv = [
            interpreter(spec.python), "-m", "sglang.launch_server",
            "--model-path", str(spec.model),
            "--host", spec.host,
            "--port", str(spec.port),
            "--dtype", spec.dtype,
            "--max-running-requests", str(spec.max_running_requests),
            "--random-seed", str(spec.seed),
            "--grammar-backend", "none",
            # Otherwise the numbers of verification steps are up to 40 steps old.
            "--decode-log-interval", "10",
            # The watchdog tells a queue from a hang by them.
            "--enable-metrics",
        ]  # fmt: skip
        if on_gpu(spec.device):
            for choice in self._choices(spec):
                argv += choice.words
            argv += self._spread(spec)
        else:
            tokens = max(_CPU_POOL_TOKENS, _CPU_POOL_TOKENS_A_REQUEST * spec.max_running_requests)
            argv += [*_CPU_FLAGS, "--max-total-tokens", str(tokens)]
            if spec.return_hidden_states:
                argv += ["--mem-fraction-static", f"{CAPTURE_FRACTION:g}"]
        if spec.trust_remote_code:
            argv.append("--trust-remote-code")
        if spec.context_length is not None:
            argv += ["--context-length", str(spec.context_length)]
        if spec.return_hidden_states:
            # Rows that come from the prefix cache, or before the last chunk of a prompt, would be missing.
            argv += ["--enable-return-hidden-states", "--disable-radix-cache", "--chunked-prefill-size", "-1"]
        else:
            argv += speculation_flags(spec)
        return [*argv, *spec.arguments]

    @staticmethod
    def _spread(spec: ServeSpec) -> list[str]:
        """Over GPUs and machines."""
        gpus = spec.gpus * spec.nodes
        words = ["--tp-size", str(gpus)] if gpus > 1 else []
        if spec.nodes > 1:
            words += [
                "--nnodes", str(spec.nodes),
                "--node-rank", str(spec.node_rank),
                "--dist-init-addr", str(spec.coordinator),
            ]  # fmt: skip
        return words

    def _choices(self, spec: ServeSpec) -> list[Choice]:
        here, gpu = _here(spec), _gpu(spec)
        found = choices(spec, here, gpu, _language(_config(spec.model)))
        if here is None:
            return found
        # An older name is better than none; what it does not know at all is left to it.
        return [one if not one.words or here.knows(one.words[0]) else replace(one, words=()) for one in found]

    def explain(self, spec: ServeSpec) -> tuple[str, ...]:
        """See `Explains.explain`."""
        here = _here(spec)
        if here is None:
            return ()
        told = [f"SGLang {here.version} of {here.python}"]
        number = numbers(here.version)
        if not requirements.OLDEST <= number < requirements.BEFORE:
            # That it is not known is the refusal's to tell.
            return ()
        if number not in requirements.READ:
            told[0] += ": not tried; its options are those that its own source has"
        if here.flags is None:
            told[0] += "; its options cannot be read in its source, so none is checked before the start"
        told.append(
            "metrics, and a line of the log every 10 decode steps, for the watchdog; no grammar back end: nobody here "
            "asks for structured output"
        )
        if not on_gpu(spec.device):
            return (*told, "attention backend torch_native, one request batch after the other: there is no GPU")
        told += [choice.why for choice in self._choices(spec)]
        if spec.nodes > 1:
            told.append(
                f"{spec.nodes} nodes of {spec.gpus} GPUs, this is number {spec.node_rank}; start on the others:"
            )
            told += [line for rank, line in enumerate(self.launch_lines(spec)) if rank != spec.node_rank]
        return tuple(told)

    def parse_log(self, line: str) -> LogFact | None:
        """See `Adapter.parse_log`. A progress bar's pieces are lines of their own: split at carriage returns first."""
        return parse_line(line)

    def launch_line(self, spec: ServeSpec) -> str:
        """See `Adapter.launch_line`."""
        variables = [
            f"{name}={value}"
            for name, value in self.environment(spec).items()
            if name.startswith("SGLANG_") or name == "CUDA_HOME" or name in spec.variables
        ]
        return shlex.join([*(["env", *variables] if variables else []), *self.argv(spec)])

    def launch_lines(self, spec: ServeSpec) -> tuple[str, ...]:
        """See `Explains.launch_lines`."""
        return tuple(self.launch_line(replace(spec, node_rank=rank)) for rank in range(spec.nodes))


def _here(spec: ServeSpec) -> Installation | None:
    """What is installed; None where that cannot be asked here, as when a line for another machine is made."""
    if shutil.which(interpreter(spec.python)) is None:
        return None
    try:
        return installation(spec.python, spec.variables)
    except Eagle3opsError:
        return None


def _gpu(spec: ServeSpec) -> Gpu | None:
    found = capability(spec)
    return None if found is None else Gpu(*found)


def _language(config: dict[str, Any] | None) -> dict[str, Any] | None:
    """The language model's part of a config."""
    inner = _nested(config, "text_config")
    return inner if isinstance(inner, dict) else config
