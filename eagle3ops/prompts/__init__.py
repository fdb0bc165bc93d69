"""Where do prompts come from? The bundled everyday set, and files of one's own."""

from eagle3ops.prompts.bundled import HELDOUT, bundled_prompts
from eagle3ops.prompts.files import BrokenRow, LoadedPrompts, load_prompts, parse_row
from eagle3ops.prompts.prompt import Message, Prompt

__all__ = [
    "HELDOUT",
    "BrokenRow",
    "LoadedPrompts",
    "Message",
    "Prompt",
    "bundled_prompts",
    "load_prompts",
    "parse_row",
]
