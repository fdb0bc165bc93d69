"""Is each way to render, mask and store data wrongly named, made for real with a tokenizer and its template?"""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3ops.engines.tokenizer import ChatTokenizer
from eagle3ops.errors import Eagle3opsError
from eagle3ops.targets.tiny import make_tiny
from eagle3ops.wiring.checks import Check
from eagle3ops.wiring.data import (
    Kept,
    Prompt,
    Rendering,
    chat_prompt,
    check_mask,
    check_template,
    check_tokens,
    fault_between,
)

TALKS: list[list[dict[str, str]]] = [
    [{"role": "user", "content": "Hello"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is a drafter?"}],
    [
        {"role": "user", "content": "One"},
        {"role": "assistant", "content": "Two"},
        {"role": "user", "content": "And then, what comes after it?"},
    ],
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    make_tiny(folder)
    return folder


def changed(model: Path, folder: Path, *, template: tuple[str, str] | None = None, adds_bos: bool = False) -> Path:
    """A copy of a model with another template, or a tokenizer that puts a BOS before every text."""
    shutil.copytree(model, folder)
    if template is not None:
        path = folder / "chat_template.jinja"
        text = path.read_text()
        assert template[0] in text
        path.write_text(text.replace(*template))
    if adds_bos:
        path = folder / "tokenizer.json"
        data = json.loads(path.read_text())
        bos = {"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}
        data["post_processor"] = {
            "type": "TemplateProcessing",
            "single": [bos, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [bos, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<|im_start|>": {"id": "<|im_start|>", "ids": [1], "tokens": ["<|im_start|>"]}},
        }
        path.write_text(json.dumps(data))
    return folder


def as_text(tokenizer: ChatTokenizer, talk: Sequence[Any], *, special: bool) -> list[int]:
    """Rendered to text first and then tokenised, as many scripts do it."""
    inner: Any = tokenizer._tokenizer
    text = inner.apply_chat_template(list(talk), tokenize=False, add_generation_prompt=True)
    return list(inner.encode(text, add_special_tokens=special))


def prompts(
    tokenizer: ChatTokenizer, data: Sequence[Sequence[int]], served: Sequence[Sequence[int]] | None = None, *,
    ids: bool = True,
) -> list[Prompt]:  # fmt: skip
    """What data, template and engine make of the talks."""
    found = []
    for at, talk in enumerate(TALKS):
        rendering = Rendering(
            tuple(tokenizer.encode_chat(talk)), tuple(tokenizer.encode_chat(talk, add_generation_prompt=False))
        )
        engine = None if served is None else tuple(served[at])
        count = None if engine is None else len(engine)
        found.append(Prompt(f"row {at}", tuple(data[at]), rendering, engine if ids else None, count))
    return found


def judged(
    tokenizer: ChatTokenizer, data: Sequence[Sequence[int]], served: Sequence[Sequence[int]] | None, *, ids: bool
) -> Check:
    """The check that applies."""
    found = prompts(tokenizer, data, served, ids=ids)
    decode = lambda ids: tokenizer.decode(ids, skip_special_tokens=False)  # noqa: E731
    return check_template(found, tokenizer.bos_id, decode, engine=served is not None)


def rendered(tokenizer: ChatTokenizer, **options: bool) -> list[list[int]]:
    return [tokenizer.encode_chat(talk, **options) for talk in TALKS]


def test_the_same_template_passes(model: Path) -> None:
    tokenizer = ChatTokenizer(model)
    right = rendered(tokenizer)
    for served, ids in ((None, True), (right, True), (right, False)):
        check = judged(tokenizer, right, served, ids=ids)
        assert (check.verdict, check.kind) == ("PASS", ""), check
    assert "number of tokens" in judged(tokenizer, right, right, ids=False).reason


@pytest.mark.parametrize("side", ["data", "engine", "engine by counts"])
@pytest.mark.parametrize("kind", ["doubled_bos", "missing_bos", "no_generation_prompt", "template"])
def test_every_other_rendering_is_named(model: Path, tmp_path: Path, kind: str, side: str) -> None:
    if kind == "doubled_bos":
        # The template begins with the BOS, and the tokenizer puts its own before the text.
        served_by = ChatTokenizer(changed(model, tmp_path / "m", adds_bos=True))
        wrong = [as_text(served_by, talk, special=True) for talk in TALKS]
        assert all(ids[:2] == [1, 1] for ids in wrong)
        right = rendered(served_by)
    elif kind == "missing_bos":
        # The template leaves the BOS to the tokenizer, and the text is tokenised without special tokens.
        bare = ("{% for message", "{{ 'Talk: ' }}{% for message")
        served_by = ChatTokenizer(changed(model, tmp_path / "m", adds_bos=True, template=bare))
        wrong = [as_text(served_by, talk, special=False) for talk in TALKS]
        right = [as_text(served_by, talk, special=True) for talk in TALKS]
        assert all(ids[0] == 1 and ids[1] != 1 for ids in right)
    elif kind == "no_generation_prompt":
        served_by = ChatTokenizer(model)
        right, wrong = rendered(served_by), rendered(served_by, add_generation_prompt=False)
    else:
        served_by = ChatTokenizer(model)
        right = rendered(served_by)
        wrong = rendered(ChatTokenizer(changed(model, tmp_path / "m", template=("'<|im_end|>\n'", "'<|im_end|>'"))))
    if kind == "missing_bos" and side == "data":
        # The template alone cannot say what an engine would put before it.
        check = judged(served_by, wrong, right, ids=True)
    elif side == "data":
        check = judged(served_by, wrong, None, ids=True)
    else:
        check = judged(served_by, right, wrong, ids=side == "engine")
    assert (check.verdict, check.kind) == ("FAIL", kind), check
    assert check.fix
    assert "3 of 3 conversations" in check.reason
    if kind in ("missing_bos", "no_generation_prompt"):
        lacks = "the data" if side == "data" else "the engine"
        assert check.reason.startswith(lacks), check.reason
    if kind == "doubled_bos":
        doubled = "the data" if side == "data" else "the engine"
        assert check.reason.startswith(f"{doubled} begins with two"), check.reason


def test_another_template_is_shown_where_it_parts(model: Path, tmp_path: Path) -> None:
    tokenizer = ChatTokenizer(model)
    other = ChatTokenizer(changed(model, tmp_path / "m", template=("assistant\n' }}", "assistant: ' }}")))
    # The generation prompt alone is written otherwise.
    check = judged(tokenizer, rendered(other), None, ids=True)
    assert check.kind == "template"
    assert "they part at token" in check.reason
    assert "in the data" in check.reason


def test_an_engine_without_chats_is_no_failure(model: Path) -> None:
    tokenizer = ChatTokenizer(model)
    found = check_template(prompts(tokenizer, rendered(tokenizer)), tokenizer.bos_id, str, engine=True)
    assert found.verdict == "not made"


IDS = st.lists(st.integers(0, 5), max_size=8)


@given(IDS, IDS, IDS)
def test_two_renderings_are_one_or_differ(one: list[int], other: list[int], opening: list[int]) -> None:
    found = fault_between(one, other, 1, opening)
    assert (found is None) == (one == other)
    mirrored = fault_between(other, one, 1, opening)
    if found is not None and mirrored is not None:
        assert found[0] == mirrored[0]


def kept(mask: Sequence[bool] | None = None, tokens: Sequence[int] | None = None, prompt: int = 4) -> Kept:
    text = tuple(range(10, 22))
    right = tuple(at >= prompt for at in range(len(text)))
    return Kept("row", prompt, text, tuple(tokens or text), tuple(right if mask is None else mask))


RIGHT = [at >= 4 for at in range(12)]


@pytest.mark.parametrize(
    ("mask", "kind"),
    [
        (RIGHT, ""),
        ([True] * 12, "mask_covers_prompt"),
        ([at >= 2 for at in range(12)], "mask_covers_prompt"),
        ([*RIGHT[1:], False], "mask_early"),
        ([*RIGHT[1:], True], "mask_early"),
        ([False, *RIGHT[:-1]], "mask_late"),
        ([False] * 12, "mask_empty"),
        ([not one for one in RIGHT], "mask_covers_prompt"),
        ([at in (6, 7) for at in range(12)], "mask_other"),
    ],
)
def test_a_mask_that_falls_elsewhere_is_named(mask: list[bool], kind: str) -> None:
    check = check_mask([kept(mask)] * 3)
    assert (check.kind, check.verdict) == (kind, "FAIL" if kind else "PASS"), check
    assert bool(check.fix) == bool(kind)


def test_a_prompt_that_fills_its_row_has_nothing_to_train() -> None:
    assert check_mask([kept([False] * 12, prompt=12), kept()]).verdict == "PASS"
    assert check_mask([kept([True] * 12, prompt=12)]).kind == "mask_covers_prompt"


@pytest.mark.parametrize(
    ("tokens", "kind", "words"),
    [
        (range(10, 22), "", ""),
        ([*range(11, 22), 0], "tokens_shifted", "token t + 1, the next one"),
        ([0, *range(10, 21)], "tokens_shifted", "token t - 1, the previous one"),
        (range(30, 42), "other_tokens", "other tokens than the answers"),
    ],
)
def test_tokens_beside_the_wrong_states_are_named(tokens: Sequence[int], kind: str, words: str) -> None:
    check = check_tokens([kept(tokens=list(tokens))] * 2)
    assert (check.kind, check.verdict) == (kind, "FAIL" if kind else "PASS")
    assert words in check.reason


def test_where_nothing_was_compared_nothing_passes() -> None:
    assert check_tokens([]).verdict == "not made"
    assert check_mask([]).verdict == "not made"
    alone = check_mask([kept([False] * 12, prompt=12)])
    assert alone.verdict == "not made"
    assert "reaches into its answer" in alone.reason


def test_a_template_that_refuses_conversations_of_the_data_is_another_one(model: Path) -> None:
    tokenizer = ChatTokenizer(model)
    right = prompts(tokenizer, rendered(tokenizer))
    found = check_template(right, tokenizer.bos_id, str, engine=False, refused=["row 3", "row 4"])
    assert (found.verdict, found.kind) == ("FAIL", "template")
    assert "does not take 2 of 5 conversations of the data (row 3, row 4)" in found.reason
    # One that takes none may be one that cannot be used at all.
    assert check_template([], tokenizer.bos_id, str, engine=False, refused=["row 3"]).verdict == "not made"


def test_prompts_of_chats_are_read_as_engines_send_them() -> None:
    usage = {"prompt_tokens": 3}
    assert chat_prompt({"usage": usage, "choices": [{"prompt_token_ids": [1, 2, 3]}]}) == ((1, 2, 3), 3)
    assert chat_prompt({"usage": usage, "prompt_token_ids": [1, 2, 3]}) == ((1, 2, 3), 3)
    assert chat_prompt({"usage": usage, "choices": []}) == (None, 3)
    # Ids that do not fit the number are none to be relied on.
    assert chat_prompt({"usage": usage, "choices": [{"prompt_token_ids": [1]}]}) == (None, 3)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["usage", "prompt_tokens", "choices", "prompt_token_ids"]), inner, max_size=4),
    max_leaves=10,
)  # fmt: skip


@given(JSON)
def test_any_answer_to_a_chat_is_read_or_refused(raw: object) -> None:
    try:
        ids, count = chat_prompt(raw)
    except Eagle3opsError:
        return
    assert count >= 0
    assert ids is None or len(ids) == count
