"""How are many requests decoded at once? Continuous batching over dense cache rows, plain or speculative.

Determinism: a batch submitted as one call is queued in one piece, prefilled in the order it came and decoded in rows
of that order; the only thing that changes its layout is its own requests ending. So the same batch sent to an idle
engine goes through the same sequence of shapes each time and gives the same bits. Requests that arrive while others
run share their passes, and bf16 rounding then depends on the company.
"""

import threading
import time
from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.profiler import record_function

from eagle3ops.eagle3.decoding import adjusted_probs, draw, reject_chain, walk
from eagle3ops.engines.reference.attention import attend, attend_causal, fold_mask, prefix_mask
from eagle3ops.engines.reference.cache import KVCache
from eagle3ops.engines.reference.counters import Counters
from eagle3ops.engines.reference.drafting import Drafts, Speculator
from eagle3ops.engines.reference.model import Target
from eagle3ops.engines.reference.requests import Event, Request, SpecStats

_PREFILL_TOKENS = 2048
"""Padded tokens in one prefill pass: enough to be bound by arithmetic, few enough to keep activations small."""


class Engine:
    """Decodes submitted requests step by step; `submit` and `cancel` may be called from any thread, `step` from one."""

    def __init__(
        self,
        target: Target,
        *,
        speculator: Speculator | None = None,
        stops: Sequence[int] = (),
        max_running: int = 32,
        seed: int = 0,
    ) -> None:
        self.target = target
        self.speculator = speculator
        self.stops = frozenset(stops)
        self.max_running = max_running
        self.counters = Counters()
        self.running: list[Request] = []
        self.waiting: deque[Request] = deque()
        self.wake = threading.Condition()
        self._seed = seed
        self._admitting: list[Request] = []
        config = target.config
        self.cache = KVCache(
            config.num_layers, config.num_key_value_heads, config.head_dim, target.dtype, target.device, max_running
        )
        self._group = config.num_attention_heads // config.num_key_value_heads
        self._alone = torch.ones((1, 1), dtype=torch.bool, device=target.device)
        self._want: tuple[int, ...] = () if speculator is None else speculator.drafter.config.aux_layers.boundary

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests in one piece."""
        with self.wake:
            self.waiting.extend(requests)
            self.wake.notify()

    @torch.inference_mode()
    def step(self) -> bool:
        """Admit what fits, then decode one step; False when there is nothing to do."""
        self._drop_cancelled()
        with self.wake:
            new = [self.waiting.popleft() for _ in range(min(len(self.waiting), self.max_running - len(self.running)))]
        self._admitting = new
        if new:
            self._admit(new)
            self._admitting = []
        if not self.running:
            return bool(new)
        began = time.monotonic()
        before = self.counters.generated
        with record_function("scheduler.run_batch"):
            if self.speculator is None:
                self._decode()
            else:
                self._speculate(self.speculator)
        self.counters.passes += 1
        self.counters.throughput = (self.counters.generated - before) / max(time.monotonic() - began, 1e-9)
        return True

    @property
    def at_work(self) -> int:
        """Requests that are being answered, those whose prompts are being read included; from any thread."""
        return max(len(self.running), len(self._admitting))

    def fail_all(self, reason: str) -> None:
        """End every request with an error: the state of a broken step cannot be trusted."""
        with self.wake:
            doomed = [*self.running, *(r for r in self._admitting if r not in self.running), *self.waiting]
            self.waiting.clear()
        self.running.clear()
        self._admitting = []
        for request in doomed:
            if request.finish is None:
                request.notify(Event(list(request.output), None, reason))

    # -- rows

    def _drop_cancelled(self) -> None:
        with self.wake:
            dropped = [r for r in self.waiting if r.cancelled]
            if dropped:
                self.waiting = deque(r for r in self.waiting if not r.cancelled)
        for request in [r for r in self.running if r.cancelled]:
            self._release(request)
            dropped.append(request)
        for request in dropped:
            request.finish = {"type": "abort", "message": "the client went away"}
            request.notify(Event(list(request.output), request.finish))

    def _release(self, request: Request) -> None:
        """Free the request's row; the last row moves into it."""
        last = self.running.pop()
        if last is not request:
            self.cache.move_row(last.row, request.row, last.seen)
            if self.speculator is not None:
                self.speculator.cache.move_row(last.row, request.row, last.seen)
            last.row = request.row
            self.running[request.row] = last
        request.row = -1

    def _take(self, request: Request, tokens: list[int]) -> int:
        taken = request.accept(tokens, self.stops)
        self.counters.generated += taken
        return taken

    def _announce(self, request: Request) -> None:
        """Tell the client. After the last event the request belongs to the client's thread: all else comes before."""
        if request.finish is not None:
            request.finished = time.monotonic()
            self.counters.requests += 1
        if request.finish is not None or request.stream:
            request.notify(Event(list(request.output), request.finish))

    def _close(self, requests: Sequence[Request]) -> None:
        """Free the rows of those that ended, then tell every client what came of this step."""
        # From the last row up, so that a row that moves has already been looked at.
        for request in reversed([r for r in self.running if r.finish is not None]):
            self._release(request)
        for request in requests:
            self._announce(request)

    # -- choosing tokens

    def _choose(self, requests: Sequence[Request], logits: Tensor) -> list[int]:
        """One token for each row of logits `[B, V]`."""
        tokens: list[int] = logits.argmax(-1).tolist()
        for row, request in enumerate(requests):
            if not request.sampling.greedy:
                tokens[row] = draw(self._probs(request, logits[row]), request.generator)
        return tokens

    @staticmethod
    def _probs(request: Request, logits: Tensor) -> Tensor:
        params = request.sampling
        return adjusted_probs(logits, params.temperature, params.top_k, params.top_p)

    # -- passes

    def _admit(self, new: list[Request]) -> None:
        now = time.monotonic()
        for request in new:
            request.started = now
            if not request.sampling.greedy:
                seed = request.sampling.seed
                if seed is None:
                    self._seed += 1
                    seed = self._seed
                request.generator = torch.Generator(self.target.device).manual_seed(seed)
            if self.speculator is not None:
                request.stats = SpecStats(histogram=[0] * (self.speculator.settings.steps + 1))
        chunk: list[Request] = []
        for request in new:
            widest = max(len(r.prompt) for r in [*chunk, request])
            if chunk and widest * (len(chunk) + 1) > _PREFILL_TOKENS:
                self._prefill(chunk)
                chunk = []
            chunk.append(request)
        self._prefill(chunk)
        self._close(new)

    def _prefill(self, chunk: list[Request]) -> None:
        target, device = self.target, self.target.device
        first = len(self.running)
        rows = slice(first, first + len(chunk))
        lengths = [len(r.prompt) for r in chunk]
        width = max(lengths)
        ids = torch.tensor([r.prompt + [0] * (width - len(r.prompt)) for r in chunk], device=device)
        self.cache.reserve(rows.stop, width + 64)

        def attention(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self.cache.write(layer, rows, slice(0, width), k, v)
            return attend_causal(q, k, v)

        rope = target.rope(torch.arange(width, device=device)[None], width - 1)
        x, kept = target.run(target.embed(ids), rope, attention, self._want)
        ends = torch.tensor(lengths, device=device) - 1
        index = torch.arange(len(chunk), device=device)
        tokens = self._choose(chunk, target.logits(target.normed(x[index, ends])))
        self.counters.prompted += sum(lengths)
        # Many long prompts at once take minutes on a slow machine; whoever watches must see that they go on.
        self.counters.passes += 1
        for offset, request in enumerate(chunk):
            request.row, request.seen = first + offset, lengths[offset]
            self.running.append(request)
        speculator = self.speculator
        aux = torch.cat([kept[k] for k in self._want], dim=-1) if speculator is not None else target.normed(x)
        for offset, request in enumerate(chunk):
            if request.want_hidden:
                request.hidden.append(aux[offset, : lengths[offset]].clone())
        if speculator is not None:
            shifted = torch.cat((ids[:, 1:], ids[:, :1]), dim=1)
            shifted[index, ends] = torch.tensor(tokens, device=device)
            states = speculator.prefill(rows, aux, shifted)[index, ends]
            for offset, request in enumerate(chunk):
                request.state = states[offset]
        for request, token in zip(chunk, tokens, strict=True):
            self._take(request, [token])

    def _pass(
        self, ids: Tensor, depths: Tensor | None, visible: Tensor, seen: list[int]
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Run new tokens `[B, T]` of all running rows behind their cached prefix.

        Args:
            depths: position of each token behind the prefix `[B, T]`; None where T = 1.
            visible: which new token sees which; see `prefix_mask`.
        """
        target, device = self.target, ids.device
        rows, steps = ids.shape
        longest = max(seen)
        length = longest + steps
        self.cache.reserve(rows, length)
        even = min(seen) == longest
        start = torch.tensor(seen, device=device)
        positions = start[:, None] if depths is None else start[:, None] + depths
        row_at: Tensor | slice = slice(0, rows)
        at: Tensor | slice = slice(longest, length)
        if not even:
            row_at = torch.arange(rows, device=device)[:, None]
            at = start[:, None] + torch.arange(steps, device=device)
        mask = None
        if steps > 1 or not even:
            mask = fold_mask(prefix_mask(start, visible, length, self.cache.dtype), self._group)
        whole = slice(0, rows)

        def attention(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self.cache.write(layer, row_at, at, k, v)
            keys, values = self.cache.view(layer, whole, length)
            return attend(q, keys, values, mask)

        return target.run(target.embed(ids), target.rope(positions, length), attention, self._want)

    def _decode(self) -> None:
        requests = list(self.running)
        ids = torch.tensor([[r.output[-1]] for r in requests], device=self.target.device)
        with record_function(f"step[DECODE bs={len(requests)}]"):
            x, _ = self._pass(ids, None, self._alone, [r.seen for r in requests])
            normed = self.target.normed(x[:, 0])
            logits = self.target.logits(normed)
        tokens = self._choose(requests, logits)
        for row, (request, token) in enumerate(zip(requests, tokens, strict=True)):
            request.seen += 1
            if request.want_hidden:
                request.hidden.append(normed[row].clone())
            self._take(request, [token])
        self._close(requests)

    def _speculate(self, speculator: Speculator) -> None:
        requests = list(self.running)
        with record_function("draft"):
            drafts = speculator.draft(requests)
        with record_function(f"step[TARGET_VERIFY bs={len(requests)}]"):
            x, kept = self._pass(drafts.tokens, drafts.depths, drafts.visible, [r.seen for r in requests])
            logits = self.target.logits(self.target.normed(x))
        best: list[list[int]] = logits.argmax(-1).tolist()
        tokens: list[list[int]] = drafts.tokens.tolist()
        read: dict[str, tuple[list[int], list[int]]] = {}
        for row, request in enumerate(requests):
            path, bonus = self._accept(request, row, drafts, tokens[row], best[row], logits[row])
            nodes = [0, *path]
            new = [*(tokens[row][node] for node in path), bonus]
            self.cache.compact(row, request.seen, nodes)
            if request.want_hidden:
                states = torch.cat([kept[k][row, nodes] for k in self._want], dim=-1)
                request.hidden.extend(states[: request.sampling.max_new_tokens - len(request.output)])
            taken = self._take(request, new)
            self.counters.verified(taken - 1, speculator.proposed)
            if request.stats is not None:
                request.stats.add(taken - 1, speculator.proposed)
            if request.finish is not None:
                del request.hidden[len(request.output) :]
            read[request.id] = (nodes, new)
        # The drafter reads what was verified in its own row order, before finished rows are closed up.
        with record_function("draft_extend"):
            self._extend(speculator, requests, read, kept)
        self._close(requests)

    def _extend(
        self,
        speculator: Speculator,
        requests: list[Request],
        read: dict[str, tuple[list[int], list[int]]],
        kept: dict[int, Tensor],
    ) -> None:
        if all(r.finish is not None for r in requests):
            return
        device = self.target.device
        width = max(len(nodes) for nodes, _ in read.values())
        nodes = torch.tensor([read[r.id][0] + [0] * (width - len(read[r.id][0])) for r in requests], device=device)
        next_ids = torch.tensor([read[r.id][1] + [0] * (width - len(read[r.id][1])) for r in requests], device=device)
        index = torch.arange(len(requests), device=device)[:, None]
        aux = torch.cat([kept[k][index, nodes] for k in self._want], dim=-1)
        states = speculator.extend([r.seen for r in requests], aux, next_ids)
        for row, request in enumerate(requests):
            count = len(read[request.id][0])
            request.state = states[row, count - 1]
            request.seen += count

    def _accept(
        self, request: Request, row: int, drafts: Drafts, tokens: list[int], best: list[int], logits: Tensor
    ) -> tuple[list[int], int]:
        """The accepted nodes of one row, and the token after them."""
        if request.sampling.greedy:
            return walk(tokens, drafts.parents[row], best.__getitem__)
        q = drafts.q[row]
        if q is None:
            return walk(
                tokens,
                drafts.parents[row],
                lambda node: draw(self._probs(request, logits[node]), request.generator),
            )
        assert self.speculator is not None
        drafter = self.speculator.drafter
        ids = drafter.target_ids(torch.arange(q.shape[1], device=q.device))
        p = self._probs(request, logits)
        full = torch.zeros_like(p[:-1]).scatter_(1, ids.expand(q.shape[0], -1), q)
        count, bonus = reject_chain(tokens[1:], full, p, request.generator)
        return list(range(1, count + 1)), bonus
