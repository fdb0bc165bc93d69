"""How does the running eagle3ops become one file that can be installed elsewhere?

From a source tree by its build backend, in a copy, so that nothing is left behind in the tree; from an installation by
packing again the files that its RECORD lists. Both ways the same source gives the same bytes.
"""

import base64
import contextlib
import csv
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path, PurePosixPath

import eagle3ops
from eagle3ops.errors import Eagle3opsError

BUILD_LIMIT_S = 300.0
EPOCH = 1_600_000_000
"""Time stamp inside the wheel (seconds), the same at every build."""
PARTS = ("pyproject.toml", "README.md", "LICENSE", "eagle3ops", "jobs", "screens", "assets")
"""What of a source tree goes into the wheel."""
_UNWANTED = shutil.ignore_patterns("__pycache__", "*.pyc", "build", "*.egg-info", ".*")


def sha256_of(path: Path) -> str:
    """Hexadecimal SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def source_tree() -> Path | None:
    """The source tree that this program runs from; None when it runs from an installed wheel."""
    top = Path(eagle3ops.__file__).resolve().parents[1]
    return top if all((top / part).exists() for part in PARTS) else None


def build(folder: Path) -> Path:
    """Write the wheel of the running version into `folder` and return its path.

    Raises:
        Eagle3opsError: it cannot be built, and why.
    """
    tree = source_tree()
    return _from_source(tree, folder) if tree is not None else _from_installation(folder)


def _from_source(tree: Path, folder: Path) -> Path:
    with tempfile.TemporaryDirectory(prefix="eagle3ops-wheel-") as scratch:
        copy = Path(scratch, "source")
        copy.mkdir()
        for part in PARTS:
            if (tree / part).is_dir():
                shutil.copytree(tree / part, copy / part, symlinks=True, ignore=_UNWANTED)
            else:
                shutil.copy(tree / part, copy / part)
        built = Path(scratch, "built")
        built.mkdir()
        _run_backend(copy, built)
        wheels = sorted(built.glob("*.whl"))
        if len(wheels) != 1:
            raise Eagle3opsError(f"building the wheel left {len(wheels)} files", remedy="build it by hand: pip wheel .")
        return Path(shutil.copy(wheels[0], folder))


def _run_backend(copy: Path, built: Path) -> None:
    """With the setuptools of this interpreter; where it has none or too old a one, pip fetches one."""
    direct = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    pip = ["-m", "pip", "wheel", "-q", "--no-deps", "--disable-pip-version-check", "-w", str(built), str(copy)]
    ways: list[Sequence[str]] = [["-c", direct, str(built)]] if _setuptools_fits() else []
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(EPOCH), "PYTHONDONTWRITEBYTECODE": "1"}
    said = ""
    for way in [*ways, pip]:
        building = subprocess.Popen(
            [sys.executable, *way],
            cwd=copy,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        try:
            output, _ = building.communicate(timeout=BUILD_LIMIT_S)
        except subprocess.TimeoutExpired as error:
            _end(building)
            raise Eagle3opsError(
                f"building the wheel had not ended after {BUILD_LIMIT_S:g} s",
                remedy="build it by hand and see where it stops: pip wheel . --no-deps",
            ) from error
        if building.returncode == 0:
            return
        said = output.decode(errors="replace").strip()[-1500:]
    raise Eagle3opsError(
        f"the wheel of eagle3ops could not be built here:\n{said}",
        remedy=f"give this Python what building needs: {sys.executable} -m pip install 'setuptools>=80'",
    )


def _end(building: "subprocess.Popen[bytes]") -> None:
    """End a program with what it started: that would keep the pipe open, and whoever reads it waiting.

    Not a session of its own, which the terminal's Ctrl-C would not reach.
    """
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        for process in psutil.Process(building.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
    building.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        building.communicate(timeout=1)


def _setuptools_fits() -> bool:
    try:
        return int(metadata.version("setuptools").partition(".")[0]) >= 80
    except (metadata.PackageNotFoundError, ValueError):
        return False


def _from_installation(folder: Path) -> Path:
    try:
        distribution = metadata.distribution("eagle3ops")
    except metadata.PackageNotFoundError as error:
        raise Eagle3opsError(
            "this eagle3ops is neither a source tree nor an installation, so there is nothing to send",
            remedy="run it from a checkout, or from where pip installed it",
        ) from error
    site = Path(str(distribution.locate_file("")))
    names = packed_names([str(file) for file in distribution.files or ()])
    missing = [name for name in names if not (site / name).is_file()]
    if missing or not any(name == "eagle3ops/__init__.py" for name in names):
        raise Eagle3opsError(
            f"the installation in {site} is not whole: {missing[0] if missing else 'eagle3ops/__init__.py'} is missing",
            remedy="install eagle3ops again",
        )
    info = next(PurePosixPath(name).parts[0] for name in names if name.endswith(".dist-info/METADATA"))
    target = folder / f"eagle3ops-{distribution.version}-py3-none-any.whl"
    pack({name: (site / name).read_bytes() for name in names}, info, target)
    return target


def packed_names(recorded: Sequence[str]) -> list[str]:
    """Of the files that RECORD lists, those that the wheel held: not scripts, bytecode, nor what pip added."""
    kept = []
    for name in recorded:
        path = PurePosixPath(name)
        own = path.parts and (path.parts[0] == "eagle3ops" or path.parts[0].endswith(".dist-info"))
        if not own or ".." in path.parts or "__pycache__" in path.parts or path.suffix == ".pyc":
            continue
        if path.parent.name.endswith(".dist-info") and path.name in (
            "RECORD",
            "INSTALLER",
            "REQUESTED",
            "direct_url.json",
        ):
            continue
        kept.append(str(path))
    return sorted(set(kept))


def pack(files: dict[str, bytes], info: str, target: Path) -> None:
    """Write a wheel of these files with a RECORD of its own.

    Args:
        files: content by path inside the wheel.
        info: name of its `.dist-info` folder.
        target: the file to write.
    """
    rows = io.StringIO()
    table = csv.writer(rows, lineterminator="\n")
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name in sorted(files):
            digest = base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest()).rstrip(b"=").decode()
            table.writerow([name, f"sha256={digest}", len(files[name])])
            wheel.writestr(_entry(name), files[name])
        record = f"{info}/RECORD"
        table.writerow([record, "", ""])
        wheel.writestr(_entry(record), rows.getvalue())


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o100644 << 16
    return entry
