"""Turns are planned from the answers alone: what trains nothing is left out, too small a quota is told what works."""

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3ops.answers import AnswerRow, Split, write_jsonl
from eagle3ops.eagle3.train_config import TrainConfig
from eagle3ops.errors import RequestError
from eagle3ops.jobs.extract.quota import Survey, measure, numbered_id, place_of, survey, trained_rows
from eagle3ops.jobs.extract.spec import ExtractSpec
from eagle3ops.jobs.train.turns import last_values

CONFIG = TrainConfig(epochs=2, tokens_per_step=40)


def row(number: int, prompt: int, output: int, split: Split = "train") -> AnswerRow:
    return AnswerRow(
        id=f"p{number % 3}",
        split=split,
        messages=[],
        prompt_ids=list(range(1, prompt + 1)),
        output_ids=[number % 50] * output,
        finish_reason="stop",
    )


def surveyed(path: Path, spec: ExtractSpec) -> Survey:
    heldout = measure(path, spec, 8).heldout
    return survey(path, spec, CONFIG, hidden_size=8, vocab_size=100, heldout=heldout)


def test_rows_without_a_trained_token_are_not_extracted(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    rows = [row(0, 5, 5, "heldout"), row(1, 5, 5), row(2, 1, 1), row(3, 12, 5), row(4, 1, 2)]
    write_jsonl(path, rows)
    found = list(trained_rows(path, ExtractSpec(max_tokens=12)))
    assert [(index, item.output_ids[0]) for index, item in found] == [(0, 1), (1, 4)]


@pytest.mark.parametrize("row_id", ["", "a", "3:4", "ü"])
def test_a_numbered_id_gives_its_place_back(row_id: str) -> None:
    assert place_of(numbered_id(17, row_id)) == 17


@given(lengths=st.lists(st.tuples(st.integers(1, 20), st.integers(2, 40)), min_size=1, max_size=30))
@settings(max_examples=30)
def test_the_smallest_quota_that_an_error_names_works(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[tuple[int, int]]
) -> None:
    path = tmp_path_factory.mktemp("answers") / "answers.jsonl"
    write_jsonl(path, [row(0, 3, 9, "heldout"), *(row(n, *pair) for n, pair in enumerate(lengths, start=1))])
    with pytest.raises(RequestError) as refused:
        surveyed(path, ExtractSpec(quota=1))
    found = re.search(r"smallest quota that works is (\d+) bytes", refused.value.remedy or "")
    assert found is not None
    smallest = int(found[1])
    with pytest.raises(RequestError):
        surveyed(path, ExtractSpec(quota=smallest - 1))
    turns = surveyed(path, ExtractSpec(quota=smallest)).turns
    heldout = measure(path, ExtractSpec(), 8).heldout
    assert all(heldout + turn.bytes < smallest for turn in turns)
    whole = surveyed(path, ExtractSpec(quota=measure(path, ExtractSpec(), 8).total)).turns
    assert [turn.parts for turn in whole] == [1, 1]


def test_answers_that_train_nothing_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    write_jsonl(path, [row(0, 5, 5, "heldout"), row(1, 20, 5)])
    with pytest.raises(RequestError, match="nothing to train on"):
        surveyed(path, ExtractSpec(quota=1 << 30, max_tokens=20))


def test_the_last_value_of_each_metric_counts(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "name": "a", "value": 1.5}\n{"step": 2, "name": "a", "value": 2}\n')
    assert last_values(path) == {"a": 2.0}
