"""What may stand in config.yaml, and where is it wrong? Models, for what the user wrote; defaults need none of this."""

import json
from typing import Any, Literal

from pydantic import Field, ValidationError

from eagle3ops.errors import RequestError, SpecError
from eagle3ops.settings.values import Notify, Settings
from eagle3ops.spec.base import Section
from eagle3ops.spec.load import describe, spec_error
from eagle3ops.spec.yamltree import Tree, read_tree

_DEFAULT = Settings()


class NotifySection(Section):
    """What happens when a run that was seen going on has ended."""

    command: tuple[str, ...] | None = Field(None, min_length=1)
    """Program and arguments, started without a shell; EAGLE3OPS_RUN, _NAME, _STATUS and _HOST say what happened."""
    bell: bool = _DEFAULT.notify.bell
    """Ring the terminal's bell."""
    timeout_s: float = Field(_DEFAULT.notify.timeout_s, ge=0.1, le=3600.0)
    """After so many seconds the command is ended."""


class SettingsFile(Section):
    """The settings of the console."""

    version: Literal[1] = Field(alias="schema")
    theme: str | None = None
    """Name of a theme; nothing leaves the choice to the console."""
    ascii: bool = _DEFAULT.ascii
    """Draw with ASCII characters only."""
    read_only: bool = _DEFAULT.read_only
    """Look, and end or resume nothing."""
    refresh: float = Field(_DEFAULT.refresh, ge=0.2, le=60.0)
    """Seconds between two readings of the runs."""
    keymap: dict[str, str | tuple[str, ...]] = Field(default_factory=dict)
    """Actions and the keys that stand for them; the Help screen (F1) names both."""
    notify: NotifySection = Field(default_factory=lambda: NotifySection.model_validate({}))

    def settings(self) -> Settings:
        """The same without the models."""
        values = self.model_dump(exclude={"version", "notify"})
        return Settings(**values, notify=Notify(**self.notify.model_dump()))


def json_schema() -> dict[str, Any]:
    """The JSON Schema of config.yaml, for editors."""
    schema = SettingsFile.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | schema | {"title": "eagle3ops settings"}


def parse(text: bytes, source: str) -> tuple[Settings, Tree]:
    """The settings in a file, and where each stands.

    Raises:
        SpecError: it is wrong, with line and column.
    """
    tree = read_tree(text, source)
    if tree.data is None:
        return Settings(), tree
    if not isinstance(tree.data, dict):
        raise SpecError(f"{tree.place(())}: expected a map, got {describe(tree.data)}", remedy="begin with: schema: 1")
    try:
        return SettingsFile.model_validate_json(json.dumps(tree.data), strict=True).settings(), tree
    except ValidationError as error:
        raise spec_error(error, tree, SettingsFile) from error


def checked(source: str, name: str, value: Any) -> Any:
    """One value by the rules of the file; refused with the name of where it came from.

    Raises:
        RequestError: it is wrong.
    """
    tree = Tree({"schema": 1, name: value}, source)
    try:
        return getattr(SettingsFile.model_validate_json(json.dumps(tree.data), strict=True), name)
    except ValidationError as error:
        found = spec_error(error, tree, SettingsFile)
        raise RequestError(found.what, remedy=found.remedy) from error
