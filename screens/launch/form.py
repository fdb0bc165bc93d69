"""What does a form for a pipeline file hold? A text, and what of it was changed; the text is the truth.

A person types into fields or into the text; both change the text, and nothing is kept beside it.
"""

import itertools
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from eagle3ops.errors import SpecError
from eagle3ops.screens.launch.fields import Field, Path, Section
from eagle3ops.screens.launch.yaml_text import look_up, remove, render, same, set_value
from eagle3ops.spec.yamltree import read_tree
from eagle3ops.words import plain

MOST_UNKNOWN = 50
LONGEST = 4096
"""Characters of a text that a field shows; what is longer is edited in the text itself."""
JOB: Path = ("--job",)
"""Stands for the job, which no pipeline file names."""


@dataclass(frozen=True, slots=True)
class Origin:
    """What a form was started from."""

    kind: str
    """`bundled`, `file`, `run` or `none`."""
    name: str
    """What `--spec` takes: the name of a bundled file, or a path; on the host for a run."""
    label: str
    """For people; errors name it as the source."""
    text: str = ""
    job: str = "pipeline"

    def as_json(self) -> dict[str, str]:
        """For a draft."""
        return {"kind": self.kind, "name": self.name, "label": self.label, "text": self.text, "job": self.job}

    @staticmethod
    def from_json(data: object) -> "Origin":
        """Read `as_json` back; what is missing is empty."""
        known = data if isinstance(data, Mapping) else {}
        words = {key: str(known.get(key, "")) for key in ("kind", "name", "label", "text")}
        return Origin(**words, job=str(known.get("job") or "pipeline"))


@dataclass(frozen=True, slots=True)
class Problem:
    """What the loader says against the text."""

    what: str
    remedy: str
    path: tuple[str | int, ...]
    line: int | None = None
    column: int | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the form: the head of a section, or a field."""

    section: Section
    field: Field | None = None
    unknown: bool = False
    """The schema has no such key."""

    @property
    def path(self) -> Path:
        """Of the field, or of the section."""
        return self.field.path if self.field is not None else self.section.path


@dataclass(slots=True)
class Form:
    """A text, where it came from, and the fields through which it is looked at."""

    sections: list[Section]
    origin: Origin
    text: str
    job: str = "pipeline"
    problems: list[Problem] = field(default_factory=list)
    """By the last answer of the host."""
    data: Any = None
    """What the text says; None while it is not YAML."""
    broken: str = ""
    """Why it is not YAML."""
    start: Any = None
    """What the text said at first."""

    def __post_init__(self) -> None:
        self.origin = replace(self.origin, text=showable(self.origin.text))
        self.start = _parsed(self.origin.text)[0]
        self.write(self.text)

    def write(self, text: str) -> None:
        """Take another text; what no terminal should be sent is left out."""
        before = self.data
        self.text = text = showable(text)
        self.data, self.broken = _parsed(text)
        # What was said of another value is no longer true; the host says anew how it is.
        self.problems = [one for one in self.problems if _same_at(before, self.data, one.path)]

    @property
    def editable(self) -> bool:
        """Whether fields can be changed: the text is a map, or empty."""
        return not self.broken

    @property
    def untouched(self) -> bool:
        """Nothing was typed."""
        return self.text == self.origin.text and self.job == self.origin.job

    def value(self, of: Field) -> tuple[Any, bool]:
        """What counts for a field, and whether it stands in the text (else it is the default)."""
        if of.path == JOB:
            return self.job, True
        stands, value = look_up(self.data, of.path)
        return (value, True) if stands else (of.default, False)

    def shown(self, of: Field) -> str:
        """The value as it is shown and edited."""
        value, stands = self.value(of)
        if not stands and not of.has_default:
            return ""
        return as_typed(of, value)

    def changed(self, path: Path) -> bool:
        """Whether a value differs from what the form was started with; also one within it."""
        if path == JOB:
            return self.job != self.origin.job
        before, after = look_up(self.start, path), look_up(self.data, path)
        return before[0] != after[0] or not same(before[1], after[1])

    def type(self, of: Field, typed: str) -> None:
        """Put into the text what a person typed for a field; what is no value of its kind goes in as text."""
        self.put(of, read_typed(of, typed))

    def put(self, of: Field, value: Any) -> None:
        """Set a field."""
        if of.path == JOB:
            self.job = str(value)
        elif self.editable:
            self.write(set_value(self.text, of.path, value))

    def use_default(self, path: Path) -> None:
        """Take a key out of the text."""
        if path == JOB:
            self.job = "pipeline"
        elif self.editable:
            self.write(remove(self.text, path))

    def reset(self, path: Path) -> None:
        """As it was at the start."""
        if path == JOB:
            self.job = self.origin.job
        if path == JOB or not path or not self.editable:
            return
        stood, value = look_up(self.start, path)
        self.write(set_value(self.text, path, value) if stood else remove(self.text, path))

    def reset_all(self) -> None:
        """The text and the job as they were at the start."""
        self.write(self.origin.text)
        self.job = self.origin.job

    def rows(self, folded: frozenset[Path] | set[Path], wanted: str = "") -> list[Row]:
        """The lines of the form; with `wanted`, those that hold these words, whether folded or not."""
        found: list[Row] = []
        words = wanted.lower().split()
        for section in self.sections:
            rows = [Row(section, one) for one in section.fields]
            rows += [Row(section, one, unknown=True) for one in self.unknown(section)]
            if words:
                rows = [row for row in rows if self._matches(row, words)]
            if section.path == JOB:
                found += rows
                continue
            if rows or not words:
                found.append(Row(section))
            if words or section.path not in folded:
                found += rows
        return found

    def folded_at_first(self, height: int) -> set[Path]:
        """The sections to fold, so that the form begins on one page: those in which nothing is set come first."""
        folded = {
            section.path for section in self.sections if section.stage or section.path in (("engine",), ("watchdog",))
        }
        rows = len(self.rows(folded))
        for section in self.sections:
            used = any(look_up(self.data, of.path)[0] for of in section.fields)
            if section.path in folded and used and rows + len(section.fields) <= height:
                folded.discard(section.path)
                rows += len(section.fields)
        return folded

    def _matches(self, row: Row, words: Sequence[str]) -> bool:
        of = row.field
        assert of is not None
        marks = ("changed" if self.changed(of.path) else "", "wrong" if self.problems_at(row) else "")
        text = " ".join((".".join(of.path), of.words, self.shown(of), *marks)).lower()
        return all(word in text for word in words)

    def unknown(self, section: Section) -> Iterator[Field]:
        """Keys in the text that no field stands for, as fields that can be looked at and taken out."""
        if section.path == JOB:
            return
        known = {of.path for of in section.fields} | {one.path for one in self.sections}
        known |= {path[:length] for path in known for length in range(1, len(path))} | {("schema",), ("stages",)}
        # A stage that does not exist stands with the keys of the pipeline.
        folders = [section.path] if section.path else [(), ("stages",)]
        keys = ((*folder, str(key)) for folder in folders for key in _keys(look_up(self.data, folder)[1]))
        for path in itertools.islice((path for path in keys if path not in known), MOST_UNKNOWN):
            label = plain(".".join(path[len(section.path) :]))
            yield Field(path, "yaml", label, takes="nothing: there is no such setting")

    def problems_at(self, row: Row) -> list[Problem]:
        """What the loader says against a field, or against a section as such."""
        return [problem for problem in self.problems if self._belongs(problem, row)]

    def _belongs(self, problem: Problem, row: Row) -> bool:
        path, own = tuple(problem.path), row.section.path
        if row.field is not None:
            return _touches(path, row.path, own)
        if path[: len(own)] != own:
            return False
        if not own and any(one.path and path[: len(one.path)] == one.path for one in self.sections):
            return False
        # What belongs to a field is told there.
        fields = [*row.section.fields, *self.unknown(row.section)]
        return not any(_touches(path, one.path, own) for one in fields)

    def changes(self) -> list[tuple[Path, Any, bool]]:
        """Path, new value, and whether it stands in the text still, of everything that differs from the start."""
        return list(_differences(self.start, self.data, ()))

    def command(self, host: str, root: str | None) -> tuple[str, str]:
        """The command line that starts the same; or an empty one and why there is none."""
        if self.broken:
            return "", "The text is not YAML."
        if self.origin.kind == "none":
            return "", "Save it as a file first; then there is a command."
        if self.origin.kind == "run" and host != "local":
            return "", f"The pipeline file of that run is on {host}. Save it as a file here; then there is a command."
        words = ["eagle3ops", "--job", self.job, "--spec", self.origin.name]
        for path, value, stands in self.changes():
            shown = value
            if not stands:
                of = next((one for section in self.sections for one in section.fields if one.path == path), None)
                if of is None or not of.has_default:
                    return "", f"{'.'.join(path)} was taken out, which no --set can say. Save it as a file first."
                shown = of.default
            words += ["--set", f"{'.'.join(path)}={render(shown)}"]
        if root is not None:
            words += ["--root", root]
        if host != "local":
            words += ["--host", host]
        return shlex.join(words), ""


def job_section(jobs: Sequence[str]) -> Section:
    """What is to be run: everything, or one stage."""
    words = "The whole pipeline, or one stage; those that it needs have to be done."
    field = Field(
        JOB, "choice", "job", words, "one of " + ", ".join(jobs), tuple(jobs), default="pipeline", has_default=True
    )
    return Section(JOB, "what to run", "", (field,))


def _parsed(text: str) -> tuple[Any, str]:
    try:
        data = read_tree(text, "text").data
    except SpecError as error:
        return None, plain(error.what.removeprefix("text:"))
    if data is None:
        return {}, ""
    if not isinstance(data, dict):
        return None, "1:1: expected a map of sections"
    return data, ""


def _touches(problem: tuple[str | int, ...], field: Path, section: Path) -> bool:
    """Whether a problem is one of a field: its own, or of a map within the section that the field is part of."""
    if len(problem) <= len(section):
        return False
    shorter = min(len(problem), len(field))
    return problem[:shorter] == field[:shorter]


def _keys(value: Any) -> list[Any]:
    return list(value) if isinstance(value, Mapping) else []


def _same_at(before: Any, after: Any, path: tuple[str | int, ...]) -> bool:
    keys: Path = ()
    for key in path:
        if not isinstance(key, str):
            break
        keys = (*keys, key)
    one, other = look_up(before, keys), look_up(after, keys)
    return one[0] == other[0] and same(one[1], other[1])


def _differences(before: Any, after: Any, path: Path) -> Iterator[tuple[Path, Any, bool]]:
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in [*before, *(key for key in after if key not in before)]:
            below = (*path, str(key))
            if key not in after:
                yield from _leaves(before[key], below)
            elif key not in before:
                yield below, after[key], True
            else:
                yield from _differences(before[key], after[key], below)
    elif not same(before, after):
        yield path, after, True


def _leaves(value: Any, path: Path) -> Iterator[tuple[Path, Any, bool]]:
    """Everything that was in a map that is gone."""
    if isinstance(value, Mapping) and value:
        for key, below in value.items():
            yield from _leaves(below, (*path, str(key)))
    elif not isinstance(value, Mapping):
        yield path, None, False


def read_typed(of: Field, typed: str) -> Any:
    """The value that a person means; text where it cannot be one of the field's kind, for the loader to explain."""
    if of.kind in ("text", "choice"):
        return None if of.nullable and not typed else _unescaped(typed)
    if not typed.strip():
        return None if of.nullable else typed
    try:
        return read_tree(typed, "field").data
    except SpecError:
        return typed


def as_typed(of: Field, value: Any) -> str:
    """What a person would have to type for a value; `read_typed` the other way round, unless it is too long."""
    if isinstance(value, str) and len(value) > LONGEST:
        return render(value[:LONGEST])
    if value is None and (of.nullable or of.kind in ("text", "choice")):
        return "" if of.nullable else "null"
    if isinstance(value, str) and value.isprintable() and same(read_typed(of, value), value):
        return value
    return render(value)


def _unescaped(typed: str) -> str:
    """`"two\\nlines"` in quotation marks stands for what is between them; all else for itself."""
    if len(typed) > 1 and typed[0] == typed[-1] == '"':
        try:
            value = read_tree(typed, "field").data
        except SpecError:
            return typed
        if isinstance(value, str):
            return value
    return typed


def showable(text: str) -> str:
    """A text without what would steer a terminal; line breaks and tabs stay."""
    return "".join(
        character for character in text.replace("\r\n", "\n") if character in "\n\t" or character.isprintable()
    )
