"""With which command lines and variables is a source tree built and installed?"""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from eagle3ops.building.architectures import Arch
from eagle3ops.building.limits import environment as parallel
from eagle3ops.building.sources import SCIKIT, Source
from eagle3ops.building.toolchain import Toolkit

_LEFT = shutil.ignore_patterns("build", "dist", "*.egg-info", "__pycache__", ".venv")


def variables(
    base: Mapping[str, str],
    own: Mapping[str, str],
    *,
    python: str,
    source: Source,
    arch: Arch | None,
    toolkit: Toolkit | None,
    jobs: int,
    cmake: Sequence[str],
) -> dict[str, str]:
    """The whole environment of a build: `base`, what is set here, and over all of it `own`."""
    found = {**base, **parallel(jobs)}
    found |= {
        # What an engine is started with does not look into PYTHONPATH, so neither does what is built for it.
        "PYTHONPATH": "",
        "PYTHONUNBUFFERED": "1",
        "NINJA_STATUS": "[%f/%t] ",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INPUT": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "LC_ALL": "C.UTF-8",
    }
    folders = [str(Path(python).parent)]
    arguments = list(cmake)
    if toolkit is not None:
        found |= {"CUDA_HOME": str(toolkit.home), "CUDACXX": str(toolkit.nvcc)}
        folders.insert(0, str(toolkit.home / "bin"))
    if arch is not None:
        found |= {"TORCH_CUDA_ARCH_LIST": arch.dotted, "CUDAARCHS": f"{arch.digits}-real"}
    option = source.compile_threads
    if option is not None and not any(one.startswith(f"-D{option}") for one in arguments):
        arguments.append(f"-D{option}=1")
    found["PATH"] = os.pathsep.join([*folders, base.get("PATH", os.defpath)])
    found["CMAKE_ARGS"] = " ".join([*filter(None, [base.get("CMAKE_ARGS", "")]), *arguments])
    return {**found, **own}


def wheel_command(python: str, source: Source, tree: Path, out: Path, *, isolation: bool) -> list[str]:
    """Build a wheel of `tree` into `out / "wheel"`; what is half done is kept in `out / "tree"` for later."""
    argv = [python, "-P", "-m", "pip", "wheel", "-v", "--no-deps", "--no-cache-dir", "-w", str(out / "wheel")]
    if not isolation:
        argv.append("--no-build-isolation")
    if source.backend == SCIKIT:
        argv.append(f"--config-settings=build-dir={out / 'tree'}")
    return [*argv, str(tree)]


def tree_of(source: Source, out: Path) -> Path:
    """The folder that is built: the source itself, or a copy where its back end writes into it."""
    if source.backend == SCIKIT:
        return source.folder
    copy = out / "tree"
    # Times are kept, so that what was compiled already is not compiled again.
    shutil.copytree(source.folder, copy, ignore=_LEFT, dirs_exist_ok=True, symlinks=True)
    return copy


def install_command(python: str, wheel: Path) -> list[str]:
    """Put a wheel in the place of what is there."""
    return [python, "-P", "-m", "pip", "install", "--no-deps", "--force-reinstall", "--no-cache-dir", str(wheel)]
