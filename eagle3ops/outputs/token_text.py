"""What does a token say? The bytes of each id, read from the files of the target's tokenizer.

Nothing is tokenised here, so no tokenizer is needed: a table from ids to bytes is enough, and it cannot run code that
came with a model. Four kinds of tables are known: byte-level BPE and pieces with a mark for blanks (`tokenizer.json`),
WordPiece (the same file), and ranks in base64 (`tiktoken.model`, as Kimi has it).
"""

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

TOKENIZER = "tokenizer.json"
RANKS = "*.tiktoken", "tiktoken.model"
CONFIG = "tokenizer_config.json"
FILE_BYTES = 256 << 20
"""The largest tokenizers have some ten MiB."""
IDS = 1 << 22
"""A vocabulary has some hundred thousand ids; a garbled one does not fill the memory."""


@dataclass(frozen=True, slots=True)
class Token:
    """One entry of a vocabulary."""

    data: bytes
    special: bool = False
    """A control token: a part of the chat format, not of the text."""


@dataclass(frozen=True, slots=True)
class TokenTable:
    """A vocabulary by id."""

    tokens: Mapping[int, Token]
    words: str = ""
    """Why texts are missing; empty when they are known."""

    def ids_of(self, *texts: str) -> tuple[int | None, ...]:
        """The id of each text that is a token by itself."""
        wanted = {text.encode(errors="replace") for text in texts}
        found = {token.data: k for k, token in self.tokens.items() if token.data in wanted}
        return tuple(found.get(text.encode(errors="replace")) for text in texts)


def table_of(folder: Path) -> TokenTable:
    """The vocabulary of a model folder; empty, with words that say why, where it cannot be read."""
    try:
        for path in (folder / TOKENIZER, *sorted(path for name in RANKS for path in folder.glob(name))):
            if path.is_file():
                about = path.stat()
                return _read(path, about.st_size, about.st_mtime_ns)
    except OSError as error:
        return TokenTable({}, f"the tokenizer cannot be read: {error.strerror}")
    return TokenTable({}, f"{folder} holds no {TOKENIZER} and no {RANKS[1]}")


@lru_cache(maxsize=2)
def _read(path: Path, size: int, mtime_ns: int) -> TokenTable:
    """Kept for the next sample: reading takes some tenths of a second. Size and time are there to tell a new file."""
    if size > FILE_BYTES:
        return TokenTable({}, f"{path} has {size} bytes, which no tokenizer has")
    try:
        if path.name == TOKENIZER:
            return TokenTable(parse_tokenizer(path.read_bytes()))
        config = path.with_name(CONFIG)
        return TokenTable(parse_ranks(path.read_bytes(), config.read_bytes() if config.is_file() else b"{}"))
    except OSError as error:
        return TokenTable({}, f"{path} cannot be read: {error.strerror}")
    except ValueError as error:
        return TokenTable({}, f"{path}: {error}")


def parse_tokenizer(data: bytes) -> dict[int, Token]:
    """The vocabulary in a `tokenizer.json`.

    Raises:
        ValueError: it is not one.
    """
    try:
        raw = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from error
    model = raw.get("model") if isinstance(raw, dict) else None
    if not isinstance(model, dict):
        raise ValueError("it has no model")
    kinds = _decoders(raw.get("decoder"))
    tokens: dict[int, Token] = {}
    for piece, k in _pieces(model.get("vocab")):
        if "ByteLevel" in kinds:
            tokens[k] = Token(_from_byte_level(piece))
        elif "WordPiece" in kinds:
            tokens[k] = Token(piece.removeprefix("##").encode(errors="replace") if piece.startswith("##") else
                              b" " + piece.encode(errors="replace"))  # fmt: skip
        else:
            tokens[k] = Token(_from_piece(piece))
    for added in raw["added_tokens"] if isinstance(raw.get("added_tokens"), list) else []:
        if isinstance(added, dict) and _is_id(added.get("id")):
            text = str(added.get("content", ""))
            tokens[added["id"]] = Token(text.encode(errors="replace"), added.get("special") is True)
    return tokens


def _decoders(decoder: object) -> set[str]:
    if not isinstance(decoder, dict):
        return set()
    several = decoder.get("decoders")
    kinds = {str(decoder.get("type"))}
    for one in several if isinstance(several, list) else []:
        kinds |= {str(one.get("type"))} if isinstance(one, dict) else set()
    return kinds


def _pieces(vocab: object) -> list[tuple[str, int]]:
    """BPE and WordPiece map pieces to ids; Unigram lists pieces with their scores."""
    if isinstance(vocab, dict):
        return [(piece, k) for piece, k in vocab.items() if _is_id(k)]
    if isinstance(vocab, list):
        return [(str(one[0]), k) for k, one in enumerate(vocab[:IDS]) if isinstance(one, list) and one]
    raise ValueError("its model has no vocabulary")


def _is_id(value: object) -> bool:
    return type(value) is int and 0 <= value < IDS


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's alphabet: one printable character for each byte (`bytes_to_unicode` in its `encoder.py`)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + at): byte for at, byte in enumerate(rest)}


_BYTES = _byte_alphabet()


def _from_byte_level(piece: str) -> bytes:
    try:
        return bytes(_BYTES[character] for character in piece)
    except KeyError:
        return piece.encode(errors="replace")


def _from_piece(piece: str) -> bytes:
    """`▁` stands for a blank, `<0xE4>` for a byte."""
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        try:
            return bytes([int(piece[3:5], 16)])
        except ValueError:
            pass
    return piece.replace("\u2581", " ").encode(errors="replace")


def parse_ranks(data: bytes, config: bytes) -> dict[int, Token]:
    """The vocabulary in a file of base64 tokens with ranks, and the special tokens in `tokenizer_config.json`.

    Raises:
        ValueError: a line is not a token with its rank.
    """
    tokens: dict[int, Token] = {}
    for number, line in enumerate(data.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            encoded, rank = line.split()
            k = int(rank)
            if not _is_id(k):
                raise ValueError(f"the rank {k}")
            tokens[k] = Token(base64.b64decode(encoded, validate=True))
        except (ValueError, binascii.Error) as error:
            raise ValueError(f"line {number} is not a token with its rank: {error}") from error
    try:
        known: Any = json.loads(config)
    except (ValueError, RecursionError):
        known = {}
    added = known.get("added_tokens_decoder") if isinstance(known, dict) else None
    for name, about in added.items() if isinstance(added, dict) else ():
        if name.isascii() and name.isdigit() and len(name) < 8 and isinstance(about, dict) and _is_id(int(name)):
            text = str(about.get("content", "")).encode(errors="replace")
            tokens[int(name)] = Token(text, about.get("special") is True)
    return tokens
