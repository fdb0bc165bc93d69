"""What would stop this build late? Everything that can be told before it starts, each with its remedy."""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion

from eagle3ops.building.architectures import Arch, Code, runs_on
from eagle3ops.building.environment import Environment, normalised
from eagle3ops.building.limits import Jobs, Machine, compile_jobs
from eagle3ops.building.sources import SCIKIT, Source
from eagle3ops.building.toolchain import Toolkit, ask_version, find_compiler, find_toolkit, program
from eagle3ops.hosts.doctor.checks_disk import existing, mount_of, parse_mounts
from eagle3ops.hosts.doctor.checks_tools import libraries
from eagle3ops.hosts.doctor.finding import Finding, absent, bad, ok, warn
from eagle3ops.hosts.doctor.probing import NoAnswer, first_line, read_text, run, version_key
from eagle3ops.words import human_bytes, plain

_NETWORK_S = 15.0
_NUMA = "install libnuma-dev (Debian, Ubuntu) or numactl-devel, which bring numa.h and libnuma"
_CUDA = "install the CUDA toolkit that torch was built with, and name its folder: stages.build.cuda_home"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be built, where, and with what."""

    source: Source
    python: Environment
    arch: Arch | None
    variables: Mapping[str, str]
    """Of the build's environment, all of them."""
    work: Path
    """Where it is built."""
    disk: int
    """Bytes that the build tree may take."""
    each: int
    """Bytes of memory for one compile job."""
    jobs: int | None
    machine: Machine
    isolation: bool

    @property
    def search(self) -> str:
        """Where programs are found: beside the Python first, as pip's build does."""
        return os.pathsep.join((str(Path(self.python.path).parent), self.variables.get("PATH", os.defpath)))


@dataclass(frozen=True, slots=True)
class Preflight:
    """The findings, and what was found on the way."""

    findings: tuple[Finding, ...]
    toolkit: Toolkit | None
    jobs: Jobs

    @property
    def faults(self) -> list[Finding]:
        """Those that would stop the build."""
        return [one for one in self.findings if one.status == "bad"]


def preflight(wanted: Wanted, *, network: bool) -> Preflight:
    """Look at everything. With `network`, also whether the places answer that sources are fetched from."""
    toolkit = find_toolkit(wanted.variables, wanted.search) if wanted.source.cuda else None
    jobs = compile_jobs(wanted.machine, wanted.each, wanted.jobs)
    findings = [
        *_source(wanted.source),
        *_backend(wanted),
        *_compiler(wanted, toolkit),
        *(_cuda(wanted, toolkit) if wanted.source.cuda else ()),
        *_tools(wanted),
        *_numa(wanted.source, wanted.variables),
        _headers(wanted.python),
        *_space(wanted),
        _memory(jobs),
        *_fetched(wanted, network),
        _ccache(wanted),
    ]
    return Preflight(tuple(findings), toolkit, jobs)


def _source(source: Source) -> list[Finding]:
    found = [ok("build.source", f"{source.folder}, {source.backend}{', CUDA' if source.cuda else ''}")]
    if source.submodules:
        remedy = f"git -C {source.folder} submodule update --init --recursive"
        found.append(bad("build.submodules", f"not fetched: {', '.join(source.submodules[:8])}", remedy))
    return found


def _backend(wanted: Wanted) -> list[Finding]:
    python = wanted.python
    if python.pip is None:
        remedy = f"{python.path} -m ensurepip, or with uv: uv pip install --python {python.path} pip"
        return [bad("build.pip", f"{python.path} has no pip", remedy)]
    found = [ok("build.pip", f"{python.pip}, {python.path}")]
    if wanted.isolation:
        return [*found, ok("build.backend", "is fetched by pip into an environment of its own (isolation)")]
    missing = missing_requirements(wanted.source.requires, python.packages)
    if missing:
        names = " ".join(f"'{one}'" for one in missing)
        remedy = f"{python.path} -m pip install {names}, or set stages.build.isolation: true"
        return [*found, bad("build.backend", f"the build requires {', '.join(missing)}", remedy)]
    return [*found, ok("build.backend", ", ".join(wanted.source.requires) or "nothing is required")]


def missing_requirements(requires: Sequence[str], packages: Mapping[str, str]) -> list[str]:
    """Those of a build's requirements that an environment does not meet; what cannot be read is left to the build."""
    missing = []
    for text in requires:
        try:
            one = Requirement(text)
            if one.marker is not None and not one.marker.evaluate():
                continue
            version = packages.get(normalised(one.name))
            if version is None or not one.specifier.contains(version, prereleases=True):
                missing.append(plain(text))
        except (InvalidRequirement, InvalidVersion):
            continue
    return missing


def _compiler(wanted: Wanted, toolkit: Toolkit | None) -> list[Finding]:
    found = find_compiler(wanted.variables, wanted.search)
    if found is None:
        named = next(
            (wanted.variables[key] for key in ("NVCC_CCBIN", "CUDAHOSTCXX", "CXX") if wanted.variables.get(key)), ""
        )
        what = f"{named} is no compiler that answers" if named else "no C++ compiler"
        return [bad("build.compiler", what, "install g++ (Debian, Ubuntu: build-essential), or name one: CXX")]
    value = f"{found.kind} {found.version}, {found.path}"
    major = (version_key(found.version) or (0,))[0]
    if toolkit is not None and found.kind == "gcc" and toolkit.newest_gcc is not None and major > toolkit.newest_gcc:
        older = toolkit.newest_gcc
        remedy = f"install g++-{older} and set CXX=g++-{older} NVCC_CCBIN=g++-{older} (stages.build.environment)"
        return [bad("build.compiler", f"{value}: nvcc {toolkit.version} takes gcc up to {older}", remedy)]
    if toolkit is not None and found.kind == "clang" and toolkit.clangs is not None:
        low, high = toolkit.clangs
        if not low <= major < high:
            remedy = "take another with CXX and NVCC_CCBIN (stages.build.environment)"
            return [bad("build.compiler", f"{value}: nvcc {toolkit.version} takes clang {low} to {high - 1}", remedy)]
    return [ok("build.compiler", value)]


def _cuda(wanted: Wanted, toolkit: Toolkit | None) -> list[Finding]:
    if toolkit is None:
        return [bad("build.nvcc", "no nvcc that answers, on PATH or in CUDA_HOME", _CUDA)]
    found = [ok("build.nvcc", f"{toolkit.version}, {toolkit.nvcc}")]
    if toolkit.wrapper is not None:
        remedy = f"nothing to do: the build gets CUDA_HOME={toolkit.home} and that folder first on PATH"
        found.append(
            warn("build.nvcc_wrapper", f"{toolkit.wrapper} only calls it: libraries are not beside it", remedy)
        )
    version, cuda = wanted.python.torch, wanted.python.torch_cuda
    needs = any(one.lower().startswith("torch") for one in wanted.source.requires) or version is not None
    if needs and version is None and not wanted.isolation:
        found.append(bad("build.torch", "the build requires torch, which is not installed", _CUDA))
    elif version is not None and cuda is None:
        remedy = "install a torch that was built with CUDA; extensions are linked against its libraries"
        found.append(bad("build.torch", f"torch {version} was built without CUDA", remedy))
    elif version is not None and cuda is not None:
        theirs, ours = version_key(cuda)[:2], version_key(toolkit.version)[:2]
        value = f"torch {version} was built with CUDA {cuda}, nvcc is {toolkit.version}"
        if theirs[:1] != ours[:1]:
            found.append(bad("build.torch", value, f"torch refuses another major version: {_CUDA}"))
        elif theirs != ours:
            found.append(warn("build.torch", value, f"works as a rule; if symbols are missing at import: {_CUDA}"))
        else:
            found.append(ok("build.torch", value))
    return [*found, *_architecture(wanted, toolkit)]


def _architecture(wanted: Wanted, toolkit: Toolkit) -> list[Finding]:
    arch = wanted.arch
    if arch is None:
        remedy = "name the GPU that it is built for: stages.build.arch: sm_90"
        return [bad("build.arch", "no GPU is here, and none was named", remedy)]
    if toolkit.architectures and arch.plain not in toolkit.architectures:
        known = ", ".join(str(one) for one in sorted(toolkit.architectures))
        return [
            bad("build.arch", f"nvcc {toolkit.version} does not know {arch}; it knows {known}", f"a newer one: {_CUDA}")
        ]
    named = wanted.source.targets
    if named and not any(runs_on(Code(one), arch) for one in named):
        listed = ", ".join(map(str, named))
        remedy = f"add {arch} to its -gencode options, or see whether an option of its CMakeLists.txt does"
        return [warn("build.arch", f"the build files name {listed} themselves, and nothing for {arch}", remedy)]
    return [ok("build.arch", f"{arch}{', which the build files name themselves' if named else ''}")]


def _tools(wanted: Wanted) -> list[Finding]:
    source, found = wanted.source, []
    search = wanted.search
    if source.cmake is not None:
        path = program("cmake", search)
        version = ask_version(path) if path else None
        remedy = f"{wanted.python.path} -m pip install 'cmake>={source.cmake}'"
        if version is None:
            # scikit-build-core fetches one itself, but only into an environment of its own.
            found.append(
                (warn if wanted.isolation else bad)("build.cmake", f"not found; {source.cmake} is needed", remedy)
            )
        elif version_key(version) < version_key(source.cmake):
            found.append(bad("build.cmake", f"{version}, {path}; {source.cmake} is needed", remedy))
        else:
            found.append(ok("build.cmake", f"{version}, {path}"))
    ninja = program("ninja", search)
    if ninja is not None:
        found.append(ok("build.ninja", f"{ask_version(ninja) or 'version unknown'}, {ninja}"))
    else:
        remedy = f"{wanted.python.path} -m pip install ninja"
        needs = source.backend == SCIKIT and program("make", search) is None
        text = "not found; without it files are compiled one after another, or by make without counting well"
        found.append((bad if needs else warn)("build.ninja", text, remedy))
    if source.compile_threads is not None and source.compile_threads not in wanted.variables.get("CMAKE_ARGS", ""):
        remedy = f"nothing to do: the build gets -D{source.compile_threads}=1; stages.build.cmake sets another number"
        text = f"{source.compile_threads} starts several compilers for each job, and so takes as many times its memory"
        found.append(warn("build.threads", text, remedy))
    return found


def _numa(source: Source, variables: Mapping[str, str]) -> list[Finding]:
    folders = [*variables.get("CPATH", "").split(os.pathsep), "/usr/include", "/usr/local/include"]
    header = next((str(path) for one in folders if one and (path := Path(one, "numa.h")).is_file()), None)
    library = next(iter(libraries().get("libnuma.so.1", [])), None)
    if header is not None:
        return [ok("build.numa", f"{header}, {library or 'libnuma not in the linker cache'}")]
    if source.numa:
        return [bad("build.numa", "the sources include numa.h, which is not there", _NUMA)]
    return [
        absent("build.numa", "numa.h not found; these sources do not name it", f"if it is missed after all: {_NUMA}")
    ]


def _headers(python: Environment) -> Finding:
    header = Path(python.include, "Python.h")
    if header.is_file():
        return ok("build.python_headers", str(header))
    remedy = f"install the headers of Python {python.version} (Debian, Ubuntu: python3-dev)"
    return bad("build.python_headers", f"{header} is not there", remedy)


def _space(wanted: Wanted) -> list[Finding]:
    found = []
    temporary = Path(wanted.variables.get("TMPDIR") or "/tmp")
    for name, folder, needed in (("build.disk", wanted.work, wanted.disk), ("build.tmp", temporary, 1 << 30)):
        place = existing(folder)
        facts = os.statvfs(place)
        free = facts.f_bavail * facts.f_frsize
        value = f"{folder}: {human_bytes(free)} free, {human_bytes(needed)} wanted"
        mount = mount_of(os.path.realpath(place), parse_mounts(read_text("/proc/self/mountinfo")))
        if not os.access(place, os.W_OK):
            found.append(
                bad(name, f"{folder} cannot be written", "another --root, or TMPDIR in stages.build.environment")
            )
        elif free < needed:
            remedy = "free some, or take another disk: --root for the build, TMPDIR for what compilers keep meanwhile"
            found.append(bad(name, value, f"{remedy}; stages.build.disk says how much is wanted"))
        elif mount is not None and mount.noexec:
            remedy = "CMake runs what it compiles: take a folder on a mount without noexec (--root, TMPDIR)"
            found.append(bad(name, f"{folder} lies on a mount with noexec", remedy))
        else:
            found.append(ok(name, value))
    return found


def _memory(jobs: Jobs) -> Finding:
    value = f"MAX_JOBS {jobs.count}: {jobs.why}"
    if jobs.tight:
        remedy = "free memory, set stages.build.jobs lower, or stages.build.job_memory if a job takes less"
        return warn("build.memory", value, remedy)
    return ok("build.memory", value)


def _fetched(wanted: Wanted, network: bool) -> list[Finding]:
    source, git = wanted.source, program("git", wanted.search)
    pending = [
        one for one in source.fetched if f"FETCHCONTENT_SOURCE_DIR_{one.name.upper()}" not in _cmake_args(wanted)
    ]
    repositories = [one for one in pending if not one.url.lower().endswith((".zip", ".gz", ".xz", ".bz2", ".tgz"))]
    if not pending:
        return [ok("build.git", git) if git else absent("build.git", "not found; nothing is fetched", "install git")]
    if repositories and git is None:
        return [
            bad("build.git", f"not found; CMake fetches {', '.join(one.name for one in repositories)}", "install git")
        ]
    found = [ok("build.git", git)] if git else []
    names = ", ".join(one.name for one in pending)
    if not network or git is None or not repositories:
        return [*found, ok("build.network", f"CMake fetches {names}")]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda one: _answers(git, one.url, wanted.variables), repositories))
    silent = [f"{one.url} ({answer})" for one, answer in zip(repositories, answers, strict=True) if answer]
    if silent:
        one = repositories[next(at for at, answer in enumerate(answers) if answer)]
        remedy = (
            "mend the network or the proxy (https_proxy), or fetch them elsewhere and name the folder: "
            f"stages.build.cmake: [-DFETCHCONTENT_SOURCE_DIR_{one.name.upper()}=/folder]"
        )
        return [*found, bad("build.network", f"CMake fetches {names}; no answer: {'; '.join(silent[:4])}", remedy)]
    return [*found, ok("build.network", f"CMake fetches {names}; all answer")]


def _cmake_args(wanted: Wanted) -> str:
    return wanted.variables.get("CMAKE_ARGS", "").upper()


def _answers(git: str, url: str, variables: Mapping[str, str]) -> str | None:
    """Why a repository does not answer, or None."""
    try:
        quiet = {**variables, "GIT_TERMINAL_PROMPT": "0", "GIT_SSH_COMMAND": "ssh -oBatchMode=yes"}
        ran = run([git, "ls-remote", "--exit-code", url, "HEAD"], limit=_NETWORK_S, env=quiet)
    except (OSError, NoAnswer) as error:
        return str(error)[:200] if isinstance(error, OSError) else f"nothing within {_NETWORK_S:.0f} s"
    return None if ran.code == 0 else plain(first_line(ran.output))[:200] or f"git: exit {ran.code}"


def _ccache(wanted: Wanted) -> Finding:
    path = program("ccache", wanted.search)
    if path is not None:
        return ok("build.ccache", path)
    return absent(
        "build.ccache", "not found", "with it a second build takes what did not change from a cache: install ccache"
    )
