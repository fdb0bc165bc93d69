"""Samples token by token: from feature shards, from answers, and where either is torn."""

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_outputs import RUN, SPECIAL, TRAIN, VOCAB, WORDS, encoded, made_run, say, tokenizer_json

from eagle3ops.errors import RequestError
from eagle3ops.outputs import tokens as op
from eagle3ops.outputs.shard_samples import Sample
from eagle3ops.outputs.token_text import TokenTable, parse_ranks, parse_tokenizer, table_of


@pytest.fixture(scope="module")
def table() -> TokenTable:
    return TokenTable(parse_tokenizer(json.dumps(tokenizer_json()).encode()))


def told(root: Path, **arguments: Any) -> dict[str, Any]:
    """The answer, which must be JSON without NaN."""
    answer = op.tokens_of(root, RUN, **arguments)
    json.dumps(answer, allow_nan=False)
    return answer


def text_of(texts: Sequence[Any]) -> str:
    data = b""
    for token in texts:
        for part in [token] if isinstance(token, str) else token:
            data += part.encode() if isinstance(part, str) else bytes([part])
    return data.decode()


def test_a_sample_from_the_shards(tmp_path: Path) -> None:
    made_run(tmp_path)
    answer = told(tmp_path)
    sample, row = answer["sample"], TRAIN[0]
    prompt = len(encoded(row.prompt))
    assert (answer["source"], answer["rows"], answer["row"], sample["id"]) == ("features", 3, 0, row.id)
    assert text_of(sample["texts"]) == row.prompt + row.answer
    assert sample["trained"] == [(prompt, sample["total"])]
    missed = [at for at, k in enumerate(sample["ids"]) if WORDS.get(k) == " drafter"]
    assert (sample["missed"], sample["missed_tokens"]) == (missed, 1)
    assert [sample["ids"][at] for at in sample["special"]] == [258, 259, 259]
    assert answer["vocabulary"] == {"draft": VOCAB - 1, "target": VOCAB, "words": ""}
    assert sample["finish_reason"] == "stop"


def test_density_counts_the_split(tmp_path: Path) -> None:
    made_run(tmp_path)
    density = told(tmp_path)["density"]
    lengths = [(len(encoded(row.prompt)), len(encoded(row.answer))) for row in TRAIN]
    assert (density["rows"], density["of_rows"]) == (3, 3)
    assert density["tokens"] == sum(a + b for a, b in lengths)
    assert density["trained"] == sum(b for _, b in lengths)
    assert (density["missed"], sum(density["bins"]), density["empty"]) == (1, 3, 0)
    assert density["missed_most"] == [[257, 1, " drafter"]]
    assert told(tmp_path, row=1)["density"] == density


def test_thinking_and_bytes_that_are_no_characters(tmp_path: Path) -> None:
    made_run(tmp_path)
    sample = told(tmp_path, row=1)["sample"]
    [(a, b)] = sample["thinking"]
    assert [sample["ids"][at] for at in (a, b - 1)] == [260, 261]
    assert sample["thinking_tokens"] == b - a
    assert sample["texts"][a + 4 : a + 7] == [[0xE4], [0xBD], [0xA0]]
    assert text_of(sample["texts"]).startswith(TRAIN[1].prompt)


def test_going_to_a_sample(tmp_path: Path) -> None:
    made_run(tmp_path)
    assert told(tmp_path, row=99)["row"] == 2
    assert (found := told(tmp_path, find="TEA"))["row"], found["found"] == (2, True)
    assert told(tmp_path, row=2, find="e")["row"] == 0
    assert (lost := told(tmp_path, row=1, find="nowhere"))["row"] == 1
    assert lost["found"] is False
    assert told(tmp_path, split="heldout")["sample"]["id"] == "held/one"
    with pytest.raises(RequestError, match="split is train or heldout"):
        told(tmp_path, split="test")


def test_a_row_that_was_cut(tmp_path: Path) -> None:
    made_run(tmp_path, max_tokens=20)
    sample = told(tmp_path)["sample"]
    assert (sample["total"], sample["whole"]) == (20, len(encoded(TRAIN[0].prompt + TRAIN[0].answer)))


def test_answers_stand_in_before_extract_has_run(tmp_path: Path) -> None:
    made_run(tmp_path, stages=("fetch", "generate"), max_tokens=20)
    answer = told(tmp_path)
    assert (answer["source"], answer["words"]) == ("answers", "the extract stage has not run yet")
    assert answer["sample"]["trained"] == [(len(encoded(TRAIN[0].prompt)), 20)]
    assert answer["sample"]["missed"] == []
    assert answer["sample"]["missed_tokens"] is None
    assert answer["vocabulary"]["words"] == "the train stage has not run yet"
    assert told(tmp_path, find="tea")["row"] == 2
    assert answer["density"]["rows"] == 3


def test_nothing_at_all(tmp_path: Path) -> None:
    made_run(tmp_path, stages=())
    answer = told(tmp_path)
    assert (answer["rows"], answer["sample"], answer["words"]) == (0, None, "the generate stage has not run yet")


def test_the_mask_is_the_shards_and_not_made_up(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    made_run(tmp_path)
    path = next((tmp_path / "stages").glob("extract-*")) / "train" / "00000.safetensors"
    tensors = load_file(path)
    mask = tensors["loss_mask"].copy()
    mask[:] = False
    mask[3:5] = True
    save_file(tensors | {"loss_mask": mask}, path, metadata={"ids": json.dumps([row.id for row in TRAIN[:2]])})
    assert told(tmp_path)["sample"]["trained"] == [(3, 5)]
    assert told(tmp_path)["density"]["empty"] == 1


@pytest.mark.parametrize("damage", ["cut", "gone", "rows"])
def test_a_damaged_shard_is_named_and_others_are_shown(tmp_path: Path, damage: str) -> None:
    from safetensors.numpy import load_file, save_file

    made_run(tmp_path)
    path = next((tmp_path / "stages").glob("extract-*")) / "train" / "00000.safetensors"
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-10])
    elif damage == "gone":
        path.unlink()
    else:
        tensors = load_file(path)
        save_file(tensors | {"offsets": tensors["offsets"][::-1].copy()}, path, metadata={"ids": '["a", "b"]'})
    answer = told(tmp_path)
    assert answer["sample"] is None
    assert "shard 00000" in answer["words"]
    assert told(tmp_path, row=2)["sample"]["id"] == "tea/long"


def test_other_answers_are_not_taken_for_those_of_the_shards(tmp_path: Path) -> None:
    made_run(tmp_path)
    path = next((tmp_path / "stages").glob("generate-*")) / "answers.jsonl"
    path.write_text(path.read_text().replace('"prompt_ids":[258,', '"prompt_ids":[259,'))
    assert told(tmp_path)["sample"]["finish_reason"] is None
    path.write_text("garbage\n" + path.read_text()[:-20])
    assert told(tmp_path, row=2)["sample"]["id"] == "tea/long"


def test_a_tokenizer_that_is_gone_or_garbled(tmp_path: Path) -> None:
    made_run(tmp_path)
    file = tmp_path / "target" / "tokenizer.json"
    file.write_text('{"model": 3}')
    assert "has no model" in told(tmp_path)["tokenizer"]
    file.unlink()
    answer = told(tmp_path)
    assert "holds no tokenizer.json" in answer["tokenizer"]
    assert set(answer["sample"]["texts"]) == {None}


def test_a_long_sample_comes_in_parts(table: TokenTable) -> None:
    sample = Sample("long", [65] * 5000, [at % 2 == 1 for at in range(5000)])
    first = op.describe(sample, None, table, None)
    assert (len(first["ids"]), first["first"], first["total"], first["trained_tokens"]) == (4096, 0, 5000, 2500)
    rest = op.describe(sample, None, table, None, first=4096)
    assert (len(rest["ids"]), rest["first"], rest["trained"][0]) == (904, 4096, (4097, 4098))


@pytest.mark.parametrize(
    ("answer", "spans"),
    [
        ("<think>a</think>b", [(0, 3)]),
        ("a</think>b", [(0, 2)]),
        ("b<think>aa", [(1, 4)]),
        ("<think>a</think>b<think>c</think>", [(0, 3), (4, 7)]),
        ("abc", []),
    ],
)
def test_thinking_spans(table: TokenTable, answer: str, spans: list[tuple[int, int]]) -> None:
    ids = encoded(answer)
    assert op.thinking_spans(ids, table) == spans
    # Marks that are several tokens are found by their text.
    apart = [byte for k in ids for byte in table.tokens[k].data]
    several = TokenTable({k: token for k, token in table.tokens.items() if k < 256})
    found = op.thinking_spans(apart, several)
    assert len(found) == len(spans)
    assert all(bytes(apart[a:b]).decode().count("<think>") <= 1 for a, b in found)


@settings(max_examples=40)
@given(st.lists(st.integers(0, VOCAB + 5), max_size=30), st.lists(st.booleans(), min_size=30, max_size=30))
def test_any_tokens_can_be_described(table: TokenTable, ids: list[int], mask: list[bool]) -> None:
    known = np.zeros(VOCAB, dtype=bool)
    sample = Sample("x", ids, mask[: len(ids)])
    found = op.describe(sample, None, table, known)
    json.dumps(found, allow_nan=False)
    assert sum(b - a for a, b in found["trained"]) == sum(sample.mask) == len(found["missed"])


@given(st.binary(max_size=12))
def test_parts_put_together_are_the_bytes(data: bytes) -> None:
    parts = op.parts_of(data)
    joined = b"".join(
        part.encode() if isinstance(part, str) else bytes([part])
        for part in ([parts] if isinstance(parts, str) else parts)
    )
    assert joined == data


@settings(max_examples=40)
@given(st.binary(max_size=200) | st.recursive(
    st.none() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.sampled_from(["model", "vocab", "added_tokens", "id", "content", "decoder", "type"]),
                      inner, max_size=4),
    max_leaves=20,
).map(lambda data: json.dumps(data).encode()))  # fmt: skip
def test_a_garbled_tokenizer_is_refused_or_read(data: bytes) -> None:
    try:
        tokens = parse_tokenizer(data)
    except ValueError:
        return
    assert all(isinstance(token.data, bytes) for token in tokens.values())


def test_pieces_with_a_mark_for_blanks_and_ranks_in_base64(tmp_path: Path) -> None:
    raw = {"model": {"type": "Unigram", "vocab": [["<unk>", 0.0], ["▁tea", -1.0], ["<0xE4>", -2.0]]}, "decoder": None}
    assert [token.data for token in parse_tokenizer(json.dumps(raw).encode()).values()] == [b"<unk>", b" tea", b"\xe4"]
    ranks = b"\n".join(base64.b64encode(data) + b" %d" % k for k, data in enumerate([b"a", b" tea", b"\xe4"]))
    config = {"added_tokens_decoder": {"7": {"content": "<|im_end|>", "special": True}, "x": 1}}
    (tmp_path / "tiktoken.model").write_bytes(ranks)
    say(tmp_path / "tokenizer_config.json", config)
    table = table_of(tmp_path)
    assert [table.tokens[k].data for k in (0, 1, 2, 7)] == [b"a", b" tea", b"\xe4", b"<|im_end|>"]
    assert table.tokens[7].special
    with pytest.raises(ValueError, match="line 1 is not a token"):
        parse_ranks(b"???? x", b"{}")


def test_texts_are_those_of_the_tokenizer_itself(tmp_path: Path, table: TokenTable) -> None:
    from tokenizers import Tokenizer

    own = Tokenizer.from_str(json.dumps(tokenizer_json()))
    ids = [*encoded("Tee für 你 the drafter <think>\n\t</think>"), *SPECIAL]
    ours = b"".join(table.tokens[k].data for k in ids).decode()
    assert ours == own.decode(ids, skip_special_tokens=False)


def test_the_rows_are_those_that_training_reads(tmp_path: Path) -> None:
    from eagle3ops.features import FeatureReader

    run = made_run(tmp_path)
    folder = next((tmp_path / "stages").glob("extract-*")) / "train"
    for at, row in enumerate(FeatureReader(folder).rows()):
        sample = op.tokens_of(tmp_path, run.run_id, row=at)["sample"]
        assert (sample["id"], sample["ids"]) == (row.id, row.token_ids.tolist())
        assert sample["trained"] == op.spans(row.loss_mask.tolist())
