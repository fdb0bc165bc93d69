"""A pipeline names files of this machine: how do they come to be on the host that runs it?

A file that the host has at the same path, with the same content, is left where it is. Another one is sent to
`uploads/<first 16 digits of its sha256>/` below the root there, and the pipeline that is sent names that place.
"""

import asyncio
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from eagle3ops.errors import RequestError
from eagle3ops.hosts.transfer import Caller, put
from eagle3ops.runs.job import load_registry
from eagle3ops.runs.store import file_hash
from eagle3ops.spec.models import Pipeline


async def with_files_there(caller: Caller, pipeline: Pipeline, tell: Callable[[str], None]) -> Pipeline:
    """The pipeline as the host is to see it, once every file of this machine that it names is there.

    Args:
        caller: asks the agent of the host.
        pipeline: as it was read here; its paths are absolute.
        tell: told which file goes where.

    Raises:
        RequestError: the host has another file at a path that is meant to be one of this machine.
        Eagle3opsError: a file cannot be read here or written there.
    """
    registry = load_registry()
    stages = dict(pipeline.stages)
    for name, spec in pipeline.stages.items():
        places: dict[str, str] = {}
        for path in registry.job(name).files(spec):
            if path.is_file():
                places |= await _bring(caller, path, _named(spec.model_dump(mode="json"), path), tell)
        if places:
            stages[name] = type(spec).model_validate(_moved(spec.model_dump(mode="json"), places))
    return pipeline.model_copy(update={"stages": stages})


def _named(settings: Any, path: Path) -> Path:
    """What the settings name: the file, or the folder that it stands for."""
    return path if str(path) in _texts(settings) else path.parent


def _texts(value: Any) -> set[str]:
    if isinstance(value, Mapping):
        return {text for item in value.values() for text in _texts(item)}
    if isinstance(value, list):
        return {text for item in value for text in _texts(item)}
    return {value} if isinstance(value, str) else set()


async def _bring(caller: Caller, path: Path, named: Path, tell: Callable[[str], None]) -> dict[str, str]:
    """Send what `named` stands for, unless it is there; returns its path here -> its path there."""
    digest = await asyncio.to_thread(file_hash, path)
    there = await caller.call("file.stat", path=str(path), sha256=True)
    if there.get("exists"):
        if there.get("sha256") == digest:
            return {}
        raise RequestError(
            f"{path}: this machine and the host have different files of that name",
            remedy="rename the one here, or copy the right one to the host yourself",
        )
    folder = f"uploads/{digest[:16]}"
    files = await asyncio.to_thread(_files, named)
    base = named.parent
    where = ""
    for file in files:
        relative = file.relative_to(base).as_posix()
        tell(f"{file}: sent to the host, {file.stat().st_size:,} bytes")
        sent = await put(caller, file, f"{folder}/{relative}", overwrite=True)
        where = sent.path
    ending = files[-1].relative_to(named).as_posix() if files else ""
    return {str(named): where if named == path else where.removesuffix(f"/{ending}")}


def _files(named: Path) -> list[Path]:
    """The files that make up what is named: those of its folders too, without folders that hide (`.git`)."""
    if named.is_file():
        return [named]
    found: list[Path] = []
    for place, folders, names in os.walk(named, onerror=_refuse):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [Path(place, name) for name in sorted(names)]
    for file in found:
        if not file.is_file():
            why = "a link that leads nowhere" if file.is_symlink() else "not a file"
            raise RequestError(
                f"{file}: {why}, so {named} cannot be sent whole", remedy="fetch it again, or take it out"
            )
    return found


def _refuse(error: OSError) -> None:
    raise RequestError(f"{error.filename}: cannot be read: {error.strerror}") from error


def _moved(value: Any, places: Mapping[str, str]) -> Any:
    if isinstance(value, Mapping):
        return {key: _moved(item, places) for key, item in value.items()}
    if isinstance(value, list):
        return [_moved(item, places) for item in value]
    return places.get(value, value) if isinstance(value, str) else value
