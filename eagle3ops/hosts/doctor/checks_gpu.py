"""Which GPUs are there, does their driver work, and does the CUDA toolkit fit it?"""

import contextlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from eagle3ops.errors import Eagle3opsError
from eagle3ops.hosts.doctor.checks_tools import libraries
from eagle3ops.hosts.doctor.finding import Finding, absent, bad, ok, warn
from eagle3ops.hosts.doctor.probing import NoAnswer, find_program, first_line, read_text, run, version_key
from eagle3ops.runs.files import read_json
from eagle3ops.runs.leases import leases_folder
from eagle3ops.runs.processes import is_alive
from eagle3ops.telemetry.gpus import GpuFacts, Inventory, inventory
from eagle3ops.telemetry.nvml import Absent, GpuLost, Nvml, SessionGone
from eagle3ops.words import human_bytes

OLDEST_DRIVER = 525
"""The first branch for CUDA 12; torch's present builds need it or a newer one."""


@dataclass(frozen=True, slots=True)
class Modes:
    """What the driver says about one GPU beyond the inventory; None where it does not say."""

    capability: tuple[int, int] | None = None
    persistence: bool | None = None
    ecc: bool | None = None
    uncorrected: int | None = None
    """Memory errors that ECC could not correct since the driver was loaded."""


Driver = tuple[Inventory, dict[int, Modes]]


def read_driver() -> Driver:
    """Ask the driver for its GPUs and their modes."""
    found = inventory()
    modes: dict[int, Modes] = {}
    session = Nvml()
    if found.absent is not None or session.open() is not None:
        return found, modes
    try:
        for gpu in found.gpus:
            with contextlib.suppress(GpuLost):
                modes[gpu.index] = _modes(session, gpu.index)
    except SessionGone as error:
        session.forget(error)
    finally:
        session.close()
    return found, modes


def _modes(session: Nvml, index: int) -> Modes:
    handle = session.ask("nvmlDeviceGetHandleByIndex", index)
    if handle is None:
        return Modes()
    capability = session.ask("nvmlDeviceGetCudaComputeCapability", handle)
    persistence = session.ask("nvmlDeviceGetPersistenceMode", handle)
    ecc = session.ask("nvmlDeviceGetEccMode", handle)
    # 1: uncorrected, 0: counted since the driver was loaded.
    errors = session.ask("nvmlDeviceGetTotalEccErrors", handle, 1, 0)
    return Modes(
        None if capability is None else (int(capability[0]), int(capability[1])),
        None if persistence is None else bool(persistence),
        None if ecc is None else bool(ecc[0]),
        None if errors is None else int(errors),
    )


def gpus(read: Callable[[], Driver] = read_driver) -> list[Finding]:
    """Driver, boards, their modes, and who is on them."""
    found, modes = read()
    if found.absent is not None:
        return [_no_driver(found)]
    findings = [_driver(found), ok("gpu.count", _models(found.gpus))]
    findings += [_board(gpu, modes.get(gpu.index, Modes())) for gpu in found.gpus]
    words = [
        f"GPU {gpu.index}: {process}"
        + ("" if process.memory_bytes is None else f", {human_bytes(process.memory_bytes)}")
        for gpu in found.gpus
        for process in gpu.processes
    ]
    if words:
        remedy = "a run that needs these GPUs is refused while others use them"
        return [*findings, warn("gpu.processes", "; ".join(words), remedy)]
    return [*findings, ok("gpu.processes", "none")]


def _no_driver(found: Inventory) -> Finding:
    value = f"{found.absent}{f' ({found.detail})' if found.detail else ''}"
    remedy = found.remedy or "install the NVIDIA driver"
    if found.absent == Absent.MISMATCH or _board_on_bus():
        return bad("gpu.driver", value if found.absent == Absent.MISMATCH else f"a GPU is on the bus: {value}", remedy)
    return absent("gpu.driver", value, remedy)


def _board_on_bus() -> bool:
    """Is an NVIDIA display controller on the PCI bus?"""
    for device in Path("/sys/bus/pci/devices").glob("*"):
        vendor, kind = read_text(device / "vendor").strip(), read_text(device / "class").strip()
        if vendor == "0x10de" and kind.startswith("0x03"):
            return True
    return False


def _driver(found: Inventory) -> Finding:
    value = f"{found.driver or 'version unknown'}{f', runs CUDA up to {found.cuda}' if found.cuda else ''}"
    if found.driver and version_key(found.driver)[:1] < (OLDEST_DRIVER,):
        return bad("gpu.driver", value, f"too old for today's torch: install driver {OLDEST_DRIVER} or newer")
    return ok("gpu.driver", value)


def _models(gpus: tuple[GpuFacts, ...]) -> str:
    kinds: dict[str, int] = {}
    for gpu in gpus:
        kind = gpu.name or "unknown model"
        kind += f", {human_bytes(gpu.memory_total)}" if gpu.memory_total else ""
        kinds[kind] = kinds.get(kind, 0) + 1
    return "; ".join(f"{count} x {kind}" for kind, count in kinds.items())


def _board(gpu: GpuFacts, modes: Modes) -> Finding:
    name = f"gpu.{gpu.index}"
    if gpu.state != "ok":
        remedy = "the driver cannot talk to it: see the kernel log for Xid, then reset it or reboot"
        return bad(name, gpu.state, remedy)
    parts = [gpu.name or "unknown model"]
    if gpu.memory_total:
        parts.append(human_bytes(gpu.memory_total))
    if modes.capability is not None:
        parts.append(f"compute capability {modes.capability[0]}.{modes.capability[1]}")
    for label, mode in (("persistence", modes.persistence), ("ECC", modes.ecc), ("MIG", gpu.mig)):
        if mode is not None:
            parts.append(f"{label} {'on' if mode else 'off'}")
    value = ", ".join(parts)
    if modes.uncorrected:
        remedy = "its memory is failing: drain the GPU, look for Xid 48, 63, 64, 94, 95 in the kernel log, replace it"
        return bad(name, f"{value}, {modes.uncorrected} uncorrected memory errors", remedy)
    if gpu.mig:
        remedy = "engines see slices, not the GPU: `nvidia-smi -i N -mig 0` as root makes it whole, if nobody uses it"
        return warn(name, value, remedy)
    if modes.persistence is False:
        remedy = "the driver unloads when idle and each start takes seconds more: `nvidia-smi -pm 1` as root"
        return warn(name, value, remedy)
    return ok(name, value)


def leases() -> list[Finding]:
    """Which runs hold GPUs; what the dead have left is taken over by the next run and is no finding."""
    try:
        folder = leases_folder()
    except Eagle3opsError as error:
        return [bad("gpu.leases", error.what, error.remedy or "no run on a GPU can start before that is mended")]
    held = []
    for file in sorted(folder.glob("*.json")):
        holder = read_json(file)
        if holder is not None and is_alive(holder):
            held.append(f"GPU {holder.get('gpu', '?')}: run {holder.get('run_id')} (pid {holder.get('pid')})")
    return [ok("gpu.leases", "; ".join(held) or "none held")]


def parse_nvcc(text: str) -> tuple[int, int] | None:
    """The release in what `nvcc --version` says: "release 13.0, V13.0.88"."""
    match = re.search(r"release (\d{1,4})\.(\d{1,4})", text, re.ASCII)
    return (int(match[1]), int(match[2])) if match else None


def toolkit_of(nvcc: str) -> Path | None:
    """The toolkit folder that an nvcc belongs to; None for a wrapper script that stands elsewhere."""
    folder = Path(os.path.realpath(nvcc)).parent.parent
    return folder if (folder / "include" / "cuda_runtime.h").exists() or (folder / "nvvm").exists() else None


def cuda(read: Callable[[], Inventory] = inventory) -> list[Finding]:
    """nvcc, CUDA_HOME and libcudart."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    nvcc = find_program("nvcc")
    if nvcc is None and home and Path(home, "bin", "nvcc").exists():
        nvcc = str(Path(home, "bin", "nvcc"))
    found = [_nvcc(nvcc, home, read), _home(nvcc, home)]
    toolkit = Path(home) if home else toolkit_of(nvcc) if nvcc else None
    found.append(_runtime(toolkit))
    return found


def _nvcc(nvcc: str | None, home: str | None, read: Callable[[], Inventory]) -> Finding:
    if nvcc is None:
        remedy = (
            "needed only to build kernels (SGLang and flashinfer build some at first use): install the CUDA toolkit"
        )
        return absent("cuda.nvcc", "not on PATH", remedy)
    broken = "run `nvcc --version` by hand; reinstall the toolkit, or take its folder off PATH"
    try:
        ran = run([nvcc, "--version"])
    except (OSError, NoAnswer) as error:
        return bad("cuda.nvcc", f"{nvcc}: {error}", broken)
    release = parse_nvcc(ran.output)
    if ran.code != 0 or release is None:
        return bad("cuda.nvcc", f"{nvcc}: exit {ran.code}, {first_line(ran.output) or 'no output'}", broken)
    value = f"{release[0]}.{release[1]}, {nvcc}"
    served = read().cuda
    if served is not None and release[0] > version_key(served)[0]:
        remedy = f"kernels it builds will not load: install a driver for CUDA {release[0]}, or an older toolkit"
        return bad("cuda.nvcc", f"{value}, newer than the driver's CUDA {served}", remedy)
    return ok("cuda.nvcc", value)


def _home(nvcc: str | None, home: str | None) -> Finding:
    if home:
        inside = Path(home, "bin", "nvcc")
        if not inside.exists():
            remedy = "builds look there and fail: set CUDA_HOME to the folder that holds bin/nvcc, or unset it"
            return bad("cuda.home", f"{home} holds no bin/nvcc", remedy)
        if nvcc and toolkit_of(nvcc) is not None and os.path.realpath(nvcc) != os.path.realpath(inside):
            remedy = f"two toolkits would be mixed: put {home}/bin first on PATH, or set CUDA_HOME to the other"
            return warn("cuda.home", f"{home}, but PATH has {nvcc}", remedy)
        return ok("cuda.home", home)
    if nvcc is None:
        return absent("cuda.home", "not set, and no nvcc", "comes with the CUDA toolkit")
    toolkit = toolkit_of(nvcc)
    if toolkit is None:
        remedy = f"builds guess it from nvcc's place and then miss libcudart: export CUDA_HOME={_guess()}"
        return warn("cuda.home", f"not set, and {nvcc} is a wrapper outside its toolkit", remedy)
    return ok("cuda.home", f"not set; {toolkit} by nvcc's place")


def _guess() -> str:
    homes = sorted(Path("/usr/local").glob("cuda*"))
    return str(homes[0]) if homes else "/usr/local/cuda"


def _runtime(toolkit: Path | None) -> Finding:
    if toolkit is not None:
        for folder in ("lib64", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib", "lib"):
            hits = sorted((toolkit / folder).glob("libcudart.so.*"))
            if hits:
                return ok("cuda.runtime", str(hits[-1]))
    for name, paths in sorted(libraries().items()):
        if name.startswith("libcudart.so"):
            return ok("cuda.runtime", paths[0])
    packaged = _packaged_runtime()
    if packaged is not None:
        return ok("cuda.runtime", packaged)
    remedy = "comes with torch's CUDA build or with the toolkit; nothing on a CPU needs it"
    return absent("cuda.runtime", "libcudart not found", remedy)


def _packaged_runtime() -> str | None:
    """The one that pip brings along with torch."""
    from importlib.metadata import PackageNotFoundError, files

    for package in ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime-cu13"):
        with contextlib.suppress(PackageNotFoundError):
            for file in files(package) or ():
                if file.name.startswith("libcudart.so"):
                    return str(file.locate())
    return None
