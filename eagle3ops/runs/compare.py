"""What changed between two runs, and what stayed the same?

By section: what was asked (the pipeline file), with what (versions, the keys of the stages, which change with the code
that matters), and what came of it (outcome, verdicts, figures).
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from eagle3ops.errors import RequestError
from eagle3ops.runs.directory import RunDirectory, find_run
from eagle3ops.runs.ledger import figures, summarize
from eagle3ops.runs.notes import notes_of
from eagle3ops.spec.yamltree import read_tree

MOST = 400
"""Entries of one section that are told."""
_LONGEST = 2000


def diff(root: Path, first: str, second: str) -> dict[str, dict[str, list[Any]]]:
    """What differs between two runs: section -> key -> [value in the first, value in the second]."""
    one, two = find_run(root, first), find_run(root, second)
    return {name: _differences(*both) for name, both in _sections(one, two).items()}


def compare(root: Path, first: str, second: str) -> dict[str, Any]:
    """The same with what is equal, and with both runs' rows and notes.

    Returns:
        `runs`: the two rows; `sections`: in order, `name`, `different` and `equal` as lists of [key, value in the
        first, value in the second] and [key, value], `left_out`: how many of either were too many.
    """
    one, two = find_run(root, first), find_run(root, second)
    sections = []
    for name, (left, right) in _sections(one, two).items():
        different = [[key, *map(_short, values)] for key, values in _differences(left, right).items()]
        equal = [[key, _short(value)] for key, value in left.items() if key in right and right[key] == value]
        left_out = max(0, len(different) - MOST) + max(0, len(equal) - MOST)
        sections.append({"name": name, "different": different[:MOST], "equal": equal[:MOST], "left_out": left_out})
    rows = [{**asdict(summarize(run)), "notes": notes_of(run)} for run in (one, two)]
    return {"runs": rows, "sections": sections}


def _sections(one: RunDirectory, two: RunDirectory) -> dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]]:
    figures_one, figures_two = figures(one), figures(two)
    return {
        "spec": (_flat_spec(one), _flat_spec(two)),
        "versions": (_mapping(one.state().get("versions")), _mapping(two.state().get("versions"))),
        "keys": (_keys(one), _keys(two)),
        "metrics": (figures_one.metrics, figures_two.metrics),
        "verdicts": (figures_one.verdicts, figures_two.verdicts),
        "outcome": (_outcome(one), _outcome(two)),
    }


def _differences(one: Mapping[str, Any], two: Mapping[str, Any]) -> dict[str, list[Any]]:
    names = [*one, *(name for name in two if name not in one)]
    return {name: [one.get(name), two.get(name)] for name in names if one.get(name) != two.get(name)}


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _short(value: object) -> object:
    """A value that an answer can carry: numbers, truth, null and texts as they are, anything else in words."""
    if isinstance(value, float) and (value != value or abs(value) == float("inf")):
        return str(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    return str(value)[:_LONGEST]


def _keys(run: RunDirectory) -> dict[str, str]:
    return {name: str(stage.get("key", ""))[:16] for name, stage in run.state()["stages"].items()}


def _outcome(run: RunDirectory) -> dict[str, Any]:
    return {"status": run.status(), "exit_code": run.state().get("exit_code"), "cause": summarize(run).cause}


def _flat_spec(run: RunDirectory) -> dict[str, Any]:
    try:
        text = run.spec_file.read_bytes()
    except OSError as error:
        raise RequestError(f"{run.spec_file}: cannot be read: {error.strerror}", remedy="compare other runs") from error
    return dict(_flatten(read_tree(text, str(run.spec_file)).data, ""))


def _flatten(data: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    if isinstance(data, dict):
        for key, value in data.items():
            yield from _flatten(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, data
