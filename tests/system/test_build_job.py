"""The build job, whole: real sources, a real compiler, CMake, ninja and pip, into a Python of its own."""

import json
import os
import shutil
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = pytest.mark.timeout(300)

NEEDED = ("g++", "cmake", "ninja")
BACKEND = """
import os, subprocess, sys, sysconfig, zipfile
def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    here = os.path.dirname(os.path.abspath(__file__))
    tree = os.path.join(here, "objects")
    run = lambda *argv: subprocess.run(argv, check=True, cwd=here)
    run("cmake", "-G", "Ninja", "-S", here, "-B", tree, f"-DINCLUDE={sysconfig.get_path('include')}")
    run("cmake", "--build", tree)
    name = "tinyops-1-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(wheel_directory, name), "w") as made:
        made.writestr("tinyops/__init__.py", "from tinyops._ops import six")
        made.write(os.path.join(tree, "_ops.so"), "tinyops/_ops.so")
        made.writestr("tinyops-1.dist-info/METADATA", "Metadata-Version: 2.1\\nName: tinyops\\nVersion: 1\\n")
        made.writestr("tinyops-1.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        made.writestr("tinyops-1.dist-info/RECORD", "")
    return name
"""
"""A build back end in the source tree, so that nothing has to be fetched for it."""
CMAKE = """
cmake_minimum_required(VERSION 3.18)
project(tinyops LANGUAGES CXX)
add_custom_command(OUTPUT held.cpp DEPENDS one.cpp COMMAND sh ${CMAKE_CURRENT_SOURCE_DIR}/hold.sh VERBATIM)
add_library(parts OBJECT one.cpp two.cpp three.cpp)
target_include_directories(parts PRIVATE ${INCLUDE})
set_target_properties(parts PROPERTIES POSITION_INDEPENDENT_CODE ON)
add_library(_ops MODULE held.cpp $<TARGET_OBJECTS:parts>)
set_target_properties(_ops PROPERTIES PREFIX "")
"""
ONE = """
#include <Python.h>
int two(); int three();
static PyObject* six(PyObject*, PyObject*) { return PyLong_FromLong(two() * three()); }
static PyMethodDef methods[] = {{"six", six, METH_NOARGS, ""}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "_ops", nullptr, -1, methods};
PyMODINIT_FUNC PyInit__ops() { return PyModule_Create(&module); }
"""


@pytest.fixture(autouse=True)
def _tools() -> None:
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing:
        pytest.skip(f"not on PATH: {', '.join(missing)}")


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with pip, to be copied from."""
    folder = tmp_path_factory.mktemp("fresh")
    subprocess.run([sys.executable, "-m", "venv", folder / "env"], check=True)
    return folder / "env"


@pytest.fixture
def python(fresh: Path, tmp_path: Path) -> Path:
    shutil.copytree(fresh, tmp_path / "env", symlinks=True)
    return tmp_path / "env/bin/python"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n[project]\nname = "tinyops"\n'
        'version = "1"\n'
    )
    (folder / "backend.py").write_text(BACKEND)
    (folder / "CMakeLists.txt").write_text(CMAKE)
    (folder / "one.cpp").write_text(ONE)
    (folder / "two.cpp").write_text("int two() { return 2; }\n")
    (folder / "three.cpp").write_text("int three() { return 3; }\n")
    hold = tmp_path / "hold"
    (folder / "hold.sh").write_text(
        f"test -e {hold} && touch {hold}.begun\nwhile test -e {hold}; do sleep 0.2; done\necho > held.cpp\n"
    )
    return folder


def words(tmp_path: Path, source: Path, python: Path, *more: str) -> list[str]:
    settings = (f"source={source}", f"python={python}", "disk=1 MiB", "job_memory=64 MiB", *more)
    chosen = [word for setting in settings for word in ("--set", f"stages.build.{setting}")]
    return [
        sys.executable, "-m", "eagle3ops", "--job", "build", "--spec", "tiny", "--root", str(tmp_path / "root"), *chosen
    ]  # fmt: skip


def environment(tmp_path: Path) -> dict[str, str]:
    state = {"EAGLE3OPS_CACHE": str(tmp_path / "cache"), "EAGLE3OPS_STATE": str(tmp_path / "state"), "NO_COLOR": "1"}
    return {**os.environ, **state}


def run(tmp_path: Path, argv: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, env=environment(tmp_path), capture_output=True, text=True, check=False)


def result(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    (out,) = [path for path in (tmp_path / "root/stages").glob("build-*") if path.is_dir()]
    return out, json.loads((out / "build.json").read_text())


def recorded(tmp_path: Path) -> int:
    logs = list((tmp_path / "root/stages").glob("build-*/tree/objects/.ninja_log"))
    return logs[0].read_text().count(".cpp.o\t") if logs else 0


def events(tmp_path: Path) -> list[dict[str, Any]]:
    newest = max((tmp_path / "root/runs").glob("*/events.jsonl"), key=lambda path: path.stat().st_mtime)
    return [json.loads(line) for line in newest.read_text().splitlines()]


def test_from_sources_to_what_python_imports(tmp_path: Path, source: Path, python: Path) -> None:
    argv = words(tmp_path, source, python)
    done = run(tmp_path, argv)
    assert done.returncode == 0, done.stderr
    assert subprocess.check_output([python, "-c", "import tinyops; print(tinyops.six())"], text=True) == "6\n"
    out, told = result(tmp_path)
    assert told["proof"]["passed"]
    assert [file["role"] for file in told["proof"]["files"]] == ["loaded"]
    counted = [event["data"] for event in events(tmp_path) if event["kind"] == "progress"]
    assert counted[-1]["done"] == counted[-1]["total"] == 6
    assert not (out / "tree").exists()
    assert "Building CXX object" in (out / "compile.log").read_text()
    assert not (source / "objects").exists()
    # The same again is done already; after a change of the sources, or of what is installed, it is not.
    assert "building" not in run(tmp_path, argv).stderr
    assert len([event for event in events(tmp_path) if event["kind"] == "process" and event["stage"] == "build"]) == 0
    (source / "three.cpp").write_text("int three() { return 4; }\n")
    again = run(tmp_path, argv)
    assert "have changed" in again.stderr, again.stderr
    assert subprocess.check_output([python, "-c", "import tinyops; print(tinyops.six())"], text=True) == "8\n"


def test_the_line_that_stopped_it(tmp_path: Path, source: Path, python: Path) -> None:
    (source / "two.cpp").write_text("int two() { return 2; }\nint broken( { }\n")
    done = run(tmp_path, words(tmp_path, source, python))
    assert done.returncode == 1
    assert "two.cpp:2:" in done.stderr
    assert "of compile.log" in done.stderr
    errors = [event["data"]["message"] for event in events(tmp_path) if event["kind"] == "error"]
    assert "two.cpp:2:" in errors[0]
    assert "error:" in errors[0]


def test_a_header_that_is_missing(tmp_path: Path, source: Path, python: Path) -> None:
    (source / "two.cpp").write_text("#include <no_such_header.h>\nint two() { return 2; }\n")
    done = run(tmp_path, words(tmp_path, source, python))
    assert done.returncode == 1
    assert "no_such_header.h: No such file or directory" in done.stderr


@pytest.mark.slow
def test_a_compiler_that_is_killed_for_memory_is_named(tmp_path: Path, source: Path, python: Path) -> None:
    real = subprocess.check_output(["g++", "-print-prog-name=cc1plus"], text=True).strip()
    if not Path(real).is_file():
        pytest.skip("g++ here has no cc1plus of its own")
    # What g++ says is its own; only that the kernel ends its child is done for it.
    (tmp_path / "gcc").mkdir()
    killed = tmp_path / "gcc/cc1plus"
    killed.write_text(f'#!/bin/sh\ncase "$*" in *three.cpp*) kill -9 $$;; esac\nexec {real} "$@"\n')
    killed.chmod(0o755)
    done = run(tmp_path, words(tmp_path, source, python, f"environment={{CXX: g++ -B{tmp_path / 'gcc'}/}}", "jobs=4"))
    assert done.returncode == 1, done.stderr
    assert "out of memory: cc1plus was killed" in done.stderr
    assert "stages.build.jobs=2" in done.stderr


@pytest.mark.slow
def test_ended_half_way_nothing_is_left_and_it_goes_on(tmp_path: Path, source: Path, python: Path) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    argv = words(tmp_path, source, python)
    with subprocess.Popen(
        argv, env=environment(tmp_path), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as running:
        deadline = time.monotonic() + 60
        # Objects can be made while a step is held, on more than one core; what ninja knows of is in its log.
        wanted = 1 if (os.cpu_count() or 1) > 1 else 0
        while not (tmp_path / "hold.begun").exists() or recorded(tmp_path) < wanted:
            if running.poll() is not None or time.monotonic() > deadline:
                hold.unlink()
                running.kill()
                pytest.fail("the build did not get that far")
            time.sleep(0.1)
        base = [sys.executable, "-m", "eagle3ops", "--root", str(tmp_path / "root")]
        ended = run(tmp_path, [*base, "runs", "cancel", "last"])
        assert ended.returncode == 0, ended.stderr
        assert running.wait(60) != 0
    assert not [
        one.info["pid"] for one in psutil.process_iter(["pid", "cmdline"])
        if any(str(tmp_path) in word for word in one.info["cmdline"] or ()) and one.pid != os.getpid()
    ]  # fmt: skip
    assert not list((tmp_path / "root/stages").glob("build-*/build.json"))
    hold.unlink()
    again = run(tmp_path, argv)
    assert again.returncode == 0, again.stderr
    assert subprocess.check_output([python, "-c", "import tinyops; print(tinyops.six())"], text=True) == "6\n"
    # Of six steps those that were done before are not done again.
    counted = [event["data"]["total"] for event in events(tmp_path) if event["kind"] == "progress"]
    assert counted[-1] < 6 or wanted == 0


@pytest.mark.slow
def test_a_phantom_build_is_a_verdict(tmp_path: Path, source: Path, python: Path) -> None:
    old = tmp_path / "old/tinyops"
    old.mkdir(parents=True)
    (old / "__init__.py").write_text("def six(): return 7\n")
    (site,) = (tmp_path / "env/lib").glob("python3*/site-packages")
    (site / "stale.pth").write_text(f"import sys; sys.path.insert(0, {str(old.parent)!r})\n")
    done = run(tmp_path, words(tmp_path, source, python))
    assert done.returncode == 3, done.stderr
    assert "kernels: FAIL" in done.stderr
    assert f"_ops.so was built, and {old} is imported" in done.stderr
    assert f"named in {site / 'stale.pth'}" in done.stderr
    assert run(tmp_path, words(tmp_path, source, python)).returncode == 3
    (site / "stale.pth").unlink()
    assert run(tmp_path, words(tmp_path, source, python)).returncode == 0


def test_what_is_missing_is_said_before(tmp_path: Path, source: Path, python: Path) -> None:
    project = source / "pyproject.toml"
    project.write_text(project.read_text().replace("requires = []", 'requires = ["no-such-build-tool>=3"]'))
    done = run(tmp_path, words(tmp_path, source, python, "environment={CXX: no-such-compiler}"))
    assert done.returncode == 6, done.stderr
    assert "no-such-build-tool>=3" in done.stderr
    assert "no-such-compiler is no compiler" in done.stderr
    assert run(tmp_path, words(tmp_path, tmp_path / "nowhere", python)).returncode in (2, 6)


def test_scikit_build_core(tmp_path: Path, source: Path, python: Path) -> None:
    pytest.importorskip("scikit_build_core", reason="scikit-build-core is not installed here")
    (site,) = (tmp_path / "env/lib").glob("python3*/site-packages")
    for name in ("scikit-build-core", "packaging", "pathspec"):
        found = metadata.distribution(name)
        for top in {str(file).partition("/")[0] for file in found.files or () if not str(file).startswith("..")}:
            (site / top).symlink_to(str(found.locate_file(top)))
    (source / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["scikit-build-core"]\nbuild-backend = "scikit_build_core.build"\n[project]\n'
        'name = "tinyops"\nversion = "1"\n[tool.scikit-build]\nwheel.packages = ["tinyops"]\n'
    )
    (source / "tinyops").mkdir()
    (source / "tinyops/__init__.py").write_text("from tinyops._ops import six")
    text = (source / "CMakeLists.txt").read_text().replace("${INCLUDE}", "${Python_INCLUDE_DIRS}")
    text = text.replace("add_custom", "find_package(Python REQUIRED COMPONENTS Development.Module)\nadd_custom", 1)
    (source / "CMakeLists.txt").write_text(text + "install(TARGETS _ops LIBRARY DESTINATION tinyops)\n")
    done = run(tmp_path, words(tmp_path, source, python))
    assert done.returncode == 0, done.stderr
    assert result(tmp_path)[1]["proof"]["passed"]
    assert subprocess.check_output([python, "-c", "import tinyops; print(tinyops.six())"], text=True) == "6\n"
