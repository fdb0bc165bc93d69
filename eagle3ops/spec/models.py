"""What does a pipeline file describe? A target, an engine, a host, a seed and the stages."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, SerializeAsAny, create_model, field_validator, model_validator

from eagle3ops.spec.base import Section, StageSpec

Phase = Literal[
    "starting",
    "importing",
    "connecting",
    "loading",
    "allocating",
    "compiling",
    "capturing",
    "warming_up",
    "serving",
    "training",
    "checkpointing",
    "extracting",
    "generating",
    "working",
    "stopping",
]
"""What work can be doing, by its own words; each phase has a deadline."""

LONGEST_S = 30 * 86400.0
"""No deadline is further away."""


class TargetSpec(Section):
    """The model that is to answer faster."""

    model: str = Field(min_length=1)
    """A folder, a model id of the hub, or the name of a target that comes with eagle3ops."""
    revision: str | None = None
    """Of a model of the hub: a branch, a tag or a commit; the newest of its main branch when left out."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model. It may do anything that you may."""


class NodesSpec(Section):
    """One engine over several machines; a run starts its own machine's part, and shows the lines for the others."""

    count: int = Field(ge=2, le=1024)
    """Machines, each with `engine.gpus` GPUs."""
    rank: int = Field(default=0, ge=0)
    """Which of them this one is; the one with 0 answers requests."""
    coordinator: str = Field(pattern=r"^(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]/]+):[0-9]{1,5}$")
    """`HOST:PORT` of the machine with rank 0, as all of them reach it."""

    @model_validator(mode="after")
    def _counted_from_zero(self) -> "NodesSpec":
        if self.rank >= self.count:
            raise ValueError(f"rank {self.rank} of {self.count} nodes: ranks count from 0")
        if not 0 < int(self.coordinator.rpartition(":")[2]) < 65536:
            raise ValueError("the coordinator's port is from 1 to 65535")
        return self


class EngineSpec(Section):
    """The program that serves target and drafter."""

    name: Literal["reference", "sglang", "vllm"] = "reference"
    """`reference` comes with eagle3ops."""
    dtype: Literal["auto", "bfloat16", "float32", "float16"] = "bfloat16"
    """In which the target's weights are kept and computed with."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`cpu`, `cuda`, or `auto`: a GPU where there is one. Which GPUs is decided by leases and CUDA_VISIBLE_DEVICES."""
    max_running_requests: int = Field(default=32, ge=1)
    """Requests that are answered at once; more wait."""
    gpus: int = Field(default=1, ge=0)
    """GPUs that a stage uses on a machine that has any; no part of what its result depends on."""
    replicas: int = Field(default=1, ge=1, le=64)
    """Servers that generate and serve spread their requests over, each with `gpus` GPUs of its own; no part of what a
    result depends on."""
    nodes: NodesSpec | None = None
    """Machines that one server is spread over; none: it is all on this one."""
    attention_backend: str | None = Field(default=None, pattern=r"^[a-z][a-z0-9_]*$")
    """Kernels of the attention, by the engine's own name: `triton`, `flashinfer`, `fa3`. Left out, what suits the
    model, the GPU and what is installed; `eagle3ops plan` says which and why."""
    memory_fraction: float | None = Field(default=None, gt=0, lt=1)
    """Part of the GPU memory that weights and the cache of keys and values may fill; the engine's own when left out."""
    python: str | None = None
    """The Python of the environment that SGLang or vLLM is in, an absolute path; eagle3ops' own when left out."""
    arguments: tuple[str, ...] = ()
    """Further words of the engine's command line, as they stand: `[--attention-backend, triton]`. They come last, so
    they override."""
    environment: Mapping[str, str] = Field(default_factory=dict)
    """Further variables of the engine's processes. They are kept with the run: nothing secret belongs here."""

    @field_validator("python")
    @classmethod
    def _absolute(cls, value: str | None) -> str | None:
        # It is a path of the host that runs the stages, which need not be this one, and whose home is another.
        if value is not None and not value.startswith(("/", "~/")):
            raise ValueError("an absolute path, or one that begins with ~/")
        return value

    @field_validator("environment")
    @classmethod
    def _settable(cls, value: Mapping[str, str]) -> Mapping[str, str]:
        for name, text in value.items():
            if not name or "=" in name or "\0" in name + text:
                raise ValueError(f"{name!r} cannot be set to {text!r}: a name without =, and no NUL in either")
        return value

    @model_validator(mode="after")
    def _of_another(self) -> "EngineSpec":
        if self.python is not None and self.name == "reference":
            raise ValueError("engine.python is for engines that are installed separately; the reference engine is not")
        if self.name == "reference":
            for name in ("attention_backend", "memory_fraction", "nodes"):
                if getattr(self, name) is not None:
                    raise ValueError(f"engine.{name} is a setting of SGLang; the reference engine has no such thing")
        if self.nodes is not None and self.replicas > 1:
            raise ValueError("engine.replicas and engine.nodes exclude each other: replicas are of one machine")
        return self


class WatchdogSpec(Section):
    """Who looks whether the stages still work, and what is done when one hangs; no part of what a result depends on."""

    on: bool = True
    """Watch every stage. Off, a stage that hangs hangs until somebody looks."""
    action: Literal["notify", "restart"] = "notify"
    """`notify` writes down what hangs and why, and ends nothing; `restart` also ends the stage and runs it again."""
    restarts: int = Field(default=1, ge=0, le=10)
    """How often the same fault of a stage is met with a restart before the run is given up; progress begins anew."""
    bisect: bool = False
    """After the restarts, try again with settings that avoid a known cause, one at a time, before giving up."""
    deadlines: Mapping[Phase, Annotated[float, Field(ge=0, le=LONGEST_S)]] = Field(default_factory=dict)
    """Phase -> seconds after which it is overdue, where the usual ones do not fit: `{loading: 7200}`; 0: never."""
    probe: bool = True
    """Ask a server now and then for one token, which alone tells a silent one from a dead one."""


class Pipeline(Section):
    """A pipeline file, checked and complete: every stage is present, in order, with all its settings."""

    model_config = ConfigDict(populate_by_name=True)

    schema_version: Literal[1] = Field(alias="schema")
    name: str = Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Ends the id of every run of it."""
    target: TargetSpec
    engine: EngineSpec = EngineSpec()
    host: str = Field(default="local", min_length=1)
    """Where the command line runs it, unless it is told --host; the console runs it on the host that it looks at."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Of everything that is drawn by chance: the same one gives the same prompts, order and first weights."""
    stages: Mapping[str, SerializeAsAny[StageSpec]]
    watchdog: WatchdogSpec = WatchdogSpec()


def pipeline_model(specs: Mapping[str, type[StageSpec]]) -> type[Pipeline]:
    """Build the model of a file whose stages are `specs`: what validates it, and what its JSON Schema is made of."""
    fields: dict[str, Any] = {name: (spec, Field(default_factory=spec)) for name, spec in specs.items()}
    stages = create_model("Stages", __base__=Section, **fields)
    return create_model("PipelineFile", __base__=Pipeline, stages=(stages, Field(default_factory=stages)))
