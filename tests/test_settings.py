"""Do the settings say where they come from, and where they are wrong?"""

import contextlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from eagle3ops.cli import main
from eagle3ops.errors import RequestError, SpecError
from eagle3ops.settings import remember_theme, resolve


def test_what_comes_first(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("schema: 1\ntheme: nord\nascii: true\nread_only: false\nrefresh: 2\n")
    found = resolve({"theme": "dracula"}, {"EAGLE3OPS_THEME": "gruvbox", "EAGLE3OPS_READ_ONLY": "yes"}, path)
    assert (found.settings.theme, found.settings.ascii, found.settings.read_only) == ("dracula", True, True)
    assert found.settings.refresh == 2.0
    origins = [found.origin(name) for name in ("theme", "read_only", "ascii", "notify.bell")]
    assert origins == ["command line", "$EAGLE3OPS_READ_ONLY", f"{path}:3:1", "default"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("theme: nord\n", "schema: missing"),
        ("schema: 2\n", ":1:9: schema: expected 1"),
        ("schema: 1\nthem: nord\n", "did you mean 'theme'"),
        ("schema: 1\nascii: 1\n", ":2:8: ascii: expected true or false"),
        ("schema: 1\nrefresh: .nan\n", ":2:10: refresh"),
        ("schema: 1\nnotify:\n  command: say\n", ":3:12: notify.command: expected a list"),
        ("schema: 1\nnotify:\n  command: []\n", ":3:12: notify.command"),
        ("- 1\n", "expected a map"),
        ("schema: 1\nschema: 1\n", ":2:1"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(SpecError) as refused:
        resolve({}, {}, path)
    assert words in str(refused.value)
    with pytest.raises(SpecError):
        remember_theme("nord", path)
    assert path.read_text() == text


@pytest.mark.parametrize(("name", "value"), [("ASCII", "perhaps"), ("REFRESH", "0"), ("REFRESH", "yes")])
def test_the_environment_is_checked_too(tmp_path: Path, name: str, value: str) -> None:
    with pytest.raises(RequestError, match=rf"\$EAGLE3OPS_{name}"):
        resolve({}, {f"EAGLE3OPS_{name}": value}, tmp_path / "config.yaml")


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
names = st.sampled_from(["schema", "theme", "ascii", "read_only", "refresh", "keymap", "notify", "other"])


@given(st.dictionaries(names, values) | values)
def test_any_data_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text(yaml.safe_dump(data, allow_unicode=True), encoding="utf-8")
    try:
        found = resolve({}, {}, path)
    except SpecError:
        return
    remember_theme("nord", path)
    again = resolve({}, {}, path)
    assert again.settings == replace(found.settings, theme="nord")


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_bytes(data)
    with contextlib.suppress(SpecError):
        resolve({}, {}, path)


def test_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("EAGLE3OPS_CONFIG", str(tmp_path))
    assert main(["config", "path"]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "config.yaml")
    assert main(["config", "show", "--ascii", "--json"]) == 0
    shown = {row["name"]: row for row in json.loads(capsys.readouterr().out)["settings"]}
    assert shown["ascii"] == {"name": "ascii", "value": True, "from": "command line"}
    assert main(["config", "schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert "runs.cancel" in schema["properties"]["keymap"]["properties"]
    (tmp_path / "config.yaml").write_text("schema: 1\nkeymap: {runs.cancle: x}\n")
    assert main(["config", "show"]) == 2
    assert "did you mean 'runs.cancel'" in capsys.readouterr().err
    assert main(["--ascii", "runs", "list"]) == 2
    assert "--ascii belongs to the console" in capsys.readouterr().err
