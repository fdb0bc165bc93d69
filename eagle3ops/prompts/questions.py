"""Which questions come with eagle3ops for measuring, by category? They are never trained on."""

from functools import cache
from importlib import resources

import yaml

from eagle3ops.errors import Eagle3opsError
from eagle3ops.prompts.prompt import Prompt

_FILE = "questions.yaml"


@cache
def bundled_questions() -> tuple[Prompt, ...]:
    """Every question of every category, in the file's order.

    A category is a list of questions, or texts that are each put into every instruction.
    """
    raw = (resources.files("eagle3ops.assets.prompts") / _FILE).read_text(encoding="utf-8")
    prompts = []
    for category, content in yaml.safe_load(raw).items():
        if isinstance(content, dict):
            texts = [
                instruction.format(text=text.strip())
                for text in content["texts"]
                for instruction in content["instructions"]
            ]
        else:
            texts = content
        for number, text in enumerate(texts, start=1):
            prompts.append(Prompt(f"{category}/{number}", ({"role": "user", "content": text.strip()},), category))
    if len({prompt.messages[0]["content"] for prompt in prompts}) != len(prompts):
        raise Eagle3opsError(f"{_FILE}: a question occurs twice")
    return tuple(prompts)
