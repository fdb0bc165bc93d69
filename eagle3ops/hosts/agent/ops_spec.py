"""Ops about pipeline files: what may stand in one, what is wrong with this one, which one did a run have?"""

import re
from typing import Any

from eagle3ops import __version__
from eagle3ops.errors import Eagle3opsError, RequestError
from eagle3ops.hosts.agent.operation import Surroundings, operation

MOST_PROBLEMS = 100


def schema(here: Surroundings) -> dict[str, Any]:
    """The JSON Schema of pipeline files by this version, the jobs in order, and the files that come with it."""
    from eagle3ops.runs.job import load_registry
    from eagle3ops.spec.bundled import bundled
    from eagle3ops.spec.schema import json_schema

    registry = load_registry()
    return {
        "version": __version__,
        "schema": json_schema(registry.specs()),
        "jobs": ["pipeline", *registry.names()],
        "bundled": [
            {"name": name, "text": item.read_text(encoding="utf-8")} for name, item in sorted(bundled().items())
        ],
    }


def check(here: Surroundings, *, spec_text: str, source: str = "pipeline") -> dict[str, Any]:
    """Everything that is wrong with a pipeline file; what is wrong is part of the answer, not an error of the op."""
    from eagle3ops.runs.job import load_registry
    from eagle3ops.spec.load import find_problems

    found = find_problems(spec_text, source, load_registry().specs())
    place = re.compile(re.escape(source) + r":(\d+):(\d+): ")
    problems = []
    for error in found[:MOST_PROBLEMS]:
        at = place.match(error.what)
        problems.append(
            {
                "what": error.what,
                "remedy": error.remedy,
                "path": list(error.path),
                "line": int(at[1]) if at else None,
                "column": int(at[2]) if at else None,
            }
        )
    return {"problems": problems, "left_out": max(0, len(found) - MOST_PROBLEMS)}


def of_run(here: Surroundings, *, run: str) -> dict[str, Any]:
    """The pipeline file that a run had, complete, with what else was asked for then.

    Raises:
        RequestError: there is no such run, or its file is gone.
    """
    from eagle3ops.runs.directory import find_run
    from eagle3ops.spec.yamltree import MAX_BYTES

    found = find_run(here.root, run)
    try:
        with found.spec_file.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise RequestError(
            f"{found.run_id}: its pipeline file cannot be read: {error.strerror}", remedy="choose another run"
        ) from error
    if len(text) > MAX_BYTES:
        raise RequestError(f"{found.run_id}: its pipeline file is larger than {MAX_BYTES} bytes")
    request: dict[str, Any] = {}
    try:
        request = dict(found.request())
    except Eagle3opsError:
        # The file alone is good enough to start from.
        request = {}
    return {
        "run": found.run_id,
        "path": str(found.spec_file),
        "text": text.decode("utf-8", errors="replace"),
        "job": str(request.get("job") or "pipeline"),
        "source": str(request.get("source") or ""),
    }


OPERATIONS = (
    operation("spec.schema", schema),
    operation("spec.check", check),
    operation("spec.of_run", of_run),
)
