"""What is an engine to the jobs? Facts and pure functions around a server process.

An adapter says how its server is started and how its log reads; the process itself belongs to whoever spawned it, and
answers are asked for through `EngineClient`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from eagle3ops.eagle3.layers import AuxLayers
from eagle3ops.spec.models import EngineSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSpec:
    """What is to be served, and how."""

    model: Path
    port: int
    dtype: str = "bfloat16"
    device: str = "auto"
    drafter: Path | None = None
    """An exported drafter; None serves the plain baseline."""
    steps: int = 3
    topk: int = 1
    draft_tokens: int = 4
    aux_layers: AuxLayers | None = None
    """Overrides the boundaries that the drafter's config names: the way to serve a wrong wiring on purpose."""
    max_running_requests: int = 32
    context_length: int | None = None
    return_hidden_states: bool = False
    host: str = "127.0.0.1"
    seed: int = 0
    python: str | None = None
    """The Python in whose environment the engine is installed; None is our own. The reference engine has no other."""
    gpus: int = 1
    """GPUs over which the target is split, where there are any and the engine can."""
    trust_remote_code: bool = False
    arguments: tuple[str, ...] = ()
    """Further words of the command line; they come last."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Further environment variables."""
    attention_backend: str | None = None
    """By the engine's own name; None: what suits the model, the GPU and what is installed."""
    memory_fraction: float | None = None
    """Part of the GPU memory for weights and the cache of keys and values; None: the engine's own."""
    pool_tokens: int | None = None
    """Tokens whose keys and values are kept at most; None: as many as there is memory for. Needed where several servers
    share a GPU: the first would take all of it."""
    temperature: float = 0.0
    """The highest that will be asked for; 0: greedy only."""
    nodes: int = 1
    """Machines over which the server is spread, each with `gpus`."""
    node_rank: int = 0
    """Which of them this is."""
    coordinator: str | None = None
    """`HOST:PORT` at which the nodes find each other."""

    @classmethod
    def of(cls, engine: EngineSpec, *, model: Path, port: int, **known: Any) -> "ServeSpec":
        """What a pipeline's `engine` section says of a server; `known` are further fields, which win."""
        settings: dict[str, Any] = {
            "dtype": engine.dtype,
            "device": engine.device,
            "max_running_requests": engine.max_running_requests,
            "python": engine.python,
            "gpus": engine.gpus,
            "arguments": engine.arguments,
            "variables": engine.environment,
            "attention_backend": engine.attention_backend,
            "memory_fraction": engine.memory_fraction,
        }
        if engine.nodes is not None:
            nodes = engine.nodes
            settings |= {"nodes": nodes.count, "node_rank": nodes.rank, "coordinator": nodes.coordinator}
        return cls(model=model, port=port, **settings | known)

    @property
    def url(self) -> str:
        """Where the server answers."""
        return f"http://{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class LogFact:
    """What one line of a server's log says.

    Attributes:
        kind: `ready`, `phase`, `prefill`, `decode`, `error`, or `memory`: what a start tells of graphs and room.
        data: numbers or words by name.
        at: seconds, of a clock that the lines of one log share; None where the line has no time.
    """

    kind: str
    data: dict[str, float | str] = field(default_factory=dict)
    at: float | None = field(default=None, compare=False)


def on_gpu(device: str) -> bool:
    """Whether `engine.device` means a GPU on this machine."""
    # A container may have been given the fourth of them alone.
    return device.startswith("cuda") or (device == "auto" and any(Path("/dev").glob("nvidia[0-9]*")))


def speculation_flags(spec: ServeSpec) -> list[str]:
    """EAGLE-3 on the command line, in SGLang's words, which the reference engine shares; none without a drafter."""
    if spec.drafter is None:
        return []
    return [
        "--speculative-algorithm", "EAGLE3",
        "--speculative-draft-model-path", str(spec.drafter),
        "--speculative-num-steps", str(spec.steps),
        "--speculative-eagle-topk", str(spec.topk),
        "--speculative-num-draft-tokens", str(spec.draft_tokens),
    ]  # fmt: skip


class Adapter(Protocol):
    """One engine."""

    @property
    def name(self) -> str:
        """The name a pipeline file calls it by."""
        ...

    def require(self, spec: ServeSpec) -> None:
        """Return if the engine can serve `spec` here; of `spec` only what needs no other stage is looked at.

        Raises:
            RequestError: it cannot, why, and what to do.
        """
        ...

    def argv(self, spec: ServeSpec) -> list[str]:
        """The command that serves `spec`, to be run without a shell."""
        ...

    def environment(self, spec: ServeSpec) -> dict[str, str]:
        """Variables to be set for it besides those of the process that starts it.

        Raises:
            RequestError: the drafter's config is none that this engine can be asked with.
        """
        ...

    def parse_log(self, line: str) -> LogFact | None:
        """What a line of the server's log says; None for lines that say nothing known."""
        ...

    def launch_line(self, spec: ServeSpec) -> str:
        """The same command for a person to copy, quoted for a shell."""
        ...


@runtime_checkable
class Explains(Protocol):
    """An adapter that chooses something itself."""

    def explain(self, spec: ServeSpec) -> tuple[str, ...]:
        """What it chooses for `spec` here, and why, a sentence each; nothing where it is not installed."""
        ...

    def launch_lines(self, spec: ServeSpec) -> tuple[str, ...]:
        """`launch_line` for every node, by rank."""
        ...


@runtime_checkable
class Versioned(Protocol):
    """An adapter of an engine of which several versions may be installed."""

    def version(self, spec: ServeSpec) -> str:
        """Of what would be started; raises RequestError if it cannot serve this."""
        ...
