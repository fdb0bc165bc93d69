"""What would stop a build late is told before it begins."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3ops.building.architectures import parse_arch
from eagle3ops.building.environment import Environment, parse_environment, read_environment
from eagle3ops.building.limits import Machine, compile_jobs
from eagle3ops.building.preflight import Wanted, missing_requirements, preflight
from eagle3ops.building.recipe import variables
from eagle3ops.building.sources import fetched_by, read_source
from eagle3ops.building.toolchain import accepted, find_toolkit
from eagle3ops.errors import RequestError
from eagle3ops.hosts.doctor.finding import Finding, by_name

GIB = 1 << 30
BIG = Machine(cores=8, available=64 * GIB)
HEADER = """
#if __GNUC__ > 15
#error -- unsupported GNU version!
#endif
#if (__clang_major__ >= 21) || (__clang_major__ < 3) || ((__clang_major__ == 3) &&  (__clang_minor__ < 3))
"""
CMAKE = """
cmake_minimum_required(VERSION 3.26 FATAL_ERROR)
project(kernels LANGUAGES CXX CUDA)
set(SGL_KERNEL_COMPILE_THREADS 32 CACHE STRING "x")
# FetchContent_Declare(old GIT_REPOSITORY https://example.org/old)
FetchContent_Declare(
    repo-cutlass
    GIT_REPOSITORY http://127.0.0.1:1/cutlass
    GIT_TAG        57e3
)
set(F "-gencode=arch=compute_90,code=sm_90" "-gencode=arch=compute_120a,code=sm_120a")
"""


def tree(folder: Path, cmake: str = CMAKE, **files: str) -> Path:
    folder.mkdir()
    (folder / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["scikit-build-core>=0.10", "torch"]\nbuild-backend = "scikit_build_core.build"\n'
    )
    (folder / "CMakeLists.txt").write_text(cmake)
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)
    return folder


def program(folder: Path, name: str, says: str) -> None:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{says}\nEND\n")
    path.chmod(0o755)


def python(**changes: object) -> Environment:
    base: dict[str, object] = {
        "path": sys.executable, "version": "3.11.7", "pip": "25.0", "include": "/nowhere", "torch": "2.11.0",
        "torch_cuda": "13.0", "packages": {"torch": "2.11.0", "scikit-build-core": "0.11"},
    }  # fmt: skip
    return Environment(**{**base, **changes})  # type: ignore[arg-type]


def looked(
    tmp_path: Path, source: Path, *, arch: str | None = "sm_90", network: bool = False, **changes: object
) -> dict[str, Finding]:
    environment = {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin", "CUDA_HOME": str(tmp_path / "cuda")}
    wanted = Wanted(
        source=read_source(source), python=python(**changes), arch=parse_arch(arch) if arch else None,
        variables=environment, work=tmp_path, disk=1 << 20, each=4 * GIB, jobs=None, machine=BIG, isolation=False,
    )  # fmt: skip
    return by_name(preflight(wanted, network=network).findings)


@pytest.fixture
def cuda(tmp_path: Path) -> Path:
    """A toolkit as far as it is asked: a program that says its version, and the header that names the compilers."""
    home = tmp_path / "cuda"
    (home / "include/crt").mkdir(parents=True)
    (home / "include/crt/host_config.h").write_text(HEADER)
    program(home / "bin", "nvcc", "Cuda compilation tools, release 13.0, V13.0.88\nsm_80\nsm_90\nsm_100\nsm_120")
    program(tmp_path / "bin", "g++", "g++ (Distribution 9.9.9) 12.2.0")
    program(tmp_path / "bin", "cmake", "cmake version 3.31.2")
    return home


def test_a_source_tree_says_what_it_needs(tmp_path: Path) -> None:
    source = read_source(tree(tmp_path / "s", a_cpp="#include <numa.h>\n", k_cu=""))
    assert (source.cuda, source.numa, source.cmake, source.compile_threads) == (
        True, True, "3.26", "SGL_KERNEL_COMPILE_THREADS",
    )  # fmt: skip
    assert [(one.name, one.url) for one in source.fetched] == [("repo-cutlass", "http://127.0.0.1:1/cutlass")]
    assert [str(one) for one in source.targets] == ["sm_90", "sm_120a"]
    marks = source.marks
    (tmp_path / "s/k.cu").write_text("// changed")
    assert read_source(tmp_path / "s").marks != marks


def test_no_sources(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"neither pyproject\.toml nor setup\.py"):
        read_source(tmp_path)
    (tmp_path / "pyproject.toml").write_text("[[[")
    with pytest.raises(RequestError, match=r"pyproject\.toml"):
        read_source(tmp_path)


@pytest.mark.usefixtures("cuda")
def test_a_machine_that_has_everything(tmp_path: Path) -> None:
    found = looked(tmp_path, tree(tmp_path / "s"))
    assert found["build.compiler"].value.startswith("gcc 12.2.0")
    for name in ("source", "pip", "backend", "compiler", "nvcc", "torch", "arch", "cmake", "disk", "memory"):
        assert found[f"build.{name}"].status == "ok", found[f"build.{name}"]
    assert "MAX_JOBS 8" in found["build.memory"].value
    assert found["build.threads"].status == "warn"


@pytest.mark.usefixtures("cuda")
def test_each_fault_is_named_with_its_remedy(tmp_path: Path) -> None:
    program(tmp_path / "bin", "g++", "g++ (Distribution) 16.1.0")
    program(tmp_path / "bin", "cmake", "cmake version 3.25.1")
    source = tree(tmp_path / "s", a_cpp="#include <numa.h>")
    (source / ".gitmodules").write_text('[submodule "x"]\n\tpath = third/x\n')
    found = looked(
        tmp_path, source, arch="sm_121", torch_cuda="12.9", packages={"torch": "2.11.0"}, pip=None, network=True
    )
    faults = {name: one for name, one in found.items() if one.status == "bad"}
    assert "takes gcc up to 15" in faults["build.compiler"].value
    assert "g++-15" in (faults["build.compiler"].remedy or "")
    assert "CUDA 12.9, nvcc is 13.0" in faults["build.torch"].value
    assert "does not know sm_121" in faults["build.arch"].value
    assert "3.26 is needed" in faults["build.cmake"].value
    assert "third/x" in faults["build.submodules"].value
    assert "no pip" in faults["build.pip"].value
    assert faults["build.python_headers"].value == "/nowhere/Python.h is not there"
    assert "http://127.0.0.1:1/cutlass" in faults["build.network"].value
    assert "FETCHCONTENT_SOURCE_DIR_REPO-CUTLASS" in (faults["build.network"].remedy or "")
    if not Path("/usr/include/numa.h").exists():
        assert "libnuma-dev" in (faults["build.numa"].remedy or "")
    assert all(one.remedy for one in faults.values())


@pytest.mark.usefixtures("cuda")
def test_an_architecture_that_the_build_files_leave_out(tmp_path: Path) -> None:
    found = looked(tmp_path, tree(tmp_path / "s"), arch="sm_100")
    assert found["build.arch"].status == "warn"
    assert "sm_90, sm_120a themselves, and nothing for sm_100" in found["build.arch"].value
    assert looked(tmp_path, tmp_path / "s", arch=None)["build.arch"].status == "bad"


def test_requirements_of_the_build() -> None:
    have = {"torch": "2.11.0+cu130", "scikit-build-core": "0.9"}
    asked = ["scikit_build_core>=0.10", "torch", "ninja", "wheel; python_version < '3'", "???"]
    assert missing_requirements(asked, have) == ["scikit_build_core>=0.10", "ninja"]


def test_a_wrapper_on_path_is_seen_through(tmp_path: Path) -> None:
    home = tmp_path / "cuda"
    says = f"#$ _HERE_={home / 'bin'}\nrelease 13.0, V13\nsm_90"
    home.mkdir()
    program(home / "bin", "nvcc", says)
    program(tmp_path / "bin", "nvcc", says)
    found = find_toolkit({}, str(tmp_path / "bin"))
    assert found is not None
    assert (found.home, found.wrapper) == (home, tmp_path / "bin/nvcc")


@given(st.text(max_size=300))
def test_any_header_and_any_cmake_file(text: str) -> None:
    gcc, clangs = accepted(text + HEADER)
    assert gcc is not None
    assert clangs is not None
    fetched_by(text)
    fetched_by(f"FetchContent_Declare({text}")


def test_what_the_header_accepts() -> None:
    assert accepted(HEADER) == (15, (3, 21))
    assert accepted("") == (None, None)


@given(st.binary(max_size=200))
def test_any_answer_of_a_python(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_environment(raw, "python")


def test_this_python_answers() -> None:
    found = read_environment(sys.executable, os.environ)
    assert found.packages["pytest"] == pytest.__version__
    assert found.version == ".".join(map(str, sys.version_info[:3]))


@given(
    cores=st.floats(0.1, 512), available=st.integers(0, 1 << 42), limit=st.none() | st.integers(0, 1 << 42),
    each=st.integers(1 << 20, 1 << 36),
)  # fmt: skip
def test_jobs_fit_into_memory_and_cores(cores: float, available: int, limit: int | None, each: int) -> None:
    jobs = compile_jobs(Machine(cores, available, limit), each)
    least = min(available, available if limit is None else limit)
    assert 1 <= jobs.count <= max(1, cores)
    assert jobs.count == 1 or jobs.count * each <= least
    assert jobs.tight == (least - GIB < each)


def test_the_control_group_counts() -> None:
    assert compile_jobs(Machine(16, 64 * GIB, 9 * GIB), 4 * GIB).count == 2
    assert compile_jobs(Machine(1.5, 64 * GIB), 4 * GIB).count == 1
    asked = compile_jobs(Machine(16, 9 * GIB), 4 * GIB, asked=12)
    assert (asked.count, asked.tight) == (12, True)


def test_the_environment_of_a_build(tmp_path: Path) -> None:
    source = read_source(tree(tmp_path / "s"))
    found = variables(
        {"PATH": "/usr/bin", "CMAKE_ARGS": "-DA=1", "PYTHONPATH": "/old"}, {"MAX_JOBS": "3"}, python="/env/bin/python",
        source=source, arch=parse_arch("sm_90a"), toolkit=None, jobs=2, cmake=["-DB=2"],
    )  # fmt: skip
    assert found["CMAKE_ARGS"] == "-DA=1 -DB=2 -DSGL_KERNEL_COMPILE_THREADS=1"
    assert (found["TORCH_CUDA_ARCH_LIST"], found["CUDAARCHS"], found["PYTHONPATH"]) == ("9.0a", "90a-real", "")
    assert (found["MAX_JOBS"], found["CMAKE_BUILD_PARALLEL_LEVEL"]) == ("3", "2")
    assert found["PATH"] == "/env/bin:/usr/bin"
    assert subprocess.run([sys.executable, "-c", ""], env=found, check=False).returncode == 0
