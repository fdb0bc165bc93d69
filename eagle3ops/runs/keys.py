"""Is a stage's output still what its inputs, its settings and its code would make? One key says it.

The key of a stage is the SHA-256 of what its result depends on: its spec, the pipeline sections that it reads, the keys
of the stages it needs, the source of the code it names, and the versions of the libraries that compute.
"""

import hashlib
import importlib.util
import json
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from eagle3ops.errors import Eagle3opsError
from eagle3ops.runs.job import Job, Registry
from eagle3ops.spec.models import Pipeline

LIBRARIES = ("torch", "transformers")


def stage_keys(pipeline: Pipeline, registry: Registry, also: Collection[str] = ()) -> dict[str, str]:
    """The key (64 hex digits) of every stage that `asked_for` names, upstream first."""
    keys: dict[str, str] = {}
    for name in asked_for(registry, also):
        keys[name] = stage_key(registry.job(name), pipeline, keys)
    return keys


def asked_for(registry: Registry, also: Collection[str] = ()) -> list[str]:
    """The stages of the pipeline, and jobs that stand apart from it with what they need, upstream first.

    Args:
        registry: where jobs come from.
        also: jobs; those that the pipeline runs anyhow change nothing.
    """
    wanted = {name for target in ("pipeline", *also) for name in registry.order(target)}
    return [name for name in registry.names() if name in wanted]


def stage_key(job: type[Job], pipeline: Pipeline, upstream: Mapping[str, str]) -> str:
    """The key of one stage, given the keys of those it needs."""
    content = {
        "job": job.name,
        "spec": pipeline.stages[job.name].model_dump(mode="json"),
        "reads": {name: _section(pipeline, name) for name in job.reads},
        "needs": {name: upstream[name] for name in job.needs},
        "code": {name: source_hash(name) for name in job.code},
        "versions": versions(),
        "files": [_content_hash(path) for path in job.files(pipeline.stages[job.name])],
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _content_hash(path: Path) -> str:
    """SHA-256 of a file; a file that cannot be read is told apart from every content."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        return f"unreadable: {error.strerror}"


def _section(pipeline: Pipeline, name: str) -> Any:
    if name.startswith("stages."):
        return pipeline.stages[name.removeprefix("stages.")].model_dump(mode="json")
    section = pipeline.model_dump(mode="json", by_alias=True)[name]
    if name == "engine":
        # On how many GPUs and machines, in how much of their memory: where a stage runs, not what it makes.
        for name in ("gpus", "replicas", "nodes", "memory_fraction"):
            section.pop(name)
        # Another environment is another version of the engine. Those who name none keep the keys they had.
        for name in ("python", "arguments", "environment", "attention_backend"):
            if not section[name]:
                section.pop(name)
    return section


@lru_cache(maxsize=1)
def versions() -> dict[str, str]:
    """Versions of the libraries that compute, where they are installed; found without importing them."""
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


@lru_cache(maxsize=256)
def source_hash(name: str) -> str:
    """SHA-256 over the Python source of a module, or of a package with all that is in it; nothing is imported.

    Raises:
        Eagle3opsError: there is no such module.
    """
    digest = hashlib.sha256()
    base = _locate(name)
    files: Sequence[Path] = [base] if base.is_file() else sorted(base.rglob("*.py"))
    for file in files:
        label = file.name if base.is_file() else file.relative_to(base).as_posix()
        content = file.read_bytes()
        digest.update(f"{label}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def _locate(name: str) -> Path:
    """File of a module or folder of a package. Walks down from the top package, which is looked up but not loaded."""
    top, *rest = name.split(".")
    spec = importlib.util.find_spec(top)
    if spec is None:
        raise Eagle3opsError(f"the code that a stage depends on is missing: there is no module {name!r}")
    if spec.submodule_search_locations:
        at = Path(next(iter(spec.submodule_search_locations)))
    else:
        at = Path(spec.origin or "")
    for part in rest:
        module = at / f"{part}.py"
        at = module if module.is_file() else at / part
    if not at.exists():
        raise Eagle3opsError(f"the code that a stage depends on is missing: there is no module {name!r}")
    return at
