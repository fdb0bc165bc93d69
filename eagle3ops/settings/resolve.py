"""How does this user want the console? `config.yaml` in the configuration folder, the environment, the command line."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle3ops.errors import SpecError
from eagle3ops.locations import config_folder
from eagle3ops.runs.files import explain_os_error, write_atomic
from eagle3ops.settings.values import Settings

if TYPE_CHECKING:
    from eagle3ops.spec.yamltree import Tree

ENVIRONMENT = {
    "EAGLE3OPS_THEME": "theme",
    "EAGLE3OPS_ASCII": "ascii",
    "EAGLE3OPS_READ_ONLY": "read_only",
    "EAGLE3OPS_REFRESH": "refresh",
}
"""Environment variables and the settings that they stand for."""
_SWITCHES = {"1": True, "yes": True, "on": True, "0": False, "no": False, "off": False}


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
    environment = os.environ if environment is None else environment
    told = {
        name: (variable, environment[variable]) for variable, name in ENVIRONMENT.items() if environment.get(variable)
    }
    raw = _read(path)
    if not raw.strip() and not told and not command_line:
        # Nothing to check: the console opens faster without what would check it.
        return Resolved(Settings(), path)
    from eagle3ops.settings import file

    settings, tree = file.parse(raw, str(path))
    origins = {".".join(map(str, keys)): str(place) for keys, place in tree.keys.items() if keys != ("schema",)}
    values: dict[str, Any] = {}
    for name, (variable, text) in told.items():
        values[name] = _from_environment(variable, text, name)
        origins[name] = f"${variable}"
    for name, value in (command_line or {}).items():
        values[name] = file.checked(f"--{name.replace('_', '-')}", name, value)
        origins[name] = "command line"
    return Resolved(replace(settings, **values), path, origins)


def remember_theme(name: str, path: Path | None = None) -> Path:
    """Write the theme into the file, which is made if there is none; everything else in it stays. Returns the file.

    Raises:
        Eagle3opsError: the file is wrong or cannot be written.
    """
    import yaml

    from eagle3ops.settings.file import parse

    path = path or config_file()
    raw = _read(path)
    _, tree = parse(raw, str(path))
    known = tree.data if isinstance(tree.data, dict) else {}
    wanted = {"schema": 1} | known | {"theme": name}
    text = _with_theme(raw.decode("utf-8-sig"), tree, yaml.safe_dump(name).splitlines()[0])
    from eagle3ops.spec.yamltree import read_tree

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


def _with_theme(text: str, tree: "Tree", value: str) -> str:
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


def _from_environment(variable: str, text: str, name: str) -> Any:
    from eagle3ops.settings.file import checked
    from eagle3ops.spec.yamltree import scalar

    if name == "theme":
        return checked(f"${variable}", name, text)
    value = _SWITCHES.get(text.strip().lower(), scalar(text.strip())) if name != "refresh" else scalar(text.strip())
    return checked(f"${variable}", name, value)
