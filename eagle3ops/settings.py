"""How does this user want the console? `config.yaml` in the configuration folder, the environment, the command line."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, ValidationError

from eagle3ops.errors import RequestError, SpecError
from eagle3ops.locations import config_folder
from eagle3ops.runs.files import explain_os_error, write_atomic
from eagle3ops.spec.base import Section
from eagle3ops.spec.load import describe, spec_error
from eagle3ops.spec.yamltree import Tree, read_tree, scalar

ENVIRONMENT = {
    "EAGLE3OPS_THEME": "theme",
    "EAGLE3OPS_ASCII": "ascii",
    "EAGLE3OPS_READ_ONLY": "read_only",
    "EAGLE3OPS_REFRESH": "refresh",
}
"""Environment variables and the settings that they stand for."""
_SWITCHES = {"1": True, "yes": True, "on": True, "0": False, "no": False, "off": False}


class Notify(Section):
    """What happens when a run that was seen going on has ended."""

    command: tuple[str, ...] | None = Field(None, min_length=1)
    """Program and arguments, started without a shell; EAGLE3OPS_RUN, _NAME, _STATUS and _HOST say what happened."""
    bell: bool = True
    """Ring the terminal's bell."""
    timeout_s: float = Field(30.0, ge=0.1, le=3600.0)
    """After so many seconds the command is ended."""


class Settings(Section):
    """The settings of the console."""

    version: Literal[1] = Field(alias="schema")
    theme: str | None = None
    """Name of a theme; nothing leaves the choice to the console."""
    ascii: bool = False
    """Draw with ASCII characters only."""
    read_only: bool = False
    """Look, and end or resume nothing."""
    refresh: float = Field(1.0, ge=0.2, le=60.0)
    """Seconds between two readings of the runs."""
    keymap: dict[str, str | tuple[str, ...]] = Field(default_factory=dict)
    """Actions and the keys that stand for them; the Help screen (F1) names both."""
    notify: Notify = Field(default_factory=lambda: Notify.model_validate({}))


@dataclass(frozen=True, slots=True)
class Resolved:
    """The settings, and where each comes from."""

    settings: Settings
    path: Path
    origins: dict[str, str] = field(default_factory=dict)
    """`theme` -> `command line`, `$EAGLE3OPS_THEME` or `FILE:LINE:COLUMN`; what is not in it is a default."""

    def origin(self, name: str) -> str:
        """Where a setting comes from; a dotted name belongs to its section."""
        return self.origins.get(name) or "default"


def config_file() -> Path:
    """Where the settings stand, if there are any."""
    return config_folder() / "config.yaml"


def json_schema() -> dict[str, Any]:
    """The JSON Schema of config.yaml, for editors."""
    schema = Settings.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | schema | {"title": "eagle3ops settings"}


def resolve(
    command_line: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    path: Path | None = None,
) -> Resolved:
    """The settings that hold: command line over environment over file over default.

    Raises:
        SpecError: the file is wrong, with line and column.
        RequestError: an environment variable or an option is.
    """
    path = path or config_file()
    checked, tree = _parse(_read(path), str(path))
    values: dict[str, Any] = checked.model_dump(by_alias=True)
    origins = {".".join(map(str, keys)): str(place) for keys, place in tree.keys.items() if keys != ("schema",)}
    environment = os.environ if environment is None else environment
    for variable, name in ENVIRONMENT.items():
        if environment.get(variable):
            values[name] = _from_environment(variable, environment[variable], name)
            origins[name] = f"${variable}"
    for name, value in (command_line or {}).items():
        values[name] = _checked(f"--{name.replace('_', '-')}", name, value)
        origins[name] = "command line"
    return Resolved(Settings.model_validate(values), path, origins)


def remember_theme(name: str, path: Path | None = None) -> Path:
    """Write the theme into the file, which is made if there is none; everything else in it stays. Returns the file.

    Raises:
        Eagle3opsError: the file is wrong or cannot be written.
    """
    path = path or config_file()
    raw = _read(path)
    _, tree = _parse(raw, str(path))
    known = tree.data if isinstance(tree.data, dict) else {}
    wanted = {"schema": 1} | known | {"theme": name}
    text = _with_theme(raw.decode("utf-8-sig"), tree, yaml.safe_dump(name).splitlines()[0])
    try:
        right = read_tree(text, str(path)).data == wanted
    except SpecError:
        right = False
    if not right:
        text = yaml.safe_dump(wanted, sort_keys=False, allow_unicode=True)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Through a link: people keep such files in a repository of their own.
        write_atomic(Path(os.path.realpath(path)), text)
    except OSError as error:
        raise explain_os_error(error, path) or error from error
    return path


def _with_theme(text: str, tree: Tree, value: str) -> str:
    if not isinstance(tree.data, dict):
        return f"{text}{'' if not text or text.endswith(chr(10)) else chr(10)}schema: 1\ntheme: {value}\n"
    lines = text.splitlines(keepends=True)
    at = tree.keys.get(("theme",))
    if at is not None:
        lines[at.line - 1] = f"theme: {value}\n"
    else:
        after = tree.keys[("schema",)].line
        lines[after - 1] = lines[after - 1].rstrip("\r\n") + "\n"
        lines.insert(after, f"theme: {value}\n")
    return "".join(lines)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise SpecError(f"{path}: cannot be read: {error.strerror}") from error


def _parse(text: bytes, source: str) -> tuple[Settings, Tree]:
    tree = read_tree(text, source)
    if tree.data is None:
        return Settings.model_validate({"schema": 1}), tree
    if not isinstance(tree.data, dict):
        raise SpecError(f"{tree.place(())}: expected a map, got {describe(tree.data)}", remedy="begin with: schema: 1")
    try:
        return Settings.model_validate_json(json.dumps(tree.data), strict=True), tree
    except ValidationError as error:
        raise spec_error(error, tree, Settings) from error


def _from_environment(variable: str, text: str, name: str) -> Any:
    if name == "theme":
        return _checked(f"${variable}", name, text)
    value = _SWITCHES.get(text.strip().lower(), scalar(text.strip())) if name != "refresh" else scalar(text.strip())
    return _checked(f"${variable}", name, value)


def _checked(source: str, name: str, value: Any) -> Any:
    """One value by the rules of the file; refused with the name of where it came from."""
    tree = Tree({"schema": 1, name: value}, source)
    try:
        return getattr(Settings.model_validate_json(json.dumps(tree.data), strict=True), name)
    except ValidationError as error:
        found = spec_error(error, tree, Settings)
        raise RequestError(found.what, remedy=found.remedy) from error
