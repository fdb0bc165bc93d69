"""Which Python, torch and engines would a run here use, and do their versions fit each other and the GPUs?"""

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from typing import Any

from eagle3ops import __version__
from eagle3ops.hosts.doctor import torch_probe
from eagle3ops.hosts.doctor.checks_tools import libraries
from eagle3ops.hosts.doctor.finding import Finding, absent, bad, ok, warn
from eagle3ops.hosts.doctor.probing import first_line, run, version_key
from eagle3ops.telemetry.gpus import Inventory, inventory
from eagle3ops.words import human_seconds

TORCH_LIMIT_S = 90.0
TRAIN = "for jobs on this host: eagle3ops hosts install NAME --extra train (here: pip install 'eagle3ops[train]')"
PAIRED = (
    "torch",
    "sglang-kernel",
    "flashinfer-python",
    "flashinfer-cubin",
    "apache-tvm-ffi",
    "xgrammar",
    "transformers",
)
"""What engines pin to one version and break with another."""

Versions = Callable[[str], str | None]


def installed(name: str) -> str | None:
    """The version of a distribution in this interpreter."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def python() -> list[Finding]:
    """The interpreter and eagle3ops itself."""
    version = ".".join(str(part) for part in sys.version_info[:3])
    kind = "" if sys.prefix == sys.base_prefix else ", in a virtual environment"
    found = [ok("python.version", f"{version}, {sys.executable}{kind}")]
    packaged = installed("eagle3ops")
    if packaged is not None and packaged != __version__:
        remedy = "an older installation lies beside the source: pip install -e . again, or eagle3ops hosts install NAME"
        found.append(warn("python.eagle3ops", f"{__version__}, but its metadata says {packaged}", remedy))
    else:
        found.append(ok("python.eagle3ops", __version__))
    return found


def fits(archs: Sequence[str], capability: tuple[int, int]) -> bool | None:
    """Can code built for `archs` (`sm_90`, `sm_90a`, `compute_120`) run on a GPU? None when nothing is known.

    Machine code runs on GPUs of the same major version and an equal or higher minor one, with the suffix `a` only on
    exactly that version; PTX (`compute_`) is compiled for every newer GPU when it is loaded.
    """
    parsed = [match for arch in archs if (match := re.fullmatch(r"(sm|compute)_(\d{1,3})(\d)([af]?)", arch, re.ASCII))]
    if not parsed:
        return None
    for match in parsed:
        built = (int(match[2]), int(match[3]))
        exact = match[4] == "a"
        if capability == built or (not exact and capability[0] == built[0] and capability >= built):
            return True
        if match[1] == "compute" and not match[4] and capability >= built:
            return True
    return False


def probe_torch() -> dict[str, Any]:
    """What torch says, from a process of its own.

    Raises:
        NoAnswer: it hung.
    """
    ran = run([sys.executable, "-P", torch_probe.__file__, "torch"], limit=TORCH_LIMIT_S)
    for line in reversed(ran.output.splitlines()):
        if line.startswith(torch_probe.MARK):
            found = json.loads(line.removeprefix(torch_probe.MARK))
            return found if isinstance(found, dict) else {}
    return {"error": f"it ended with exit code {ran.code}: {first_line(ran.output[-400:]) or 'no output'}"}


def torch(
    version: Versions = installed,
    probe: Callable[[], Mapping[str, Any]] = probe_torch,
    read: Callable[[], Inventory] = inventory,
) -> list[Finding]:
    """Torch: version, CUDA build, the GPUs it sees and whether it has code for them; NCCL."""
    have = version("torch")
    if have is None:
        return [absent("python.torch", "not installed", TRAIN)]
    seen = probe()
    if "error" in seen:
        remedy = "import it by hand: python -c 'import torch'; reinstall it when that fails too"
        return [bad("python.torch", f"{have} does not work: {seen['error']}", remedy)]
    build = f"CUDA {seen['cuda']}" if seen.get("cuda") else f"ROCm {seen['hip']}" if seen.get("hip") else "CPU only"
    took = seen.get("import_seconds")
    value = f"{have}, {build}" + (f", imported in {human_seconds(took)}" if isinstance(took, int | float) else "")
    gpus = read()
    found = [_torch_gpus(value, seen, gpus)]
    nccl = seen.get("nccl")
    if nccl:
        found.append(ok("python.nccl", f"{nccl}, torch's own"))
    return found


def _torch_gpus(value: str, seen: Mapping[str, Any], gpus: Inventory) -> Finding:
    if gpus.absent is not None:
        return ok("python.torch", value)
    if not seen.get("cuda") and not seen.get("hip"):
        remedy = "this build cannot use the GPUs: install torch's CUDA build (https://pytorch.org/get-started)"
        return bad("python.torch", value, remedy)
    if not seen.get("available"):
        needs = f"CUDA {seen.get('cuda')}"
        remedy = f"the driver serves CUDA up to {gpus.cuda or 'unknown'}, this torch needs {needs}; "
        remedy += "or CUDA_VISIBLE_DEVICES hides them"
        return bad("python.torch", f"{value}; sees no GPU, the driver has {len(gpus.gpus)}", remedy)
    for major, minor in seen.get("devices", ()):
        if fits(seen.get("archs", ()), (major, minor)) is False:
            remedy = (
                f"install a torch built for compute capability {major}.{minor} (a newer one, or another CUDA build)"
            )
            return bad("python.torch", f"{value}; no code for compute capability {major}.{minor}", remedy)
    count = len(seen.get("devices", ()))
    return ok("python.torch", f"{value}, sees {count} GPU{'s' if count != 1 else ''}")


def parse_pin(requirement: str) -> tuple[str, str] | None:
    """The normalised name and version of `name[extra]==1.2.3`; None for anything else and for what has a marker."""
    match = re.fullmatch(
        r"\s*([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*(?:\[[^\]]*\])?\s*\(?\s*==\s*([A-Za-z0-9.!+_-]+)\s*\)?\s*",
        requirement,
        re.ASCII,
    )
    return (normal(match[1]), match[2]) if match else None


def normal(name: str) -> str:
    """A distribution's name as the index spells it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def same_version(pinned: str, have: str) -> bool:
    """Does `have` satisfy `==pinned`? A build tag (`+cu130`) counts only where the pin has one."""
    if "+" not in pinned:
        have = have.partition("+")[0]
    if pinned == have:
        return True
    plain = re.compile(r"\d+(\.\d+)*", re.ASCII)
    if not (plain.fullmatch(pinned) and plain.fullmatch(have)):
        return False
    return _trimmed(pinned) == _trimmed(have)


def _trimmed(version: str) -> tuple[int, ...]:
    parts = [int(part) for part in version.split(".")]
    while parts and parts[-1] == 0:
        parts.pop()
    return tuple(parts)


def mismatches(requirements: Sequence[str], version: Versions = installed) -> list[str]:
    """Pins of `PAIRED` packages that the interpreter does not meet, in words."""
    found = []
    for requirement in requirements:
        pin = parse_pin(requirement)
        if pin is None or pin[0] not in PAIRED:
            continue
        have = version(pin[0])
        if have is None:
            found.append(f"{pin[0]} {pin[1]} is missing")
        elif not same_version(pin[1], have):
            found.append(f"{pin[0]} is {have}, wants {pin[1]}")
    return found


def _requirements(name: str) -> list[str]:
    return metadata.requires(name) or []


def engines(version: Versions = installed, requires: Callable[[str], Sequence[str]] = _requirements) -> list[Finding]:
    """SGLang, vLLM, their kernels, flashinfer, transformers; with pairs that do not fit."""
    found = [_engine(name, label, version, requires) for name, label in (("sglang", "SGLang"), ("vllm", "vLLM"))]
    found.append(_kernel(version))
    found.append(_flashinfer(version))
    have = version("transformers")
    if have is None:
        found.append(absent("python.transformers", "not installed", TRAIN))
    elif version_key(have) < (5,) and version("sglang") is None and version("vllm") is None:
        found.append(
            warn("python.transformers", have, "the jobs want transformers 5 or newer: pip install -U transformers")
        )
    else:
        found.append(ok("python.transformers", have))
    found += _nccl(version)
    return found


def _engine(name: str, label: str, version: Versions, requires: Callable[[str], Sequence[str]]) -> Finding:
    have = version(name)
    if have is None:
        remedy = (
            f"only needed to serve with {label}: install it into this interpreter's environment: pip install {name}"
        )
        return absent(f"engine.{name}", f"not installed in {sys.prefix}", remedy)
    wrong = mismatches(requires(name), version)
    if not wrong:
        return ok(f"engine.{name}", have)
    remedy = f"install what it was built with: pip install {name}=={have.partition('+')[0]}"
    if any(text.startswith(("sglang-kernel", "torch ")) for text in wrong):
        return bad(f"engine.{name}", f"{have}; {'; '.join(wrong)}", f"it will not start: {remedy}")
    return warn(f"engine.{name}", f"{have}; {'; '.join(wrong)}", remedy)


def _kernel(version: Versions) -> Finding:
    new, old = version("sglang-kernel"), version("sgl-kernel")
    if new is None and old is None:
        return absent("engine.sglang_kernel", "not installed", "comes with SGLang on a GPU; nothing else needs it")
    if new is not None and old is not None:
        remedy = "both install the module sgl_kernel and overwrite each other: pip uninstall sgl-kernel sglang-kernel, "
        remedy += "then install SGLang again"
        return bad("engine.sglang_kernel", f"sglang-kernel {new} and sgl-kernel {old}", remedy)
    value = f"sglang-kernel {new}" if new is not None else f"sgl-kernel {old}"
    missing = [name for name in ("libnuma.so.1",) if name not in libraries()]
    if missing:
        return ok("engine.sglang_kernel", f"{value} (some builds want {missing[0]}, which is not here)")
    return ok("engine.sglang_kernel", value)


def _flashinfer(version: Versions) -> Finding:
    parts = {
        name: have
        for name in ("flashinfer-python", "flashinfer-cubin", "flashinfer-jit-cache")
        if (have := version(name))
    }
    if not parts:
        return absent(
            "engine.flashinfer", "not installed", "comes with SGLang and vLLM on a GPU; nothing else needs it"
        )
    value = ", ".join(f"{name} {have}" for name, have in parts.items())
    if len({have.partition("+")[0] for have in parts.values()}) > 1:
        remedy = "flashinfer refuses to import with mixed versions: pip install the same version of each"
        return bad("engine.flashinfer", value, remedy)
    return ok("engine.flashinfer", value)


def _nccl(version: Versions) -> list[Finding]:
    packaged = [f"{name} {have}" for name in ("nvidia-nccl-cu12", "nvidia-nccl-cu13") if (have := version(name))]
    if len(packaged) > 1:
        remedy = "both install libnccl.so.2 in one place: pip uninstall the one that torch was not built with"
        return [warn("engine.nccl", ", ".join(packaged), remedy)]
    if packaged:
        return [ok("engine.nccl", packaged[0])]
    linked = libraries().get("libnccl.so.2", [])
    if linked:
        return [ok("engine.nccl", linked[0])]
    return [absent("engine.nccl", "not installed", "comes with torch's CUDA build; only several GPUs need it")]
