"""What can be said of an engine before it is started? Its memory, and whether the layers asked for exist."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eagle3ops.eagle3.layers import resolve_layers
from eagle3ops.engines.base import Adapter, Explains, ServeSpec, on_gpu
from eagle3ops.engines.registry import adapter
from eagle3ops.errors import Eagle3opsError, RequestError
from eagle3ops.locations import expanded
from eagle3ops.runs.job import Forecast, PlanContext
from eagle3ops.spec.base import AuxLayersSpec
from eagle3ops.spec.models import EngineSpec
from eagle3ops.telemetry.gpus import inventory

PROCESS_BYTES = {"sglang": 3200 << 20, "vllm": 3600 << 20}
"""Processes of an engine before it holds a weight, measured on a CPU: SGLang's three are 1 GiB each; vLLM's three are
2.5 GiB together, and 1 GiB is for keys and values."""
_PROCESS_BYTES = 600 << 20
"""A Python process that has loaded torch, measured on a CPU."""

SHOWN_PORT = 30000
"""In launch lines, where the pipeline names none: a free one is taken when the server starts."""

_WIDTH = {"float32": 4, "bfloat16": 2, "float16": 2, "auto": 2}


def check_layers(ctx: PlanContext, layers: AuxLayersSpec | None, key: str) -> None:
    """Refuse layer ids that the target does not have, as soon as the target's size is known.

    Raises:
        RequestError: an id does not exist.
    """
    config = ctx.target_config()
    count = None if config is None else config.get("num_hidden_layers")
    if layers is not None and isinstance(count, int):
        resolve_layers(layers, count, key)


def engine_forecast(
    ctx: PlanContext, *, rows: int, length: int, engines: int = 1, dtype: str | None = None, **known: Any
) -> Forecast:
    """A forecast with the memory of one or several engines; without it as long as the target is not here.

    Args:
        ctx: of the stage that starts them.
        rows: requests at once.
        length: tokens of each, prompt and answer.
        engines: how many run side by side.
        dtype: other than the pipeline's.
        known: further fields of the forecast.
    """
    width = _width(ctx.pipeline.engine, dtype)
    config, stored = ctx.target_config(), _stored_weights(ctx)
    if config is None or stored is None:
        return Forecast(**known)
    try:
        heads = _size(config, "num_attention_heads")
        kv_heads = _size(config, "num_key_value_heads", heads)
        head_dim = _size(config, "head_dim", _size(config, "hidden_size") // heads)
        layers = _size(config, "num_hidden_layers")
    except (KeyError, ZeroDivisionError):
        return Forecast(**known)
    cache = 2 * layers * kv_heads * head_dim * width * rows * length
    engine = ctx.pipeline.engine
    # Checkpoints are stored in two bytes a weight.
    need = engines * (stored * width // 2 + cache)
    if on_gpu(engine.device):
        # Split over its GPUs; replicas have GPUs of their own.
        parts = max(1, engine.gpus) * (engine.nodes.count if engine.nodes else 1)
        need = need // parts + engines * _PROCESS_BYTES
        return Forecast(gpu_memory_bytes=need, **known)
    engines, need = engines * engine.replicas, need * engine.replicas
    need += engines * PROCESS_BYTES.get(ctx.pipeline.engine.name, _PROCESS_BYTES)
    return Forecast(memory_bytes=need, **known)


def _width(engine: EngineSpec, dtype: str | None) -> int:
    """Bytes of a number in weights and cache; of our own engine also where it has to keep bfloat16 as float32."""
    width = _WIDTH[dtype or engine.dtype]
    if engine.name != "reference" or on_gpu(engine.device) or (dtype or engine.dtype) not in ("bfloat16", "auto"):
        return width
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return width
    # What torch is asked in `eagle3.arithmetic`, without loading it.
    return width if "avx512_bf16" in flags or "amx_tile" in flags else _WIDTH["float32"]


def _size(config: Mapping[str, object], key: str, default: int | None = None) -> int:
    value = config.get(key)
    if isinstance(value, int):
        return value
    if default is None:
        raise KeyError(key)
    return default


def _stored_weights(ctx: PlanContext) -> int | None:
    """Bytes of the target's weights as `fetch` recorded them."""
    if "fetch" not in ctx.inputs:
        return None
    record = json.loads((ctx.inputs["fetch"] / "target.json").read_text(encoding="utf-8"))
    return sum(int(file["size"]) for file in record["files"] if str(file["name"]).endswith(".safetensors"))


def engine_refusal(
    ctx: PlanContext,
    *,
    speculation: bool,
    hidden_states: bool = False,
    temperature: float = 0.0,
    topk: int = 1,
) -> Eagle3opsError | None:
    """Why the pipeline's engine cannot do here what a stage asks of it; None where it can.

    Args:
        ctx: of the stage.
        speculation: whether it needs the drafter served.
        hidden_states: whether it needs what the engine feeds the drafter.
        temperature: the highest that it asks for.
        topk: the widest tree that it drafts.
    """
    asked = _asked(ctx, speculation, hidden_states, temperature=temperature, topk=topk)
    try:
        require_gpu(asked)
        adapter(ctx.pipeline.engine.name).require(asked)
    except Eagle3opsError as error:
        return error
    return None


def engine_version(engine: EngineSpec, target: Path) -> str | None:
    """Of an engine that is installed separately; None for our own.

    Raises:
        RequestError: it cannot serve here.
    """
    told = getattr(adapter(engine.name), "version", None)
    if told is None:
        return None
    asked = ServeSpec(
        model=target, port=0, device=engine.device, python=engine.python, gpus=engine.gpus,
        arguments=engine.arguments, variables=engine.environment,
    )  # fmt: skip
    return str(told(asked))


def require_gpu(spec: ServeSpec) -> None:
    """Return if the machine has the GPU that `engine.device` names.

    Raises:
        RequestError: it has none, with what the driver says.
    """
    # ROCm calls its GPUs cuda too, and the NVIDIA driver knows nothing of them.
    if not spec.device.startswith("cuda") or Path("/dev/kfd").exists():
        return
    found = inventory()
    if not found.gpus:
        why = f": {found.absent}" if found.absent else ""
        raise RequestError(
            f"engine.device is {spec.device}, and no GPU is found on this machine{why}",
            remedy="set engine.device to cpu or auto, or run on a host with one (--host); eagle3ops doctor tells more",
        )


def engine_notes(
    ctx: PlanContext, *, speculation: bool, hidden_states: bool = False, topk: int = 1, **known: Any
) -> tuple[str, ...]:
    """What the engine's adapter chooses for a stage on this machine, and why, for its plan.

    Args:
        ctx: of the stage.
        speculation: whether it needs the drafter served.
        hidden_states: whether it needs what the engine feeds the drafter.
        topk: branches of the drafts.
        known: further fields of the `ServeSpec`.
    """
    engine = ctx.pipeline.engine
    try:
        chosen = adapter(engine.name)
    except Eagle3opsError:
        # That there is none is the refusal's to tell.
        return ()
    notes = []
    if engine.replicas > 1:
        each = f", each with {engine.gpus} GPUs of its own" if on_gpu(engine.device) else ""
        notes.append(f"{engine.replicas} replicas{each}; requests are spread over them")
    if isinstance(chosen, Explains):
        asked = _asked(ctx, speculation, hidden_states, topk=topk, **known)
        explained = chosen.explain(asked)
        notes += explained
        # Of what is refused there is nothing to be copied.
        if explained and speculation and asked.nodes == 1 and _served(chosen, asked):
            notes.append(f"launch line: {chosen.launch_line(asked)}")
    return tuple(notes)


def _served(chosen: Adapter, asked: ServeSpec) -> bool:
    try:
        chosen.require(asked)
    except Eagle3opsError:
        return False
    return True


def _asked(ctx: PlanContext, speculation: bool, hidden_states: bool, **known: Any) -> ServeSpec:
    """What a stage would serve, as far as that is known before the stages it needs have run.

    What is not known yet stands in launch lines by a word that nobody takes for a path.
    """
    trained = ctx.inputs.get("train")
    drafter = Path("DRAFTER") if trained is None else trained / "drafter"
    return ServeSpec.of(
        ctx.pipeline.engine,
        model=_target_folder(ctx) or Path("TARGET"),
        port=getattr(ctx.pipeline.stages.get("serve"), "port", None) or SHOWN_PORT,
        drafter=drafter if speculation else None,
        return_hidden_states=hidden_states,
        trust_remote_code=ctx.pipeline.target.trust_remote_code,
        **known,
    )


def _target_folder(ctx: PlanContext) -> Path | None:
    if "fetch" in ctx.inputs:
        try:
            return Path(json.loads((ctx.inputs["fetch"] / "target.json").read_text(encoding="utf-8"))["path"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
    folder = expanded(ctx.pipeline.target.model)
    return folder if (folder / "config.json").is_file() else None
