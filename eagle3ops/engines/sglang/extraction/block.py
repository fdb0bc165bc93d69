"""What does the plugin say of a block of hidden states, and where do its parts lie?"""

import json
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Block:
    """Where states lie in the ring.

    Attributes:
        at, size: bytes.
        tokens: in all.
        rows: request, position of the first token in it, tokens.
    """

    at: int
    size: int
    tokens: int
    rows: tuple[tuple[str, int, int], ...]


def parse_block(line: bytes, ring_bytes: int) -> Block:
    """One line of the plugin.

    Raises:
        ValueError: it says nothing that can be, and why.
    """
    try:
        raw = json.loads(line)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(raw, dict):
        raise ValueError(f"an object was expected, not {type(raw).__name__}")
    at, size, tokens, told = raw.get("at"), raw.get("bytes"), raw.get("tokens"), raw.get("rows")
    if type(at) is not int or type(size) is not int or type(tokens) is not int or not isinstance(told, list):
        raise ValueError("at, bytes and tokens must be whole numbers, rows a list")
    if at < 0 or size <= 0 or at + size > ring_bytes or at % 8 or size % 8:
        raise ValueError(f"bytes {at} to {at + size} are no part of a ring of {ring_bytes}")
    rows: list[tuple[str, int, int]] = []
    for one in told:
        if not isinstance(one, list) or len(one) != 3:
            raise ValueError("a row is a request, a position and a number of tokens")
        rid, start, count = one
        if not isinstance(rid, str) or type(start) is not int or type(count) is not int or start < 0 or count <= 0:
            raise ValueError("a row is a request, a position and a number of tokens")
        rows.append((rid, start, count))
    if sum(count for _, _, count in rows) != tokens:
        raise ValueError(f"its rows do not make {tokens} tokens")
    return Block(at, size, tokens, tuple(rows))


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the parts of a block begin; the plugin's `parts_of` says the same."""

    states: int
    scales: int
    end: int
    size: int

    @classmethod
    def of(cls, tokens: int, hidden: int, states: int, dtype: torch.dtype) -> "Layout":
        """Of so many tokens with so many states each."""
        at = _up(tokens * 4)
        scales = at + _up(tokens * states * hidden * dtype.itemsize)
        end = scales + (_up(tokens * states * 4) if dtype == torch.float8_e4m3fn else 0)
        return cls(at, scales, end, end + 8)


def _up(value: int) -> int:
    return -(-value // 8) * 8
