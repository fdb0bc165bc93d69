"""What can this host do now, and what is missing for the rest?"""

from collections.abc import Mapping, Sequence

from eagle3ops.hosts.doctor.finding import Finding, absent, by_name, ok

Needs = Sequence[tuple[str, str]]
"""Names of findings, and what to call each when it is missing."""

REFERENCE: Needs = (
    ("python.torch", "torch"),
    ("python.transformers", "transformers"),
    ("disk.root", "a writable root"),
)
CAPABILITIES: Mapping[str, tuple[str, Needs]] = {
    "can.reference_cpu": ("run all stages on the CPU with the reference engine", REFERENCE),
    "can.reference_gpu": (
        "run all stages on GPUs with the reference engine",
        (("gpu.driver", "a GPU with its driver"), *REFERENCE),
    ),
    "can.sglang": (
        "serve with SGLang",
        (
            ("gpu.driver", "a GPU with its driver"),
            ("python.torch", "torch"),
            ("engine.sglang", "sglang"),
            ("engine.sglang_kernel", "sglang-kernel"),
            ("cuda.nvcc", "nvcc (kernels are built at first use)"),
            ("tool.g++", "g++"),
            ("tool.ninja", "ninja"),
        ),
    ),
    "can.vllm": (
        "serve with vLLM",
        (
            ("gpu.driver", "a GPU with its driver"),
            ("python.torch", "torch"),
            ("engine.vllm", "vllm"),
            ("tool.gcc", "gcc"),
        ),
    ),
    "can.kernels": (
        "build kernels",
        (
            ("cuda.nvcc", "nvcc"),
            ("cuda.home", "CUDA_HOME or nvcc in its toolkit"),
            ("tool.g++", "g++"),
            ("tool.ninja", "ninja"),
            ("tool.cmake", "cmake"),
        ),
    ),
}


def summarise(findings: Sequence[Finding]) -> list[Finding]:
    """One finding for each capability: ok, or absent with what is missing."""
    known = by_name(findings)
    found = []
    for name, (words, needs) in CAPABILITIES.items():
        missing = [label for need, label in needs if not _there(known.get(need), need)]
        if missing:
            named = ", ".join(missing)
            found.append(absent(name, f"not yet: {words}; missing: {named}", f"see above what to do about: {named}"))
        else:
            found.append(ok(name, words))
    return found


def _there(finding: Finding | None, name: str) -> bool:
    if finding is None:
        return False
    # A wrapper of nvcc outside its toolkit compiles and then does not link.
    return finding.status == "ok" or (finding.status == "warn" and name != "cuda.home")
