"""Do the rooms depend on each other only downwards, and is every one of them packaged?"""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

HOUSE = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def project() -> dict[str, object]:
    data: dict[str, object] = tomllib.loads((HOUSE / "pyproject.toml").read_text(encoding="utf-8"))
    return data


def test_import_contracts_hold() -> None:
    run = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=HOUSE,
        capture_output=True,
        text=True,
        timeout=110,
        env=os.environ | {"NO_COLOR": "1"},
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_every_package_is_listed_and_every_listed_one_is_there(project: dict[str, object]) -> None:
    setuptools = project["tool"]["setuptools"]  # type: ignore[index]
    listed = set(setuptools["packages"])
    places = {"eagle3ops": "eagle3ops"} | dict(setuptools["package-dir"])
    found = set()
    for top in ("eagle3ops", "assets", "jobs", "screens"):
        for init in (HOUSE / top).rglob("__init__.py"):
            parts = init.parent.relative_to(HOUSE).parts
            found.add(".".join(parts if top == "eagle3ops" else ("eagle3ops", *parts)))
    assert listed == found
    for name in places:
        assert (HOUSE / places[name] / "__init__.py").is_file(), name


@pytest.mark.parametrize("name", ["assets", "jobs", "screens"])
def test_top_level_folders_are_linked_into_the_package(name: str) -> None:
    link = HOUSE / "eagle3ops" / name
    assert link.is_symlink()
    assert link.readlink() == Path("..") / name


def test_no_folder_of_the_package_with_code_lacks_an_init() -> None:
    for folder in {path.parent for path in (HOUSE / "eagle3ops").rglob("*.py")}:
        assert (folder / "__init__.py").is_file(), folder
