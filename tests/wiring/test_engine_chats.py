"""Do real engines tell what their chat template makes of a conversation, and is another template found out?"""

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from eagle3ops.answers import AnswerRow
from eagle3ops.engines.base import ServeSpec
from eagle3ops.engines.client import EngineClient, EngineRefused
from eagle3ops.engines.registry import adapter
from eagle3ops.engines.serving import free_port, logged, running
from eagle3ops.engines.tokenizer import ChatTokenizer
from eagle3ops.jobs.verify import ask_chats
from eagle3ops.targets.tiny import make_tiny
from eagle3ops.wiring.checks import Check
from eagle3ops.wiring.data import Prompt, Rendering, check_template

TALKS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "Hello"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is a drafter?"}],
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    make_tiny(folder)
    return folder


async def chats(client: Any, model: Path) -> Check:
    """What the client's engine makes of the talks, against the data's tokens."""
    tokenizer = ChatTokenizer(model)
    rows = [
        AnswerRow(id=str(at), split="heldout", messages=talk, prompt_ids=tokenizer.encode_chat(talk), output_ids=[5],
                  finish_reason="length") for at, talk in enumerate(TALKS)
    ]  # fmt: skip
    found, words = await ask_chats(client, rows, {str(at): talk for at, talk in enumerate(TALKS)})
    assert len(found) == len(rows), words
    prompts = [
        Prompt(row.id, tuple(row.prompt_ids), Rendering(tuple(row.prompt_ids), None), *found[row.id]) for row in rows
    ]
    return check_template(prompts, tokenizer.bos_id, str, engine=True)


@asynccontextmanager
async def serving(name: str, model: Path, log: Path, **options: Any) -> AsyncIterator[EngineClient]:
    """A real engine, ended with the block."""
    spec = ServeSpec(model=model, port=free_port(), dtype="float32", device="cpu", max_running_requests=1,
                     return_hidden_states=True, **options)  # fmt: skip

    async with running(adapter(name), spec, spawn=logged(log), log=log) as client:
        yield client


async def test_the_reference_engine_tells_its_tokens(model: Path, tmp_path: Path) -> None:
    async with serving("reference", model, tmp_path / "log") as client:
        check = await chats(client, model)
    assert (check.verdict, check.figures["by"]) == ("PASS", "ids"), check


async def test_an_engine_that_refuses_the_switch_is_asked_without_it(model: Path) -> None:
    tokenizer = ChatTokenizer(model)
    asked: list[bool] = []

    class Counting:
        """As an engine that knows nothing of ids, and counts one token more than the data has."""

        async def chat(self, messages: Sequence[Mapping[str, Any]], **more: Any) -> dict[str, Any]:
            asked.append(bool(more))
            if more:
                raise EngineRefused("return_prompt_token_ids: unknown parameter")
            count = len(tokenizer.encode_chat(messages))
            return {"usage": {"prompt_tokens": count + 1}, "choices": [{}]}

    check = await chats(Counting(), model)
    assert asked == [True, True, False, False]
    assert (check.verdict, check.kind, check.figures["by"]) == ("FAIL", "doubled_bos", "counts")
    assert "judged by the number of tokens alone" in check.reason


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("other", [False, True])
async def test_a_real_sglang_tells_its_tokens(model: Path, tmp_path: Path, other: bool) -> None:
    template = tmp_path / "other.jinja"
    template.write_text((model / "chat_template.jinja").read_text().replace("assistant\n", "assistant: "))
    options: dict[str, Any] = {"python": os.environ["EAGLE3OPS_SGLANG_PYTHON"]}
    if other:
        options["arguments"] = ("--chat-template", str(template))
    async with serving("sglang", model, tmp_path / "log", **options) as client:
        check = await chats(client, model)
    assert check.figures["by"] == "ids", check
    assert (check.verdict, check.kind) == (("FAIL", "template") if other else ("PASS", "")), check
