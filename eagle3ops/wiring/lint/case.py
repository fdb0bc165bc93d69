"""What is being checked: one drafter, for one target, in one version of one engine?"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from packaging.version import Version

from eagle3ops.wiring.lint.checkpoint import Checkpoint
from eagle3ops.wiring.lint.finding import Finding, error, info, warn
from eagle3ops.wiring.lint.parameters import Sizes

IDS = "eagle_aux_hidden_state_layer_ids"
AUTHOR = "ask who trained it, or look into its trainer's config"
"""What to do where the checkpoint alone cannot say what is right."""
Family = Literal["llama", "qwen3", "latent"]
"""Attention like Llama's; the same with norms of each head; over a compressed cache (MLA), as of DeepSeek and Kimi."""
FAMILIES: Mapping[str, Mapping[str, Family]] = {
    "sglang": {"LlamaForCausalLMEagle3": "llama", "Eagle3DeepseekV2ForCausalLM": "latent"},
    "vllm": {
        "LlamaForCausalLMEagle3": "llama", "Eagle3LlamaForCausalLM": "llama", "LlamaForCausalLM": "llama",
        "Eagle3MiniMaxM2ForCausalLM": "llama", "Eagle3Qwen2_5vlForCausalLM": "llama",
        "Eagle3Qwen3vlForCausalLM": "llama", "Eagle3Qwen3ForCausalLM": "qwen3", "Qwen3ForCausalLM": "qwen3",
        "Eagle3DeepseekV2ForCausalLM": "latent", "Eagle3DeepseekV3ForCausalLM": "latent",
        "DeepseekV2ForCausalLM": "latent", "DeepseekV3ForCausalLM": "latent",
    },
    "reference": {"LlamaForCausalLMEagle3": "llama"},
}  # fmt: skip
"""Architectures whose parameters are known here. vLLM puts Eagle3 before the name of a target's class."""
OTHER = {
    "sglang": frozenset[str](),
    "vllm": frozenset({"PEagleDraftModel", "PeagleLlamaForCausalLM", "PeagleQwen3ForCausalLM"}),
    "reference": frozenset[str](),
}
"""Architectures that the engine has, and whose parameters are not checked one by one."""
SPECULATORS = frozenset({"Eagle3DraftModel", "Eagle3Speculator"})
SPECULATORS_OUTER = ("draft_vocab_size", "target_hidden_size", IDS, "fc_norm", "norm_output", "norm_before_fc")
"""What holds of their outer config, which has a `model_type` and more of its own; `norm_before_residual` as well."""


@dataclass(frozen=True, slots=True)
class Target:
    """What of the target matters: its config, where a wrapper holds the language model's in `text_config`."""

    folder: str
    architecture: str
    config: Mapping[str, Any]
    """Of the language model."""
    tensors: Checkpoint

    def size(self, name: str) -> int | None:
        """A whole number of the config; None where it does not say."""
        value = self.config.get(name)
        return value if type(value) is int and 0 < value < 2**31 else None

    @property
    def latent(self) -> bool:
        """Attention over a compressed cache (MLA), as of DeepSeek and Kimi."""
        return bool(self.config.get("kv_lora_rank"))


@dataclass(slots=True, kw_only=True)
class Case:
    """Everything that the checks look at, and what they have found."""

    engine: str
    version: Version | None
    version_text: str | None
    drafter: Checkpoint
    config: Mapping[str, Any]
    """As the engine reads it: of speculators' nested form the inside, on vLLM."""
    target: Target
    family: Family = "llama"
    sizes: Sizes | None = None
    flags: dict[str, Any] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    @property
    def eagle(self) -> Mapping[str, Any]:
        """`eagle_config`, empty where there is none."""
        value = self.config.get("eagle_config")
        return value if isinstance(value, Mapping) else {}

    @property
    def name(self) -> str:
        """The engine for people."""
        return f"{self.engine} {self.version_text}" if self.version_text else f"the {self.engine} engine"

    def error(self, code: str, where: str, what: str, cause: str, fix: str) -> None:
        """Note what must be mended."""
        self.findings.append(error(code, where, what, cause, fix))

    def warn(self, code: str, where: str, what: str, cause: str, fix: str) -> None:
        """Note what a person should look at."""
        self.findings.append(warn(code, where, what, cause, fix))

    def note(self, code: str, where: str, what: str, cause: str, fix: str) -> None:
        """Note what could not be looked at."""
        self.findings.append(info(code, where, what, cause, fix))

    def older_than(self, release: str) -> bool:
        """Whether the engine's version is below one."""
        return self.version is not None and self.version.release < Version(release).release


def whole(value: object) -> int | None:
    """A size; None for what is none."""
    return value if type(value) is int and 0 < value < 2**31 else None


def real(value: object) -> float | None:
    """A finite number; None for what is none."""
    sound = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if sound else None  # type: ignore[arg-type]
