"""Where do keys and values of running requests live, and how do they move when requests come, go and are verified?

Row r of the cache belongs to the r-th running request; rows are kept dense (the last one fills a hole), so a step
computes on a slice and never on a gather. Rows grow by need: a server that may hold long contexts does not pay for
them before they come.
"""

import torch
from torch import Tensor

from eagle3ops.eagle3.arithmetic import widened

_LENGTH_STEP = 256


class KVCache:
    """Keys and values of every layer.

    Attributes:
        keys, values: one `[rows, length, kv_heads, D]` tensor per layer.
        dtype: theirs; wider than what is written where products of that are slow.
    """

    def __init__(
        self, layers: int, kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device, max_rows: int
    ) -> None:
        self._shape = (kv_heads, head_dim)
        self.dtype = widened(dtype, device)
        self._options = (self.dtype, device)
        self._max_rows = max_rows
        self.rows = 0
        self.length = 0
        self.keys: list[Tensor] = [self._empty(0, 0) for _ in range(layers)]
        self.values: list[Tensor] = [self._empty(0, 0) for _ in range(layers)]

    def _empty(self, rows: int, length: int) -> Tensor:
        # Zeros, not empty: masked entries still enter a product with weight 0, and 0 * NaN is NaN.
        return torch.zeros((rows, length, *self._shape), dtype=self._options[0], device=self._options[1])

    @property
    def nbytes(self) -> int:
        """Bytes held now."""
        return sum(t.nbytes for t in (*self.keys, *self.values))

    def reserve(self, rows: int, length: int) -> None:
        """Grow so that `rows` requests of up to `length` tokens fit; what is cached stays."""
        if rows <= self.rows and length <= self.length:
            return
        new_rows = max(self.rows, min(self._max_rows, max(rows, 2 * self.rows)) if rows > self.rows else 0)
        new_length = self.length
        if length > self.length:
            new_length = -(-max(length, self.length * 5 // 4) // _LENGTH_STEP) * _LENGTH_STEP
        for side in (self.keys, self.values):
            for layer, old in enumerate(side):
                grown = self._empty(new_rows, new_length)
                grown[: self.rows, : self.length] = old
                side[layer] = grown
        self.rows, self.length = new_rows, new_length

    def write(self, layer: int, rows: Tensor | slice, at: Tensor | slice, k: Tensor, v: Tensor) -> None:
        """Store k and v `[B, T, kv_heads, D]` at entries `at` of `rows` (both slices, or broadcasting indices)."""
        self.keys[layer][rows, at] = k.to(self.dtype)
        self.values[layer][rows, at] = v.to(self.dtype)

    def view(self, layer: int, rows: slice, length: int) -> tuple[Tensor, Tensor]:
        """The first `length` entries of `rows`."""
        return self.keys[layer][rows, :length], self.values[layer][rows, :length]

    def move_row(self, source: int, target: int, length: int) -> None:
        """Let the request of row `source` go on in row `target`."""
        if source == target:
            return
        for tensor in (*self.keys, *self.values):
            tensor[target, :length] = tensor[source, :length]

    def compact(self, row: int, start: int, kept: list[int]) -> None:
        """Close up behind an accepted path: entries `start + kept[j]` become `start + j`."""
        moves = [(j, k) for j, k in enumerate(kept) if j != k]
        if not moves:
            return
        to = torch.tensor([start + j for j, _ in moves], device=self._options[1])
        come = torch.tensor([start + k for _, k in moves], device=self._options[1])
        for tensor in (*self.keys, *self.values):
            tensor[row, to] = tensor[row, come]
