"""Is the environment of a process written down once, without secrets, and whole enough to tell two apart?"""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3ops.runs import environments
from eagle3ops.runs.environments import VALUE_CHARACTERS, differences, keep, recall
from eagle3ops.runs.redact import GONE, redact_environment


def test_the_same_environment_is_written_once(tmp_path: Path) -> None:
    first = keep(tmp_path, {"A": "1", "B": "zwölf"})
    assert first == keep(tmp_path, {"B": "zwölf", "A": "1"})
    second = keep(tmp_path, {"A": "1"})
    assert first is not None
    assert second not in (None, first)
    assert len(list((tmp_path / environments.FOLDER).iterdir())) == 2
    assert recall(tmp_path, first) == {"A": "1", "B": "zwölf"}
    assert (tmp_path / environments.FOLDER).stat().st_mode & 0o077 == 0


def test_what_cannot_be_written_keeps_nothing_from_starting(tmp_path: Path) -> None:
    (tmp_path / environments.FOLDER).write_text("a file where a folder is needed")
    assert keep(tmp_path, {"A": "1"}) is None
    assert recall(tmp_path, "0" * 16) is None
    assert recall(tmp_path, "../../etc/passwd") is None


def test_long_values_are_cut_and_still_told_apart(tmp_path: Path) -> None:
    long = "x" * VALUE_CHARACTERS
    assert keep(tmp_path, {"A": long + "y"}) != keep(tmp_path, {"A": long + "z"})


@pytest.mark.parametrize(
    "name",
    ["GITHUB_TOKEN", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "MYSQL_PWD", "PGPASSWORD", "WANDB_API_KEY", "sessionCookie"],
)
def test_a_variable_whose_name_says_so_is_a_secret_whatever_it_holds(name: str) -> None:
    assert redact_environment({name: "two words"}) == {name: GONE}


@pytest.mark.parametrize("name", ["PATH", "PWD", "OLDPWD", "TOKENIZERS_PARALLELISM", "MAX_TOKENS", "KEYMAP", "RANK"])
def test_other_variables_stay(name: str) -> None:
    assert redact_environment({name: "value"}) == {name: "value"}


VARIABLES = st.dictionaries(st.text(min_size=1, max_size=5), st.text(max_size=5), max_size=6)


@given(VARIABLES, VARIABLES)
def test_differences_lead_from_one_to_the_other(one: dict[str, str], other: dict[str, str]) -> None:
    found = differences(other, one)
    made = {name: value for name, value in one.items() if name not in found.removed}
    assert made | {name: value for name, (value, _) in found.changed.items()} == other
    assert all(one.get(name) == before for name, (_, before) in found.changed.items())
