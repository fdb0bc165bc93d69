"""Who takes part in a comparison? Drafters from anywhere, linted before they are served, on one engine or several."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field, field_validator

from eagle3ops.bench.cases import BASELINE
from eagle3ops.bench.lineup import shared
from eagle3ops.engines.footprint import engine_version
from eagle3ops.errors import RequestError
from eagle3ops.jobs.serve.job import ServeStageSpec, SpeculationSpec, serve_spec
from eagle3ops.locations import expanded
from eagle3ops.runs.context import Context
from eagle3ops.runs.directory import find_run
from eagle3ops.spec.base import StageSpec
from eagle3ops.spec.models import EngineSpec
from eagle3ops.targets import read_target_info

if TYPE_CHECKING:
    from eagle3ops.engines.base import ServeSpec

OURS, RUN = "ours", "run:"


class CompareSpec(StageSpec):
    """Who is compared, and on how much. The target alone, without a drafter, always takes part."""

    drafters: tuple[str, ...] = (OURS,)
    """`ours` (this pipeline's), `run:ID` (that of an earlier run), or the folder of a checkpoint; `NAME=` before it
    gives it a name of one's own."""
    settings: tuple[SpeculationSpec, ...] = ()
    """Every drafter takes part with each of them; the one that is served when left out."""
    engines: tuple[EngineSpec, ...] = ()
    """Engines to compare, each with every drafter; the pipeline's when left out."""
    prompts: int = Field(default=40, ge=2)
    """Held-out prompts that everyone answers."""
    max_new_tokens: int = Field(default=128, ge=8)
    natural_stop: bool = True
    concurrency: int = Field(default=1, ge=1, le=1024)
    rounds: int = Field(default=1, ge=1)

    @field_validator("drafters")
    @classmethod
    def _absolute(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        # The run may be started, or resumed, from another folder.
        found = []
        for text in value:
            name, separator, place = text.rpartition("=")
            if not place:
                raise ValueError(f"{text!r} names no drafter")
            if place != OURS and not place.startswith(RUN):
                place = str(expanded(place).absolute())
            found.append(name + separator + place)
        if not found:
            raise ValueError("nobody is compared: name at least one drafter")
        if len(set(found)) != len(found):
            raise ValueError("a drafter is named twice")
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Contender:
    """One server of the comparison; `drafter` is None for the target alone."""

    label: str
    engine: EngineSpec
    drafter: Path | None
    speculation: SpeculationSpec | None


def contenders(
    spec: CompareSpec, stage: ServeStageSpec, engine: EngineSpec, inputs: Mapping[str, Path], root: Path
) -> list[Contender]:
    """The target alone first, then every drafter at every setting, and that for every engine.

    Raises:
        RequestError: a drafter does not exist, or lint finds that an engine would not serve it as it was trained.
    """
    target = read_target_info(inputs["fetch"]).path
    settings = spec.settings or (stage.speculation,)
    engines = spec.engines or (engine,)
    found: list[Contender] = []
    for one in engines:
        mark = f" @{one.name}" if len(engines) > 1 else ""
        found.append(Contender(BASELINE if one is engines[0] else BASELINE + mark, one, None, None))
        for text in spec.drafters:
            folder = drafter_folder(place_of(text), inputs, root)
            if place_of(text) != OURS:
                refuse_unfit(text, folder, target, one)
            found += [Contender(f"{name_of(text)} {setting.label}{mark}", one, folder, setting) for setting in settings]
    labels = [one.label for one in found]
    if twice := next((label for label in labels if labels.count(label) > 1), None):
        raise RequestError(
            f"stages.compare: two contenders are called {twice!r}",
            remedy="give the drafters names: stages.compare.drafters: [mine=/path, other=/path]",
        )
    return found


def place_of(text: str) -> str:
    return text.rpartition("=")[2]


def name_of(text: str) -> str:
    name, _, place = text.rpartition("=")
    return name or (Path(place).name if place.startswith("/") else place.removeprefix(RUN)) or place


def drafter_folder(place: str, inputs: Mapping[str, Path], root: Path) -> Path:
    """Where a drafter's `config.json` and weights lie.

    Raises:
        RequestError: there is no such run, it has trained none, or there is no such folder.
    """
    if place == OURS:
        return inputs["train"] / "drafter"
    if place.startswith(RUN):
        from eagle3ops.outputs.stages import stage_output

        run = find_run(root, place.removeprefix(RUN))
        output = stage_output(run, "train")
        if not output.done or output.folder is None or not (output.folder / "drafter").is_dir():
            raise RequestError(
                f"stages.compare.drafters: run {run.run_id} has no drafter: {output.words or 'none is there'}",
                remedy="name a run whose train stage is done, or the folder of a checkpoint",
            )
        return output.folder / "drafter"
    folder = Path(place)
    if not (folder / "config.json").is_file():
        raise RequestError(
            f"stages.compare.drafters: {folder}: no checkpoint (config.json) there",
            remedy="name the folder that holds config.json and model.safetensors, `ours`, or `run:ID`",
        )
    return folder


def refuse_unfit(text: str, folder: Path, target: Path, engine: EngineSpec) -> None:
    """Return if nothing is known to be wrong with a drafter from elsewhere.

    Raises:
        RequestError: the worst finding, with what mends it.
    """
    from eagle3ops.wiring.lint.lint import lint

    findings = [
        one for one in lint(folder, target, engine.name, engine_version(engine, target)) if one.severity == "error"
    ]
    if findings:
        first = findings[0]
        more = f" ({len(findings) - 1} more: eagle3ops lint shows them)" if len(findings) > 1 else ""
        raise RequestError(
            f"stages.compare.drafters: {text}: {first.where}: {first.what}: {first.cause}{more}", remedy=first.fix
        )


def server(ctx: Context, stage: ServeStageSpec, one: Contender, rows: int, length: int) -> "ServeSpec":
    """What is started for a contender."""
    pipeline = ctx.pipeline.model_copy(update={"engine": one.engine})
    plain = stage.model_copy(update={"port": None, "aux_layers": None})
    made = serve_spec(replace(ctx, pipeline=pipeline), plain, one.speculation)
    return shared(replace(made, drafter=one.drafter), rows, length)
