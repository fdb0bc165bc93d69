"""Which of SGLang's settings are chosen for it here, and why?

What SGLang would choose by itself is left to it wherever what that needs is installed: then nothing is passed, and the
plan says what to expect. Its own choice of attention kernels (0.5.14 `_get_default_attn_backend`, 0.5.23
`get_default_attn_backend`; the same rules) goes by the GPU's compute capability and by whether the model keeps keys and
values compressed (MLA), and does not ask whether the kernels are there.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from eagle3ops.engines.base import ServeSpec
from eagle3ops.engines.sglang.flags import given
from eagle3ops.engines.sglang.installation import Installation

CAPTURE_FRACTION = 0.7
"""Of the GPU memory, where states are captured: whole prompts at once need room for what is in flight, and SGLang's own
figure becomes negative without chunked prefill."""
_MOST_GRAPHS = 512
"""Largest batch for which a decode graph is captured; larger ones run without."""
_NAMES = {8: "Ampere or Ada", 9: "Hopper", 10: "Blackwell", 11: "Blackwell", 12: "Blackwell (SM12x)"}


@dataclass(frozen=True, slots=True)
class Choice:
    """One setting: what is passed for it, if anything, and why."""

    why: str
    words: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Gpu:
    """What of a GPU decides."""

    major: int
    minor: int

    def __str__(self) -> str:
        """`sm_90`."""
        return f"sm_{self.major}{self.minor}"


def latent(target: Mapping[str, Any] | None) -> bool:
    """Whether a model's attention keeps compressed keys and values (MLA), as of DeepSeek and Kimi."""
    return bool((target or {}).get("kv_lora_rank"))


def own_attention(gpu: Gpu, *, mla: bool, chain: bool, flashinfer: bool) -> str:
    """What SGLang takes by itself on an NVIDIA GPU.

    Args:
        gpu: its compute capability.
        mla: see `latent`.
        chain: no speculation, or one branch only (topk 1).
        flashinfer: whether it finds flashinfer.
    """
    if mla:
        return {9: "fa3", 10: "flashinfer"}.get(gpu.major, "triton")
    if chain and gpu.major in (9, 10):
        return "fa3" if gpu.major == 9 else "trtllm_mha"
    return "flashinfer" if flashinfer else "triton"


def choices(
    spec: ServeSpec, here: Installation | None, gpu: Gpu | None, target: Mapping[str, Any] | None
) -> list[Choice]:
    """Everything that is chosen for a server on GPUs.

    Args:
        spec: what is to be served; what its `arguments` set is not chosen again.
        here: what is installed; None where that is not known: then SGLang is left to choose.
        gpu: the GPU it will run on; None where that is not known.
        target: the model's config; None where it is not there yet.
    """
    found = [_attention(spec, here, gpu, target), *_sampling(spec, here), *_graphs(spec, here), *_memory(spec)]
    if spec.drafter is not None and not spec.return_hidden_states:
        found.append(
            Choice(
                f"{spec.max_running_requests} requests at once: EAGLE-3 alone would take 48, whatever there is room for"
            )
        )
    return [choice for choice in found if choice is not None]


def _attention(
    spec: ServeSpec, here: Installation | None, gpu: Gpu | None, target: Mapping[str, Any] | None
) -> Choice | None:
    flag = "--attention-backend"
    if given(spec.arguments, flag):
        return Choice("attention backend as engine.arguments says")
    if spec.attention_backend is not None:
        return Choice(
            f"attention backend {spec.attention_backend}: engine.attention_backend", (flag, spec.attention_backend)
        )
    if here is None or gpu is None:
        return None
    mla = latent(target)
    chain = spec.drafter is None or spec.return_hidden_states or spec.topk == 1
    usable = here.flashinfer is not None
    own = own_attention(gpu, mla=mla, chain=chain, flashinfer=usable)
    what = f"{_NAMES.get(gpu.major, 'a GPU')} ({gpu}), {'MLA' if mla else 'plain attention'}"
    what += "" if spec.drafter is None or spec.return_hidden_states else f", {'chain' if chain else 'tree'} drafts"
    lacks = []
    if own == "fa3" and not here.fa3:
        lacks.append("fa3 needs FlashAttention 3, which is not among the installed kernels")
    if own in ("flashinfer", "trtllm_mha") and not usable:
        lacks.append(f"{own} needs flashinfer, which {here.no_flashinfer}")
    if not lacks:
        if own != "triton":
            return Choice(f"attention backend {own}: SGLang's own for {what}")
        # Left alone it would find a stand-in and take it for flashinfer.
        because = "" if usable or mla else f"; flashinfer {here.no_flashinfer}"
        return Choice(f"attention backend triton: SGLang's own for {what}{because}", (flag, "triton"))
    other = "flashinfer" if usable and not mla else "triton"
    if other == "triton" and not usable and own == "fa3":
        lacks.append(f"flashinfer {here.no_flashinfer}")
    return Choice(f"attention backend {other} instead of {own}, for {what}: {'; '.join(lacks)}", (flag, other))


def _sampling(spec: ServeSpec, here: Installation | None) -> list[Choice]:
    flag = "--sampling-backend"
    if here is None or here.flashinfer is not None:
        return []
    # What finds a stand-in must not take it for the real one.
    off = {"SGLANG_IS_FLASHINFER_AVAILABLE": "false"}
    if given(spec.arguments, flag):
        return [Choice("sampling backend as engine.arguments says", variables=off)]
    greedy = "; with a drafter greedy answers only" if spec.drafter is not None else ""
    return [Choice(f"sampling backend pytorch: flashinfer {here.no_flashinfer}{greedy}", (flag, "pytorch"), off)]


def _graphs(spec: ServeSpec, here: Installation | None) -> list[Choice]:
    if any(word.startswith(("--cuda-graph", "--disable-cuda-graph")) for word in spec.arguments):
        return [Choice("CUDA graphs as engine.arguments says")]
    off = ("--cuda-graph-backend-prefill", "disabled")
    if spec.return_hidden_states:
        words = ("--cuda-graph-backend-decode", "disabled", *off)
        return [Choice("no CUDA graphs: states are captured once, and a start without them is shorter", words)]
    largest = str(min(_MOST_GRAPHS, spec.max_running_requests))
    found = [
        Choice(
            f"decode graphs up to a batch of {largest}, as many as are answered at once",
            ("--cuda-graph-max-bs-decode", largest),
        )
    ]
    if here is not None and here.flashinfer is None:
        found.append(Choice("no prefill graphs: they were not tried without flashinfer", off))
    return found


def _memory(spec: ServeSpec) -> list[Choice]:
    flag, found = "--mem-fraction-static", []
    if spec.memory_fraction is not None:
        words = (flag, f"{spec.memory_fraction:g}")
        found.append(Choice(f"{spec.memory_fraction:.0%} of the GPU memory: engine.memory_fraction", words))
    elif spec.return_hidden_states and not given(spec.arguments, flag):
        words = (flag, f"{CAPTURE_FRACTION:g}")
        found.append(Choice(f"{CAPTURE_FRACTION:.0%} of the GPU memory: whole prompts are captured at once", words))
    if spec.pool_tokens is not None and not given(spec.arguments, "--max-total-tokens"):
        words = ("--max-total-tokens", str(spec.pool_tokens))
        found.append(
            Choice(f"keys and values of at most {spec.pool_tokens} tokens: it may not be alone on its GPU", words)
        )
    return found
