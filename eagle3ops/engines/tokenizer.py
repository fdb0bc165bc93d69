"""How do messages become token ids, and ids text? The target's own tokenizer and chat template."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eagle3ops.errors import Eagle3opsError

THINK = ("<think>", "</think>")
"""Marks around the reasoning of most models that show it."""


class TokenizerError(Eagle3opsError):
    """The tokenizer cannot be loaded, or cannot render these messages."""


class ChatTokenizer:
    """A model folder's tokenizer.

    Attributes:
        eos_ids: tokens that end an answer.
        bos_id: the token that begins a text; None where there is none.
        vocab_size: ids below it have a text.
    """

    def __init__(self, model_dir: Path, *, trust_remote_code: bool = False, think: tuple[str, str] = THINK) -> None:
        """Load from a local folder only; `think` are the marks around reasoning. Raises TokenizerError."""
        from transformers import AutoTokenizer

        if not model_dir.is_dir():
            raise TokenizerError(f"{model_dir}: no such folder", remedy="fetch the model first")
        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(
                str(model_dir), local_files_only=True, trust_remote_code=trust_remote_code
            )
        except Exception as error:
            raise TokenizerError(
                f"{model_dir}: the tokenizer cannot be loaded: {type(error).__name__}: {error}",
                remedy="fetch the model again; tokenizer.json and tokenizer_config.json belong to it",
            ) from error
        from eagle3ops.engines.reference.model import eos_ids

        own = self._tokenizer.eos_token_id
        self.eos_ids: tuple[int, ...] = eos_ids(model_dir) or (() if own is None else (int(own),))
        bos = self._tokenizer.bos_token_id
        self.bos_id: int | None = None if bos is None else int(bos)
        self.vocab_size = len(self._tokenizer)
        self._marks = think
        self._think = tuple(self._token_id(text) for text in think)

    def _token_id(self, text: str) -> int | None:
        ids = self._tokenizer.encode(text, add_special_tokens=False)
        return int(ids[0]) if len(ids) == 1 else None

    def encode_chat(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool = True) -> list[int]:
        """Messages through the chat template -> token ids; raises TokenizerError."""
        try:
            out = self._tokenizer.apply_chat_template(
                [dict(m) for m in messages],
                add_generation_prompt=add_generation_prompt,
                tokenize=True,
                return_dict=False,
            )
        except Exception as error:
            raise TokenizerError(f"the chat template does not take these messages: {error}") from error
        return [int(k) for k in out]

    def encode(self, text: str) -> list[int]:
        """Plain text -> ids, with the special tokens that the tokenizer adds by itself."""
        return [int(k) for k in self._tokenizer.encode(text)]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Ids -> text."""
        text: str = self._tokenizer.decode(
            list(ids), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
        )
        return text

    def thinking_tokens(self, ids: Sequence[int]) -> int:
        """How many tokens of an answer stand in thinking spans, the marks included; an open span runs to the end.

        Where the marks are no tokens of their own, their text is looked for instead.
        """
        opening, closing = self._think
        if opening is not None and closing is not None:
            return _span_tokens(list(ids), opening, closing)
        text = self.decode(ids, skip_special_tokens=False)
        count = 0
        while (start := text.find(self._marks[0])) >= 0:
            end = text.find(self._marks[1], start)
            span = text[start:] if end < 0 else text[start : end + len(self._marks[1])]
            count += len(self._tokenizer.encode(span, add_special_tokens=False))
            text = "" if end < 0 else text[end + len(self._marks[1]) :]
        return count


def _span_tokens(ids: Sequence[int], opening: int, closing: int) -> int:
    """Tokens in spans between `opening` and `closing`, both included; a closing mark without an opening one ends a
    span that the prompt has opened."""
    count, inside = 0, False
    for position, token in enumerate(ids):
        if token == opening:
            inside = True
        if token == closing and not inside:
            count = position + 1
            continue
        count += inside
        if token == closing:
            inside = False
    return count
