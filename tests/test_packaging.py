"""What is installed is the package with everything in it, and nothing under a name that is not ours."""

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1]
PARTS = ("pyproject.toml", "README.md", "LICENSE", "eagle3ops", "jobs", "screens", "assets")
FOLDERS = ("jobs", "screens", "assets")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy, so that nothing is left in the checkout."""
    source, built = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("built")
    for part in PARTS:
        if (PROJECT / part).is_dir():
            shutil.copytree(PROJECT / part, source / part, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(PROJECT / part, source / part)
    argv = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        str(source),
        "--no-deps",
        "--no-build-isolation",
        "-q",
        "-w",
        str(built),
    ]
    subprocess.run(argv, check=True, capture_output=True)
    (found,) = built.glob("*.whl")
    return found


def test_one_top_level_name(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"eagle3ops", names[-1].split("/")[0]}
    assert names[-1].split("/")[0].endswith(".dist-info")


def test_every_module_and_every_asset_is_in_it(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    missing = []
    for folder in ("eagle3ops", *FOLDERS):
        prefix = "" if folder == "eagle3ops" else "eagle3ops/"
        for path in sorted((PROJECT / folder).rglob("*")):
            relative = path.relative_to(PROJECT)
            # The links within the package are the folders beside it, which are looked at by themselves.
            through_link = folder == "eagle3ops" and relative.parts[1] in FOLDERS
            if path.is_file() and "__pycache__" not in relative.parts and not through_link:
                name = f"{prefix}{relative.as_posix()}"
                if name not in names:
                    missing.append(name)
    assert missing == []
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_every_package_is_listed() -> None:
    listed = set(tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    found = {".".join(path.parent.relative_to(PROJECT).parts) for path in (PROJECT / "eagle3ops").rglob("__init__.py")}
    for folder in FOLDERS:
        for path in (PROJECT / folder).rglob("__init__.py"):
            found.add(".".join(("eagle3ops", *path.parent.relative_to(PROJECT).parts)))
    assert {name for name in found if name} == listed


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_folders_are_linked_into_the_package(folder: str) -> None:
    assert os.readlink(PROJECT / "eagle3ops" / folder) == f"../{folder}"


def test_the_wheel_runs_by_itself(wheel: Path, tmp_path: Path) -> None:
    place = tmp_path / "installed"
    zipfile.ZipFile(wheel).extractall(place)
    program = (
        f"import sys; sys.path.insert(0, {str(place)!r})\n"
        "import eagle3ops, eagle3ops.jobs, eagle3ops.screens.app, eagle3ops.prompts as prompts\n"
        "from importlib.util import find_spec\n"
        f"assert eagle3ops.__file__.startswith({str(place)!r}), eagle3ops.__file__\n"
        f"assert eagle3ops.jobs.__file__.startswith({str(place)!r}), eagle3ops.jobs.__file__\n"
        "assert len(prompts.bundled_prompts(0)) > 1000\n"
        "assert [name for name in ('jobs', 'screens', 'assets') if find_spec(name)] == []\n"
    )
    subprocess.run([sys.executable, "-I", "-c", program], check=True, cwd=tmp_path)


def test_the_version_is_said_at_once_and_lightly() -> None:
    program = (
        "import sys\n"
        "from eagle3ops.cli import main\n"
        "assert main(['--version']) == 0\n"
        "heavy = {'torch', 'numpy', 'textual', 'rich', 'pydantic', 'aiohttp', 'transformers'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=PROJECT)
