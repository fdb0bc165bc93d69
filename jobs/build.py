"""build: compile kernels from source for a GPU, install them, and prove that they are what Python imports."""

import asyncio
import os
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field, field_validator

from eagle3ops.errors import Eagle3opsError, Refused, RequestError
from eagle3ops.runs.context import Context
from eagle3ops.runs.files import read_json, write_atomic, write_json
from eagle3ops.runs.job import Forecast, Job, Plan, PlanContext
from eagle3ops.spec.base import StageSpec
from eagle3ops.spec.models import Pipeline
from eagle3ops.spec.sizes import Size

if TYPE_CHECKING:
    from eagle3ops.building.built import Built
    from eagle3ops.building.preflight import Preflight, Wanted
    from eagle3ops.building.proof import Proof

LOG = "compile"
RESULT, PREFLIGHT = "build.json", "preflight.json"


class BuildSpec(StageSpec):
    """What is built."""

    source: str | None = None
    """Folder of the sources, an absolute path of the machine that builds."""
    package: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """The name that is imported, such as sgl_kernel; the one that the wheel holds when left out."""
    arch: str | None = None
    """The GPU, such as sm_90, sm_100 or sm_120; the one of this machine when left out."""
    python: str | None = None
    """The Python to build for; that of `engine.python` when left out."""
    install: bool = True
    """Put it into that Python's environment, in the place of what is there, and prove it."""
    isolation: bool = False
    """Let pip fetch the build's requirements into an environment of its own. Kernels need the torch that is there."""
    jobs: int | None = Field(default=None, ge=1, le=1024)
    """Compile jobs at once; as many as memory and cores allow when left out."""
    job_memory: Size = 4 << 30
    """What one compile job takes at its peak. Attention kernels take 8 GiB and more."""
    disk: Size = 8 << 30
    """What the build may take on the disk."""
    cuda_home: str | None = None
    """Folder of the CUDA toolkit; the one of nvcc when left out."""
    cmake: tuple[str, ...] = ()
    """Further options of CMake: `[-DSGL_KERNEL_ENABLE_SM100A=ON]`."""
    environment: Mapping[str, str] = Field(default_factory=dict)
    """Further variables of the build, such as CXX. They are kept with the run: nothing secret belongs here."""
    keep_tree: bool = False
    """Keep what was compiled beside the wheel, so that the next build of changed sources is shorter."""

    @field_validator("arch")
    @classmethod
    def _known(cls, value: str | None) -> str | None:
        from eagle3ops.building.architectures import parse_arch

        if value is not None:
            try:
                parse_arch(value)
            except RequestError as error:
                raise ValueError(f"{error.what}: {error.remedy}") from error
        return value

    @field_validator("source", "python", "cuda_home")
    @classmethod
    def _absolute(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(("/", "~/")):
            raise ValueError("an absolute path, or one that begins with ~/")
        return value


class Build(Job):
    """The wheel below `wheel/`, what was found in `preflight.json`, and the proof in `build.json`."""

    name: ClassVar[str] = "build"
    Spec: ClassVar[type[StageSpec]] = BuildSpec
    reads: ClassVar[tuple[str, ...]] = ("engine",)
    code: ClassVar[tuple[str, ...]] = ("eagle3ops.jobs.build", "eagle3ops.building")

    def plan(self, ctx: PlanContext) -> Plan:
        """Everything that can be told before: what is missing is a refusal."""
        from eagle3ops.building.preflight import preflight

        spec = ctx.spec
        assert isinstance(spec, BuildSpec)
        outputs = ("wheel/", RESULT, PREFLIGHT, "compile.log")
        try:
            wanted = wanted_by(ctx.pipeline, spec, ctx.out)
        except Eagle3opsError as error:
            return Plan(outputs=outputs, refusal=error)
        found = preflight(wanted, network=False)
        notes = [f"{one.name}: {one.value}" for one in found.findings if one.status in ("bad", "warn")]
        watchdog = ctx.pipeline.watchdog
        if watchdog.on and watchdog.action == "restart" and "compiling" not in watchdog.deadlines:
            notes.append(
                "the watchdog ends what compiles for longer than 45 min, as engines do; kernels can take hours: "
                "set watchdog.deadlines.compiling"
            )
        return Plan(
            inputs=(str(wanted.source.folder), wanted.python.path),
            outputs=outputs,
            forecast=Forecast(
                disk_bytes=spec.disk,
                memory_bytes=found.jobs.count * spec.job_memory,
                notes=tuple(notes),
            ),
            refusal=refusal(found),
        )

    def stale(self, out: Path) -> str | None:
        """The sources have changed, or something else is imported by now."""
        from eagle3ops.building.result import changed

        result = read_json(out / RESULT)
        if result is None:
            return f"{RESULT} is missing or damaged"
        return changed(result)

    async def run(self, ctx: Context) -> None:
        """Look, compile, install, prove."""
        from eagle3ops.building.built import read_built
        from eagle3ops.building.preflight import preflight
        from eagle3ops.building.result import result_of

        spec = ctx.spec
        assert isinstance(spec, BuildSpec)
        wanted = wanted_by(ctx.pipeline, spec, ctx.out)
        found = await asyncio.to_thread(preflight, wanted, network=True)
        write_json(
            ctx.out / PREFLIGHT, {"findings": [one.as_json() for one in found.findings], "jobs": found.jobs.count}
        )
        ctx.artifact(ctx.out / PREFLIGHT, note="what was looked at before the build")
        for one in found.findings:
            if one.status == "warn":
                ctx.warn(f"{one.name}: {one.value}; {one.remedy}")
        refused = refusal(found)
        if refused is not None:
            raise refused
        ctx.info(f"{wanted.python.path}, {wanted.arch or 'no GPU'}, MAX_JOBS {found.jobs.count}: {found.jobs.why}")
        started = time.monotonic()
        wheel = await compiled(ctx, spec, wanted, found)
        ctx.metric("build_seconds", time.monotonic() - started)
        built = await asyncio.to_thread(read_built, wheel)
        ctx.artifact(wheel, note=f"{len(built.libraries)} compiled files")
        proof = None
        if spec.install:
            await installed(ctx, wanted, found, wheel)
            proof = await asyncio.to_thread(proven, ctx.pipeline, spec, wanted, built)
            tell(ctx, proof)
        write_json(ctx.out / RESULT, result_of(wanted, built, proof) | {"variables": variables_of_import(ctx.pipeline)})
        ctx.artifact(ctx.out / RESULT, note="what was built, and the proof")
        ctx.identify(" ".join(library.sha256 for library in built.libraries) or wheel.name)
        if not spec.keep_tree:
            await asyncio.to_thread(shutil.rmtree, ctx.out / "tree", ignore_errors=True)


def python_of(pipeline: Pipeline, spec: BuildSpec) -> str:
    """The Python that is built for. Not resolved further: an environment is told by the name of its Python."""
    named = spec.python or pipeline.engine.python
    return sys.executable if named is None else str(Path(named).expanduser())


def wanted_by(pipeline: Pipeline, spec: BuildSpec, out: Path) -> "Wanted":
    """What is to be built, as it is here.

    Raises:
        RequestError: no sources, or no Python.
    """
    from eagle3ops.building.architectures import parse_arch
    from eagle3ops.building.environment import read_environment
    from eagle3ops.building.gpu import here
    from eagle3ops.building.limits import machine
    from eagle3ops.building.preflight import Wanted
    from eagle3ops.building.sources import read_source

    if spec.source is None:
        raise RequestError(
            "build: no sources are named",
            remedy="--set stages.build.source=/folder, the one that holds pyproject.toml, such as sglang/sgl-kernel",
        )
    source = read_source(Path(spec.source).expanduser())
    base = {**os.environ, **({"CUDA_HOME": str(Path(spec.cuda_home).expanduser())} if spec.cuda_home else {})}
    base |= {"CMAKE_ARGS": " ".join([*filter(None, [base.get("CMAKE_ARGS", "")]), *spec.cmake]), **spec.environment}
    arch = parse_arch(spec.arch) if spec.arch else here() if source.cuda else None
    return Wanted(
        source=source,
        python=read_environment(python_of(pipeline, spec), {**base, "PYTHONPATH": ""}),
        arch=arch if source.cuda else None,
        variables=base,
        work=out,
        disk=spec.disk,
        each=spec.job_memory,
        jobs=spec.jobs,
        machine=machine(),
        isolation=spec.isolation,
    )


def refusal(found: "Preflight") -> Refused | None:
    """Why it is not even begun: all of it at once, so that nobody comes back for each."""
    faults = found.faults
    if not faults:
        return None
    what = "; ".join(f"{one.name}: {one.value}" for one in faults)
    remedy = "; ".join(f"{one.name.removeprefix('build.')}: {one.remedy}" for one in faults)
    return Refused(f"this build would fail: {what}", remedy=remedy)


async def compiled(ctx: Context, spec: BuildSpec, wanted: "Wanted", found: "Preflight") -> Path:
    """Build the wheel; what an attempt that was ended has compiled is taken up again.

    Raises:
        Eagle3opsError: it failed, with the first error of the compilers.
    """
    from eagle3ops.building.recipe import tree_of, wheel_command
    from eagle3ops.building.watched import watched

    folder = ctx.out / "wheel"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    tree = await asyncio.to_thread(tree_of, wanted.source, ctx.out)
    argv = wheel_command(wanted.python.path, wanted.source, tree, ctx.out, isolation=spec.isolation)
    begin = await watched(ctx, argv, LOG, variables_of(spec, wanted, found), found.jobs.count)
    log = ctx.run_dir / "logs" / f"{LOG}.log"
    with log.open("rb") as file:
        file.seek(begin)
        write_atomic(ctx.out / "compile.log", file.read().decode("utf-8", "replace"), sync=False)
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise Eagle3opsError(f"the build made {len(wheels)} wheels in {folder}", remedy=f"its log is {log}")
    return wheels[0]


def variables_of(spec: BuildSpec, wanted: "Wanted", found: "Preflight") -> dict[str, str]:
    """The whole environment of the build."""
    from eagle3ops.building.recipe import variables

    return variables(
        {name: text for name, text in wanted.variables.items() if name != "CMAKE_ARGS"}
        | ({"CMAKE_ARGS": os.environ["CMAKE_ARGS"]} if os.environ.get("CMAKE_ARGS") else {}),
        spec.environment,
        python=wanted.python.path,
        source=wanted.source,
        arch=wanted.arch,
        toolkit=found.toolkit,
        jobs=found.jobs.count,
        cmake=spec.cmake,
    )


async def installed(ctx: Context, wanted: "Wanted", found: "Preflight", wheel: Path) -> None:
    """Put the wheel into the environment.

    Raises:
        Eagle3opsError: pip could not.
    """
    from eagle3ops.building.recipe import install_command
    from eagle3ops.building.watched import watched

    variables = {**wanted.variables, "PYTHONPATH": "", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
    await watched(ctx, install_command(wanted.python.path, wheel), "install", variables, found.jobs.count)


def proven(pipeline: Pipeline, spec: BuildSpec, wanted: "Wanted", built: "Built") -> "Proof":
    """The proof, asked as an engine is started: without PYTHONPATH, with the engine's variables.

    Raises:
        RequestError: the wheel holds several packages, and none was named.
    """
    from eagle3ops.building.imported import ask
    from eagle3ops.building.proof import prove

    package = package_of(spec, built)
    found = ask(wanted.python.path, package, variables=variables_of_import(pipeline), load=True)
    return prove(found, wanted.arch, built)


def variables_of_import(pipeline: Pipeline) -> dict[str, str]:
    """Those that decide what an engine imports."""
    return {"PYTHONPATH": "", **pipeline.engine.environment}


def package_of(spec: BuildSpec, built: "Built") -> str:
    """The name that is imported."""
    if spec.package is not None:
        return spec.package
    with_code = {library.name.partition("/")[0].partition(".")[0] for library in built.libraries}
    names = [name for name in built.packages if name in with_code] or list(built.packages)
    if len(names) != 1:
        raise RequestError(
            f"{built.path.name} holds {', '.join(names) or 'no package'}",
            remedy="name the one that is meant: stages.build.package",
        )
    return names[0]


def tell(ctx: Context, proof: "Proof") -> None:
    """The proof as a verdict."""
    from eagle3ops.building.proof import lines

    for line in lines(proof):
        ctx.info(line)
    first = proof.imported.first
    reason = (
        "; ".join(f"{one.what} -> {one.remedy}" for one in proof.problems)
        if proof.problems
        else f"{proof.imported.package} is imported from {first.folder if first else '?'}, as it was built"
        + (f", with code for {proof.arch}" if proof.arch else "")
    )
    ctx.verdict("kernels", proof.passed, reason, proof.as_json())
