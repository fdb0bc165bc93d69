"""Inside SGLang, by its own plugin hook: hand the hidden states of whole prompts to another process, through memory.

Loaded where SGLANG_PLUGINS names it and EAGLE3OPS_EXTRACT holds, as JSON:

    socket      path of a Unix socket; who listens there sends one file descriptor: shared memory, used as a ring
    boundaries  whose states are wanted, ascending; k is the input of layer k
    layers      of the target
    dtype       bfloat16, float32 or float8_e4m3fn

Only requests whose id begins with PREFIX are handed over. A forward pass makes one or more *blocks* in the ring:

    token ids   int32 [T]
    states      dtype [T, S * H], the boundaries side by side, then the state before the final norm
    scales      float32 [T, S], with float8_e4m3fn only
    sum         int64, of all bytes before it read as int64, wrapping; made where the states were computed

Each part begins at a multiple of 8 bytes. Once a block has arrived in the ring, one line of JSON says so on the socket:
`{"at": offset, "bytes": n, "tokens": T, "rows": [[request id, position of its first token, tokens], ...]}`. The reader
answers every block with one byte when it has taken it, in their order. Where the ring is full, the scheduler waits;
where the reader has gone, the server ends with an error. Needs torch and SGLang only.
"""

import json
import mmap
import os
import queue
import socket
import threading
from collections import deque
from contextlib import suppress
from typing import Any

import torch

SETTINGS = "EAGLE3OPS_EXTRACT"
PREFIX = "eagle3ops-"
PARTS_OF_RING = 4
"""A block takes at most this part of the ring, so that one is filled while others are read."""
ALIGN = 64
ARGUMENTS = ("self", "input_ids", "hidden_states", "lm_head", "logits_metadata", "aux_hidden_states")
"""Of LogitsProcessor.forward."""
E4M3_MOST = 448.0
_TINY = torch.finfo(torch.float32).tiny
_WAIT_S = 1.0


def register() -> None:
    """Called by SGLang in each of its processes."""
    told = os.environ.get(SETTINGS)
    if told is None:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType  # type: ignore[import-not-found]

    tap = Tap(json.loads(told))
    HookRegistry.register("sglang.srt.model_executor.model_runner.ModelRunner.load_model", tap.loaded, HookType.AFTER)
    HookRegistry.register("sglang.srt.layers.logits_processor.LogitsProcessor.forward", tap.seen, HookType.BEFORE)


class Tap:
    """What the hooks of one process share."""

    def __init__(self, told: dict[str, Any]) -> None:
        self.told = told
        self.final: torch.Tensor | None = None
        self.sender: Sender | None = None

    def loaded(self, result: object, runner: Any, *_args: object, **_kwargs: object) -> None:
        """The model is there: have it capture the boundaries, and connect."""
        from sglang.srt.runtime_context import get_parallel  # type: ignore[import-not-found]

        capture(runner.model, self.told["boundaries"])
        final_norm(runner.model, self.told["layers"]).register_forward_hook(self.normed)
        # Every rank has all of the states; one hands them over.
        if get_parallel().tp_rank == 0:
            self.sender = Sender(self.told, type(runner.model).__name__)

    def normed(self, _module: object, args: tuple[Any, ...], output: object) -> None:
        """Keep what the final norm was given: with a residual it returns the sum beside the normed state."""
        self.final = output[1] if isinstance(output, tuple) else args[0]

    def seen(self, *args: Any, **more: Any) -> None:
        """A forward pass has computed its states."""
        final, self.final = self.final, None
        given = dict(zip(ARGUMENTS, args, strict=False)) | more
        batch = given["logits_metadata"]
        rids = getattr(batch, "rids", None)
        if self.sender is None or not rids or not batch.forward_mode.is_extend():
            return
        spans, first = [], 0
        for rid, start, count in zip(rids, batch.extend_prefix_lens_cpu, batch.extend_seq_lens_cpu, strict=True):
            if rid.startswith(PREFIX):
                spans.append((rid, int(start), first, int(count)))
            first += int(count)
        if not spans:
            return
        aux = given.get("aux_hidden_states")
        if aux is None or final is None:
            raise RuntimeError("eagle3ops: this model hands over no hidden states of layers")
        self.sender.send(spans, given["input_ids"], [*([aux] if isinstance(aux, torch.Tensor) else aux), final])


def capture(model: Any, boundaries: list[int]) -> None:
    """Have the model capture the inputs of layers `boundaries`.

    Most classes add one to the ids that they are given, some do not; what they will capture is read back.
    """
    if not hasattr(model, "set_eagle3_layers_to_capture"):
        raise RuntimeError(f"eagle3ops: {type(model).__name__} cannot hand over the states of layers")
    found: list[int] | None = None
    for ids in ([k - 1 for k in boundaries], list(boundaries)):
        model.set_eagle3_layers_to_capture(ids)
        told = (getattr(module, "layers_to_capture", None) for module in model.modules())
        found = next((sorted(int(k) for k in layers) for layers in told if layers), None)
        if found == boundaries:
            return
    raise RuntimeError(f"eagle3ops: {type(model).__name__} captures layers {found}, not {boundaries}")


def final_norm(model: Any, layers: int) -> torch.nn.Module:
    """The norm after the last layer: it stands beside the list of layers."""
    for module in model.modules():
        stack = getattr(module, "layers", None)
        if isinstance(stack, torch.nn.ModuleList) and len(stack) == layers:
            for name in ("norm", "final_layernorm", "final_norm", "ln_f"):
                if isinstance(found := getattr(module, name, None), torch.nn.Module):
                    return found
    raise RuntimeError(f"eagle3ops: no final norm beside {layers} layers in {type(model).__name__}")


def parts_of(tokens: int, hidden: int, states: int, dtype: torch.dtype) -> tuple[int, int, int, int]:
    """Where states, scales and sum of a block begin, and its size."""
    at = _up(tokens * 4, 8)
    scales = at + _up(tokens * states * hidden * dtype.itemsize, 8)
    total = scales + (_up(tokens * states * 4, 8) if dtype == torch.float8_e4m3fn else 0)
    return at, scales, total, total + 8


def _up(value: int, to: int) -> int:
    return -(-value // to) * to


def build(ids: torch.Tensor, states: list[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    """One block, uint8, where the states are."""
    tokens, hidden = ids.numel(), states[-1].shape[-1]
    count = sum(part.shape[-1] for part in states) // hidden
    at, scales, end, size = parts_of(tokens, hidden, count, dtype)
    block = torch.empty(size, dtype=torch.uint8, device=ids.device)
    block[: tokens * 4].view(torch.int32).copy_(ids)
    body = block[at : at + tokens * count * hidden * dtype.itemsize].view(dtype).view(tokens, count * hidden)
    if dtype == torch.float8_e4m3fn:
        whole = torch.cat(states, -1).float().view(tokens, count, hidden)
        scale = whole.abs().amax(-1) / E4M3_MOST
        body.copy_((whole / scale.clamp_min(_TINY).unsqueeze(-1)).to(dtype).view(tokens, -1))
        block[scales : scales + tokens * count * 4].view(torch.float32).copy_(scale.flatten())
    else:
        first = 0
        for part in states:
            body[:, first : first + part.shape[-1]].copy_(part)
            first += part.shape[-1]
    block[end:].view(torch.int64).copy_(block[:end].view(torch.int64).sum())
    return block


class Sender:
    """Puts blocks into the ring and says so, from a thread of its own."""

    def __init__(self, told: dict[str, Any], model: str) -> None:
        self.dtype: torch.dtype = getattr(torch, told["dtype"])
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.connect(told["socket"])
        _, descriptors, _, _ = socket.recv_fds(self.socket, 1, 1)
        self.size = os.fstat(descriptors[0]).st_size
        self.ring = torch.frombuffer(mmap.mmap(descriptors[0], self.size), dtype=torch.uint8)
        os.close(descriptors[0])
        self.stream: Any = None
        self.pinned = False
        self.changed = threading.Condition()
        self.live: deque[tuple[int, int]] = deque()
        self.head = 0
        self.gone: str | None = None
        self.ready: queue.SimpleQueue[tuple[Any, dict[str, Any]]] = queue.SimpleQueue()
        if torch.cuda.is_available():
            self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            # The GPU then writes into the shared memory itself. Refused, copies are slower but right.
            runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            self.pinned = int(runtime.cudaHostRegister(self.ring.data_ptr(), self.size, 0)) == 0
            if not self.pinned:
                # The refusal would be taken for the failure of whatever runs next.
                with suppress(RuntimeError):
                    torch.zeros(1, device="cuda")
        self._say({"hello": model, "pinned": self.pinned})
        threading.Thread(target=self._tell, name="eagle3ops-tell", daemon=True).start()
        threading.Thread(target=self._listen, name="eagle3ops-listen", daemon=True).start()

    def send(self, spans: list[tuple[str, int, int, int]], ids: torch.Tensor, states: list[torch.Tensor]) -> None:
        """Hand over tokens of requests.

        Args:
            spans: request id, position of the first token in the request, place of it in the batch, tokens.
            ids: `[T]`; states: each `[T, n * H]`.
        """
        width = sum(part.shape[-1] for part in states)
        # Its scales may take as much as a float32 a state.
        per_token = width * self.dtype.itemsize + 4 * width // states[-1].shape[-1] + 4
        most = max(1, (self.size // PARTS_OF_RING - 128) // per_token)
        rows: list[tuple[str, int, int, int]] = []
        room = most
        for rid, start, first, count in spans:
            while count:
                taken = min(count, room)
                rows.append((rid, start, first, taken))
                start, first, count, room = start + taken, first + taken, count - taken, room - taken
                if not room:
                    self._send(rows, ids, states)
                    rows, room = [], most
        if rows:
            self._send(rows, ids, states)

    def _send(self, rows: list[tuple[str, int, int, int]], ids: torch.Tensor, states: list[torch.Tensor]) -> None:
        ranges: list[list[int]] = []
        for _, _, first, count in rows:
            if ranges and ranges[-1][1] == first:
                ranges[-1][1] = first + count
            else:
                ranges.append([first, first + count])

        def pick(tensor: torch.Tensor) -> torch.Tensor:
            cut = [tensor[a:b] for a, b in ranges]
            return cut[0] if len(cut) == 1 else torch.cat(cut)

        block = build(pick(ids), [pick(part) for part in states], self.dtype)
        size = block.numel()
        at = self._reserve(_up(size, ALIGN))
        place, event = self.ring[at : at + size], None
        if block.is_cuda:
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                place.copy_(block, non_blocking=self.pinned)
                event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
                event.record(self.stream)
            block.record_stream(self.stream)
        else:
            place.copy_(block)
        said = [[rid, start, count] for rid, start, _, count in rows]
        self.ready.put((event, {"at": at, "bytes": size, "tokens": sum(row[2] for row in said), "rows": said}))

    def _reserve(self, size: int) -> int:
        """A place in the ring; waits until there is one. Raises RuntimeError where there never will be."""
        if size > self.size // 2:
            raise RuntimeError(f"eagle3ops: a block of {size} bytes does not fit a ring of {self.size}")
        with self.changed:
            while True:
                if self.gone is not None:
                    raise RuntimeError(f"eagle3ops: the reader of the hidden states has gone: {self.gone}")
                at = self._place(size)
                if at is not None:
                    self.live.append((at, size))
                    self.head = at + size
                    return at
                self.changed.wait(_WAIT_S)

    def _place(self, size: int) -> int | None:
        if not self.live:
            return 0
        oldest = self.live[0][0]
        if self.head > oldest:
            if self.size - self.head >= size:
                return self.head
            return 0 if size < oldest else None
        return self.head if size < oldest - self.head else None

    def _tell(self) -> None:
        while True:
            event, said = self.ready.get()
            try:
                if event is not None:
                    event.synchronize()
                self._say(said)
            except (OSError, RuntimeError) as error:
                self._end(f"{type(error).__name__}: {error}")
                return

    def _say(self, said: dict[str, Any]) -> None:
        self.socket.sendall(json.dumps(said, separators=(",", ":")).encode() + b"\n")

    def _listen(self) -> None:
        reason = "it closed the connection"
        try:
            while taken := self.socket.recv(4096):
                with self.changed:
                    for _ in taken:
                        self.live.popleft()
                    self.changed.notify_all()
        except (OSError, IndexError) as error:
            reason = f"{type(error).__name__}: {error}"
        self._end(reason)

    def _end(self, reason: str) -> None:
        with self.changed:
            self.gone = self.gone or reason
            self.changed.notify_all()
