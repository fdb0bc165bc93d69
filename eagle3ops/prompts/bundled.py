"""Which prompts come with eagle3ops? Every topic put into every instruction, shuffled, with a fixed held-out part.

The first `HELDOUT` prompts are the same for every seed, so that accept lengths of different runs can be compared; no
text among them occurs among the others. They share topics and style with the rest: what is measured on them says how
well a drafter does on unseen prompts of this kind, not on any prompt.
"""

import random
from functools import cache
from importlib import resources

import yaml

from eagle3ops.errors import Eagle3opsError
from eagle3ops.prompts.prompt import Prompt

HELDOUT = 128
"""Leading prompts of `bundled_prompts` that are meant to be kept out of training."""

_FILE = "everyday.yaml"


@cache
def _all_prompts() -> tuple[Prompt, ...]:
    """Every combination, in the file's order."""
    text = (resources.files("eagle3ops.assets.prompts") / _FILE).read_text(encoding="utf-8")
    data = yaml.safe_load(text)
    prompts = []
    for category, topics in data["topics"].items():
        for topic in topics:
            for name, instruction in data["instructions"].items():
                slug = topic.lower().replace(" ", "-")
                content = instruction.format(topic=topic)
                prompts.append(Prompt(f"{slug}/{name}", ({"role": "user", "content": content},), category))
    if len({prompt.messages[0]["content"] for prompt in prompts}) != len(prompts):
        raise Eagle3opsError(f"{_FILE}: a prompt occurs twice")
    return tuple(prompts)


def bundled_prompts(seed: int) -> list[Prompt]:
    """All bundled prompts, each text once: the held-out ones first, then the others in an order set by `seed`."""
    prompts = list(_all_prompts())
    random.Random(0).shuffle(prompts)
    heldout, rest = prompts[:HELDOUT], prompts[HELDOUT:]
    random.Random(seed).shuffle(rest)
    return heldout + rest
