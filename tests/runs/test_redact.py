"""Does a secret stay out of whatever a run writes?"""

import json
import string

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from toy_world import Toy

from eagle3ops.runs.redact import GONE, redact, redact_argv, redact_data

LETTERS = string.ascii_letters + string.digits


def secrets(size: int, alphabet: str = LETTERS) -> st.SearchStrategy[str]:
    return st.text(alphabet, min_size=size, max_size=size + 20)


FORMS = st.one_of(
    secrets(20).map(lambda s: ("hf_" + s, s)),
    secrets(20).map(lambda s: ("sk-" + s, s)),
    secrets(36).map(lambda s: ("ghp_" + s, s)),
    secrets(22).map(lambda s: ("github_pat_" + s, s)),
    st.text(string.ascii_uppercase + string.digits, min_size=16, max_size=16).map(lambda s: ("AKIA" + s, s)),
    secrets(12).map(lambda s: (f"Authorization: Bearer {s}", s)),
    secrets(12).map(lambda s: (f"{{'Authorization': 'bearer {s}'}}", s)),
    secrets(8).map(lambda s: (f"password={s}", s)),
    secrets(8).map(lambda s: (f'"password": "{s}"', s)),
    secrets(8).map(lambda s: (f"api_key='{s} {s}'", s)),
    secrets(8).map(lambda s: (f"HF_TOKEN={s}", s)),
    secrets(8).map(lambda s: (f"export CLIENT_SECRET='{s}'", s)),
    secrets(8).map(lambda s: (f"SSH_KEY={s}", s)),
    secrets(8).map(lambda s: (f"https://ann:{s}@hub.example/x", s)),
    secrets(8).map(lambda s: (f"https://{s}@hub.example/x", s)),
    secrets(8).map(lambda s: (f"git+ssh://ann:{s}@[::1]:22/x", s)),
    secrets(8).map(lambda s: (f"python -m serve --api-key {s} --port 1", s)),
    secrets(40).map(lambda s: (f"-----BEGIN OPENSSH PRIVATE KEY-----\n{s}\n{s}\n-----END OPENSSH PRIVATE KEY-----", s)),
    secrets(40).map(lambda s: (f"-----BEGIN PRIVATE KEY-----\n{s}\nand no end", s)),
)

AROUND = st.text(st.characters(codec="utf-8"), max_size=30)


@given(FORMS, AROUND, AROUND)
def test_a_secret_is_taken_out_wherever_it_stands(form: tuple[str, str], before: str, after: str) -> None:
    text, secret = form
    assume(secret not in before + after)
    clean = redact(f"{before}\n {text}\n{after}")
    assert secret not in clean
    assert GONE in clean
    assert redact(clean) == clean


@given(st.text(max_size=200))
def test_any_text_can_be_redacted_and_twice_is_once(text: str) -> None:
    assert redact(redact(text)) == redact(text)


@pytest.mark.parametrize(
    "text",
    [
        "make: 4,000 tokens in 12 s",
        "max_tokens=512 tokenizer=/models/x eos_token='</s>'",
        "ssh://ann@gpu-host:22/work and https://hub.example/a@b",
        "stage key 0a1b2c, risk-free, task-0123456789abcdef0",
        "--max-tokens 5 --tokenizer x --monkey y",
        "see docs/keys.md: keys are hashes",
        "/root/.cache/huggingface/hf_transfer",
        "sha256 e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact(text) == text
    assert redact_data({"text": text, "argv": text.split(" ")}) == {"text": text, "argv": text.split(" ")}


@given(st.lists(st.text(max_size=12), max_size=6), secrets(6), st.sampled_from(["--api-key", "--token", "--hf-token"]))
def test_an_argument_after_the_name_of_a_secret_is_one(arguments: list[str], secret: str, name: str) -> None:
    clean = redact_argv([*arguments, name, secret, "--port", "1"])
    assert clean[-4:] == [name, GONE, "--port", "1"]
    assert len(clean) == len(arguments) + 4


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)


@given(json_values, FORMS)
def test_data_is_redacted_at_every_depth_and_stays_json(value: object, form: tuple[str, str]) -> None:
    clean = redact_data({"a": [value, {"b": form[0]}], "api_key": form[1], "argv": ["x", form[0]]})
    text = json.dumps(clean)
    assert form[1] not in json.dumps([clean["a"][1], clean["api_key"], clean["argv"]])
    assert json.loads(text) == clean


def test_a_canary_is_in_no_file_of_a_run(toy: Toy) -> None:
    run = toy.job("--set", "stages.use.mode=secret")
    assert run.returncode == 1
    assert "ConnectionError: 401 for" in run.stderr
    canaries = [b"hf_" + b"Canary" * 4, b"CanaryCanary", b"canary-"]
    searched = 0
    for path in toy.root.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            searched += 1
            for canary in canaries:
                assert canary not in content, path
    assert searched > 8
    for text in (run.stdout, run.stderr, toy.call("runs", "show", "last").stdout):
        assert "Canary" not in text
        assert "canary-" not in text
    assert sum(GONE in json.dumps(event) for event in toy.events()) >= 6


@pytest.mark.parametrize("before", ["\x1b[32m", "\x1b[1;38;5;12m", "\x1b[m", "\\u001b[32m", "\\n"])
@pytest.mark.parametrize("form", ["hf_{}", "Bearer {}", "HF_TOKEN={}", "HF_TOKEN=\x1b[1m{}", "my_api_key: {}"])
def test_a_secret_is_found_behind_what_colours_it(before: str, form: str) -> None:
    clean = redact(f"told {before}{form.format('cAnArY' * 4)}\x1b[0m, take care")
    assert "cAn" not in clean
    assert clean.endswith("take care")
    assert redact(clean) == clean
