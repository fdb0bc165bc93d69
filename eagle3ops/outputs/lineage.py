"""Which outputs belong to a run's drafter? Found in the run's record, or by what an output was made from."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3ops.errors import Eagle3opsError
from eagle3ops.outputs.values import mapping, number, text
from eagle3ops.runs.directory import RunDirectory
from eagle3ops.runs.files import read_json
from eagle3ops.runs.store import DONE, identity_of
from eagle3ops.spec.yamltree import read_tree
from eagle3ops.words import outcome_of

MAX_BYTES = 16 << 20
"""A record that is larger is none of ours."""
FINGERPRINT = re.compile(r"[0-9a-f]{8,64}")


@dataclass(frozen=True, slots=True)
class Output:
    """What one stage left."""

    stage: str
    folder: Path
    done: Mapping[str, Any]
    """Its `done.json`."""

    def made_from(self, stage: str) -> Mapping[str, Any]:
        """`out` and `identity` of the input that came from a stage."""
        return mapping(mapping(self.done.get("inputs")).get(stage))

    def verdicts(self) -> dict[str, tuple[bool | None, str]]:
        """Name -> passed (None is UNDECIDED), reason."""
        found = mapping(self.done.get("verdicts"))
        return {
            str(name): (outcome_of(value), text(value.get("reason"), 2000))
            for name, value in found.items()
            if isinstance(value, Mapping)
        }


@dataclass(frozen=True, slots=True)
class Target:
    """What a drafter was made for."""

    name: str
    fingerprint: str
    path: str


def stage_status(run: RunDirectory, stage: str) -> tuple[str, str | None]:
    """The status of a stage, and its key; an empty status when the run has no such stage."""
    found = run.state()["stages"].get(stage)
    if found is None:
        return "", None
    key = found.get("key")
    return str(found.get("status", "")), key if isinstance(key, str) and re.fullmatch(r"[0-9a-f]{16,64}", key) else None


def output_of(run: RunDirectory, stage: str) -> Output | None:
    """The finished output of a run's own stage."""
    status, key = stage_status(run, stage)
    if key is None or status not in ("done", "reused"):
        return None
    return output_in(run.root, stage, f"{stage}-{key[:16]}")


def output_in(root: Path, stage: str, name: object) -> Output | None:
    """The finished output in a folder of the store."""
    if not isinstance(name, str) or not re.fullmatch(rf"{stage}-[0-9a-f]{{1,64}}", name):
        return None
    folder = root / "stages" / name
    done = record(folder / DONE)
    return None if done is None else Output(stage, folder, done)


def input_of(root: Path, made: Output, stage: str) -> Output | None:
    """The output that another one was made from, if it is still there."""
    return output_in(root, stage, made.made_from(stage).get("out"))


def changed_since(root: Path, made: Output, stage: str) -> bool:
    """Whether an input has been made again since, with another outcome."""
    now = input_of(root, made, stage)
    return now is not None and identity_of(now.done) != made.made_from(stage).get("identity")


Served = tuple[str, ...]
"""Which drafter was served how: names and identities of the outputs of train and serve."""


def served(made: Output) -> Served | None:
    """What an output of verify or bench is about; None when it does not say."""
    told = tuple(text(made.made_from(stage).get(key)) for stage in ("train", "serve") for key in ("out", "identity"))
    return told if all(told) else None


def verdicts_on(verified: Iterable[Output]) -> dict[Served, Output]:
    """The newest output of verify about each drafter and its engine settings."""
    found: dict[Served, Output] = {}
    for made in sorted(verified, key=lambda made: number(made.done.get("finished")) or 0.0):
        about = served(made)
        if about is not None:
            found[about] = made
    return found


def outputs(root: Path, stage: str) -> Iterator[Output]:
    """All finished outputs of a stage."""
    for folder in sorted((root / "stages").glob(f"{stage}-*/")):
        found = output_in(root, stage, folder.name)
        if found is not None:
            yield found


def target_of(fetch: Output | None) -> Target | None:
    """The target that was fetched; None when its record is gone or makes no sense."""
    facts = None if fetch is None else record(fetch.folder / "target.json")
    fingerprint = text(mapping(facts).get("fingerprint"))
    if facts is None or not FINGERPRINT.fullmatch(fingerprint):
        return None
    path = facts.get("path")
    return Target(text(facts.get("name")) or fingerprint[:12], fingerprint, path if isinstance(path, str) else "")


def record(path: Path) -> dict[str, Any] | None:
    """The JSON object in a stage's file; None when it is missing, damaged or too large to be one."""
    try:
        if path.stat().st_size > MAX_BYTES:
            return None
    except OSError:
        return None
    return read_json(path)


def pipeline_of(run: RunDirectory) -> Mapping[str, Any]:
    """The run's pipeline file as plain data; empty when it cannot be read."""
    try:
        return mapping(read_tree(run.spec_file.read_bytes(), str(run.spec_file)).data)
    except (OSError, Eagle3opsError):
        return {}
