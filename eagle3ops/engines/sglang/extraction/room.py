"""Where do the states of a shard lie while they come, and how is their memory used again?"""

import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Memory:
    """Memory that comes back when nobody looks at it any more; it is taken by one thread, and comes back from any.

    A page that the process has never touched, or has given back, costs more than the copy into it.
    """

    def __init__(self, most: int) -> None:
        """Args: most: bytes that are kept for later; what is more is freed when something is taken."""
        self._most = most
        self._free: list[NDArray[np.uint8]] = []
        self._returned: deque[NDArray[np.uint8]] = deque()

    def take(self, size: int) -> Tensor:
        """So many bytes, uint8, of any content."""
        while self._returned:
            self._free.append(self._returned.popleft())
        fitting = [k for k, one in enumerate(self._free) if size <= one.nbytes <= size + size // 4]
        if fitting:
            whole = self._free.pop(min(fitting, key=lambda k: self._free[k].nbytes))
        else:
            whole = np.empty(size, dtype=np.uint8)
        while sum(one.nbytes for one in self._free) > self._most:
            del self._free[0]
        seen = whole[:size]
        # Every tensor that shows a part of it holds this view; with the last of them the view dies. That may be
        # anywhere, in the midst of this method too, so it takes no lock.
        weakref.finalize(seen, self._returned.append, whole).atexit = False
        return torch.from_numpy(seen)


@dataclass(slots=True, eq=False)
class Room:
    """The requests of one shard, one behind the other, so that one copy can serve many.

    Attributes:
        ids: int32 `[T]`; states: `[T, S * H]`, filled as they come; scales: `[T, S]`, of states in eight bits.
        there: which tokens' states are.
    """

    ids: NDArray[np.int32]
    states: Tensor
    scales: Tensor | None
    there: NDArray[np.bool_]


@dataclass(slots=True, eq=False)
class Pending:
    """A request whose states are on their way.

    Attributes:
        first: place of its first token in the room; tokens: how many; missing: how many states are not there.
    """

    rid: str
    room: Room
    first: int
    tokens: int
    missing: int

    @property
    def ids(self) -> NDArray[np.int32]:
        """int32 `[tokens]`."""
        return self.room.ids[self.first : self.first + self.tokens]


def make_room(
    rids: Sequence[str], texts: Sequence[Sequence[int]], memory: Memory, width: int, states: int, dtype: torch.dtype
) -> list[Pending]:
    """Make room for requests.

    Args:
        width: numbers of a token, of `states` states.
    """
    ids = np.concatenate([np.asarray(text, dtype=np.int32) for text in texts])
    tokens = ids.size
    eight = dtype == torch.float8_e4m3fn
    room = Room(
        ids,
        memory.take(tokens * width * dtype.itemsize).view(dtype).view(tokens, width),
        torch.empty(tokens, states) if eight else None,
        np.zeros(tokens, dtype=np.bool_),
    )
    made, first = [], 0
    for rid, text in zip(rids, texts, strict=True):
        made.append(Pending(rid, room, first, len(text), len(text)))
        first += len(text)
    return made
