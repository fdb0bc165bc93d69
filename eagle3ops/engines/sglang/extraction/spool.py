"""How do hidden states arrive out of shared memory? Checked, sorted to the requests that they belong to, as rows."""

import json
import mmap
import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from eagle3ops.eagle3.layers import AuxLayers
from eagle3ops.engines.client import EngineError
from eagle3ops.engines.sglang.extraction.block import Block, Layout, parse_block
from eagle3ops.engines.sglang.extraction.room import Memory, Pending, Room, make_room
from eagle3ops.features.format import Dtype
from eagle3ops.features.quantised import QuantisedRow
from eagle3ops.features.writer import FeatureRow

RING_BYTES = 2 << 30
SETTINGS = "EAGLE3OPS_EXTRACT"
_LINE_BYTES = 16 << 20
_CONNECT_S = 60.0
_STATES_S = 120.0
"""After the engine has answered a request, its states are there within milliseconds, unless they never come."""


class ServerGone(EngineError):
    """The server ended the connection; its log knows why."""


@dataclass(eq=False)
class Spool:
    """This end of the shared memory; a context manager that owns it.

    Attributes:
        layers: whose boundaries are wanted, in any order.
        dtype: of the states as they are handed over.
        blocks, bytes: that have come.
        hello: what the plugin said of itself once it had connected.
    """

    layers: AuxLayers
    hidden_size: int
    dtype: Dtype
    ring_bytes: int = RING_BYTES
    blocks: int = 0
    bytes: int = 0
    hello: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.changed = threading.Condition()
        self._failure: BaseException | None = None
        self._pending: dict[str, Pending] = {}
        self._kind: torch.dtype = getattr(torch, self.dtype)
        self._boundaries = sorted(self.layers.boundary)
        self._states = len(self._boundaries) + 1
        # Places of the wanted order in the engine's ascending one, the final state last.
        self._order = [*(self._boundaries.index(k) for k in self.layers.boundary), self._states - 1]
        self._memory = Memory(self.ring_bytes)
        self._closing = False
        self._stream: socket.socket | None = None

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="eagle3ops-"))
        self._descriptor = os.memfd_create("eagle3ops-states", os.MFD_CLOEXEC)
        try:
            os.ftruncate(self._descriptor, self.ring_bytes)
            self._ring = torch.frombuffer(mmap.mmap(self._descriptor, self.ring_bytes), dtype=torch.uint8)
            self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._listener.bind(str(self._folder / "socket"))
            self._listener.listen(1)
        except BaseException:
            os.close(self._descriptor)
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        self._thread = threading.Thread(target=self._receive, name="spool", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing = True
        for one in (self._listener, self._stream):
            if one is not None:
                # A blocked accept or recv returns only then.
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
                one.close()
        self._thread.join(10)
        self.fail(EngineError("the extraction has ended"))
        os.close(self._descriptor)
        shutil.rmtree(self._folder, ignore_errors=True)

    def variables(self) -> dict[str, str]:
        """What the server's environment needs besides the plugin's folder on its PYTHONPATH."""
        told = {
            "socket": str(self._folder / "socket"),
            "boundaries": self._boundaries,
            "layers": self.layers.num_layers,
            "dtype": self.dtype,
        }
        return {"SGLANG_PLUGINS": "eagle3ops_extract", SETTINGS: json.dumps(told)}

    def connected(self, timeout_s: float = _CONNECT_S) -> None:
        """Return once the plugin has connected; raises EngineError where it does not."""
        with self.changed:
            if not self.changed.wait_for(lambda: self.hello or self._failure, timeout_s):
                raise EngineError(
                    "the server is ready, but our plugin in it has not connected",
                    remedy="its log says why: look for eagle3ops_extract",
                )
            if self._failure is not None:
                raise self._failure

    def expect(self, rids: Sequence[str], texts: Sequence[Sequence[int]]) -> list[Pending]:
        """Make room for requests that are about to be sent; best those that are stored together.

        Args:
            texts: the token ids of each, at least one.
        """
        width = self._states * self.hidden_size
        made = make_room(rids, texts, self._memory, width, self._states, self._kind)
        with self.changed:
            self._pending.update((one.rid, one) for one in made)
        return made

    def fail(self, error: BaseException) -> None:
        """Whoever waits for rows gets this error; the first one stays."""
        with self.changed:
            self._failure = self._failure or error
            self.changed.notify_all()

    def wait(self, rows: Sequence[Pending], answered: "Future[Any]") -> None:
        """Return once all states of these requests are there.

        Args:
            answered: done when the engine has answered them all.

        Raises:
            EngineError, or what `fail` was told: they will not come.
        """
        since: float | None = None
        with self.changed:
            while any(row.missing for row in rows):
                if self._failure is not None:
                    raise self._failure
                if answered.done():
                    since = since or time.monotonic()
                    if time.monotonic() - since > _STATES_S:
                        lacking = next(row for row in rows if row.missing)
                        raise EngineError(
                            f"the engine has answered, but {lacking.missing} of {lacking.tokens} tokens of a "
                            "request came without their states",
                            remedy="is a prefix cache on? stages.extract.through: reference does without the engine",
                        )
                self.changed.wait(0.5)
            for row in rows:
                del self._pending[row.rid]

    def row(self, pending: Pending, name: str, prompt: int) -> FeatureRow | QuantisedRow:
        """What is stored of a request whose states are all there.

        Args:
            prompt: tokens that the target did not write.
        """
        part = slice(pending.first, pending.first + pending.tokens)
        room, aux_size = pending.room, self.hidden_size * (self._states - 1)
        mask = np.zeros(pending.tokens, dtype=np.bool_)
        mask[prompt:] = True
        ids, mine = torch.from_numpy(room.ids[part]), torch.from_numpy(mask)
        states, scales = room.states[part], None if room.scales is None else room.scales[part]
        if self._order != list(range(self._states)):
            states = states.view(pending.tokens, self._states, -1)[:, self._order].flatten(1)
            scales = None if scales is None else scales[:, self._order]
        aux, final = states[:, :aux_size], states[:, aux_size:]
        if scales is None:
            return FeatureRow(name, ids, mine, aux, final)
        return QuantisedRow(name, ids, mine, aux, final, scales[:, :-1], scales[:, -1:])

    def _receive(self) -> None:
        try:
            self._stream, _ = self._listener.accept()
            socket.send_fds(self._stream, [b"r"], [self._descriptor])
            with self._stream.makefile("rb") as lines:
                hello = json.loads(lines.readline(_LINE_BYTES) or b"{}")
                with self.changed:
                    self.hello = hello
                    self.changed.notify_all()
                while line := lines.readline(_LINE_BYTES):
                    self._take(parse_block(line, self.ring_bytes))
                    self._stream.sendall(b".")
            if not self._closing:
                self.fail(ServerGone("the server has closed the connection over which it hands over hidden states"))
        except (OSError, ValueError) as error:
            if not self._closing:
                self.fail(EngineError(f"the server's hidden states cannot be received: {error}"))
        except Exception as error:  # noqa: BLE001  (the thread's boundary: whoever waits must learn of it)
            self.fail(error)

    def _take(self, block: Block) -> None:
        layout = Layout.of(block.tokens, self.hidden_size, self._states, self._kind)
        if layout.size != block.size:
            raise ValueError(f"a block of {block.tokens} tokens has {block.size} bytes, not {layout.size}")
        whole = self._ring[block.at : block.at + block.size]
        said = int(whole[layout.end :].view(torch.int64))
        if int(whole[: layout.end].view(torch.int64).sum()) != said:
            raise ValueError("a block arrived with other bytes than were sent")
        ids = whole[: block.tokens * 4].view(torch.int32).numpy()
        width = self._states * self.hidden_size
        states = whole[layout.states : layout.states + block.tokens * width * self._kind.itemsize].view(self._kind)
        states = states.view(block.tokens, width)
        scales = whole[layout.scales : layout.end].view(torch.float32)[: block.tokens * self._states]
        rows = self._found(block, ids)
        for room, at, to, count in _together(rows):
            room.states[to : to + count].copy_(states[at : at + count])
            if room.scales is not None:
                room.scales[to : to + count].copy_(scales.view(block.tokens, -1)[at : at + count])
        with self.changed:
            for row, _, to, count in rows:
                there = row.room.there[to : to + count]
                # A request that was put off may be computed again.
                row.missing -= count - int(there.sum())
                there[:] = True
            self.changed.notify_all()
        self.blocks += 1
        self.bytes += block.size

    def _found(self, block: Block, ids: NDArray[np.int32]) -> list[tuple[Pending, int, int, int]]:
        """The requests of a block, where in the block and in their room their tokens begin, and how many they are."""
        found, at = [], 0
        for rid, start, count in block.rows:
            row = self._pending.get(rid)
            if row is None:
                raise ValueError(f"states of request {rid}, which nobody waits for")
            to = row.first + start
            if start + count > row.tokens or not np.array_equal(ids[at : at + count], row.room.ids[to : to + count]):
                raise ValueError(f"tokens {start} to {start + count} of request {rid} are not those that were sent")
            found.append((row, at, to, count))
            at += count
        return found


def _together(rows: Sequence[tuple[Pending, int, int, int]]) -> Iterator[tuple[Room, int, int, int]]:
    """Rows that lie one behind the other in the block and in their room, as one."""
    run: tuple[Room, int, int, int] | None = None
    for row, at, to, count in rows:
        # In the block each row begins where the one before it ended.
        if run is not None and run[0] is row.room and to == run[2] + run[3]:
            run = (*run[:3], run[3] + count)
            continue
        if run is not None:
            yield run
        run = (row.room, at, to, count)
    if run is not None:
        yield run
