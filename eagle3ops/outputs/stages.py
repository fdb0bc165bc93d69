"""Where did a stage of a run leave its output, and if nowhere, why?"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from eagle3ops.runs.directory import RunDirectory
from eagle3ops.runs.files import read_json

SPEC_BYTES = 1 << 20
"""A resolved pipeline file is some kilobytes; nothing larger is read."""

_WORDS = {
    "running": "the {} stage is running",
    "failed": "the {} stage failed",
    "cancelled": "the {} stage was cancelled",
    "interrupted": "the {} stage was interrupted",
}


@dataclass(frozen=True, slots=True)
class StageOutput:
    """One stage of a run."""

    name: str
    status: str
    """As in `state.json`; `waiting` where nothing is said of it."""
    folder: Path | None
    """Where it wrote or writes; None when nothing is there."""
    words: str
    """Why its output is not there or not whole; empty when it is done."""

    @property
    def done(self) -> bool:
        """Whether it finished and its folder is there."""
        return not self.words


def stage_output(run: RunDirectory, name: str) -> StageOutput:
    """The output of a stage, found below the run's own root first: a root may have been moved or copied."""
    stages = run.state()["stages"]
    stage = stages.get(name)
    if stage is None:
        made_before = _read_by_others(run, name, stages)
        if made_before is not None:
            return StageOutput(name, "reused", made_before, "")
        return StageOutput(name, "waiting", None, f"the {name} stage has not run yet")
    status = str(stage.get("status", "waiting"))
    folder = _folder(run, name, stage)
    if status in ("done", "reused"):
        return StageOutput(name, status, folder, "" if folder is not None else f"the output of {name} is gone")
    if status == "running" and not run.alive():
        status = "interrupted"
    return StageOutput(name, status, folder, _WORDS.get(status, "the {} stage has not run yet").format(name))


def _folder(run: RunDirectory, name: str, stage: dict[str, Any]) -> Path | None:
    store = run.root / "stages"
    out, key = stage.get("out"), stage.get("key")
    places = []
    if isinstance(out, str) and out and "\0" not in out:
        places += [store / Path(out).name, Path(out)]
    if isinstance(key, str) and key.isalnum():
        places.append(store / f"{name}-{key[:16]}")
    return next((place for place in places if place.is_dir()), None)


def _read_by_others(run: RunDirectory, name: str, stages: dict[str, Any]) -> Path | None:
    """A run of a single stage says in that stage's `done.json` which earlier outputs it was made from."""
    for other, stage in stages.items():
        folder = _folder(run, other, stage)
        done = read_json(folder / "done.json") if folder is not None else None
        out = setting(done or {}, "inputs", name, "out")
        if isinstance(out, str) and out and "\0" not in out:
            place = run.root / "stages" / Path(out).name
            if place.is_dir():
                return place
    return None


def spec_of(run: RunDirectory) -> dict[str, Any]:
    """The run's pipeline as plain data; empty where `spec.yaml` cannot be read."""
    try:
        with run.spec_file.open("rb") as file:
            found = yaml.safe_load(file.read(SPEC_BYTES))
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def setting(spec: dict[str, Any], *path: str) -> Any:
    """A value of a pipeline by its keys; None where one of them is not there."""
    at: Any = spec
    for key in path:
        at = at.get(key) if isinstance(at, dict) else None
    return at
