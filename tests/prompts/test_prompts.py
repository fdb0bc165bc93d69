"""Bundled prompts are distinct and split cleanly; prompt files survive whatever stands in them."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3ops.errors import RequestError
from eagle3ops.prompts import HELDOUT, Prompt, bundled_prompts, load_prompts, parse_row


def texts(prompts: list[Prompt]) -> list[str]:
    return [prompt.messages[-1]["content"] for prompt in prompts]


def write(folder: Path, *lines: object) -> Path:
    path = folder / "own.jsonl"
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def test_bundled_prompts_are_many_and_distinct() -> None:
    prompts = bundled_prompts(0)
    assert len(prompts) >= 1500
    assert len(set(texts(prompts))) == len(prompts) == len({prompt.id for prompt in prompts})
    assert HELDOUT >= 96
    assert all(
        "{" not in text and prompt.messages[-1]["role"] == "user"
        for prompt, text in zip(prompts, texts(prompts), strict=True)
    )


def test_the_seed_moves_training_prompts_but_never_the_heldout_ones() -> None:
    one, two = bundled_prompts(1), bundled_prompts(2)
    assert one == bundled_prompts(1)
    assert one[:HELDOUT] == two[:HELDOUT]
    assert one[HELDOUT:] != two[HELDOUT:]
    assert set(texts(one)) == set(texts(two))
    assert not set(texts(one)[:HELDOUT]) & set(texts(one)[HELDOUT:])


def test_all_shapes_of_rows(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {"prompt": "one"},
        {"text": "two", "id": 7, "system": "be short"},
        {"conversations": [{"from": "human", "value": "three"}, {"from": "gpt", "value": "an answer"}]},
        {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "four"}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "fi"}, {"type": "text", "text": "ve"}]}]},
        {
            "messages": [
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": "b"},
                {"role": "user", "content": "six"},
            ]
        },
    )
    loaded = load_prompts(path)
    assert loaded.broken == []
    assert texts(loaded.prompts) == ["one", "two", "three", "four", "five", "six"]
    assert [prompt.id for prompt in loaded.prompts][:3] == ["own:1", "7", "own:3"]
    assert [message["role"] for message in loaded.prompts[1].messages] == ["system", "user"]
    assert [message["role"] for message in loaded.prompts[5].messages] == ["user", "assistant", "user"]


def test_a_json_array_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "own.json"
    path.write_text("\ufeff" + json.dumps([{"prompt": "one"}, {"conversations": []}, {"prompt": "two"}], indent=1))
    loaded = load_prompts(path)
    assert texts(loaded.prompts) == ["one", "two"]
    assert [(row.line, row.source) for row in loaded.broken] == [(2, "own.json")]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("{", "not JSON"),
        ("[1]", "an object is needed, found a list"),
        ({"answer": "x"}, "a row needs"),
        ({"prompt": 3}, '"prompt" is a number'),
        ({"prompt": "  "}, '"prompt" is empty'),
        ({"prompt": None}, '"prompt" is missing'),
        ({"messages": "hello"}, '"messages" is text'),
        ({"messages": [{"role": "user"}]}, 'turn 1 of "messages" is missing'),
        ({"messages": [{"role": "tool", "content": "x"}]}, '"tool" is not a role'),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "no turn of the user"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "other than text"),
        ({"prompt": "good"}, "the same prompt as in row 1"),
        ('{"prompt": "\\ud800"}', "half a surrogate pair"),
        ("[" * 100_000, "nested too deeply"),
        ("9" * 5000, "not usable JSON"),
    ],
)
def test_a_broken_row_is_named_and_the_others_are_kept(tmp_path: Path, row: object, reason: str) -> None:
    loaded = load_prompts(write(tmp_path, {"prompt": "good"}, row, {"prompt": "also good"}))
    assert texts(loaded.prompts) == ["good", "also good"]
    (broken,) = loaded.broken
    assert broken.line == 2
    assert reason in broken.reason
    assert len(broken.raw) <= 200


def test_bytes_that_are_not_text(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_bytes(b'{"prompt": "good"}\n{"prompt": "\xff"}\n')
    assert [row.reason for row in load_prompts(path).broken] == ["not UTF-8 at byte 12"]


def test_nothing_usable_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="none of 1 rows is a prompt; the first: row 1"):
        load_prompts(write(tmp_path, "nonsense"))
    with pytest.raises(RequestError, match="none of 0 rows"):
        load_prompts(write(tmp_path))
    with pytest.raises(RequestError, match="cannot be read"):
        load_prompts(tmp_path / "missing.jsonl")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["messages", "conversations", "prompt", "role", "from", "content", "value", "id", "type"])
            | st.text(max_size=3),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(json_values)
def test_any_row_is_a_prompt_or_a_reason(row: object) -> None:
    try:
        prompt = parse_row(row, "here")
    except ValueError:
        return
    assert prompt.messages[-1]["role"] == "user"
    assert all(message["content"].strip() for message in prompt.messages)
    assert prompt.id


@given(st.binary(max_size=200))
def test_any_bytes_give_prompts_broken_rows_or_a_named_error(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.mktemp("any") / "own.jsonl"
    path.write_bytes(data + b'\n{"prompt": "good"}')
    try:
        loaded = load_prompts(path)
    except RequestError:
        # Only a whole file that is one JSON array can swallow the good line.
        assert data.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"[")
    else:
        assert "good" in texts(loaded.prompts)
