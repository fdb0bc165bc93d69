"""Do hidden states come through shared memory as they were made, and is an end of either side an error, not a hang?"""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from eagle3ops.assets.sglang_plugin import eagle3ops_extract as plugin
from eagle3ops.eagle3.layers import AuxLayers
from eagle3ops.engines.base import ServeSpec
from eagle3ops.engines.client import EngineError
from eagle3ops.engines.sglang.adapter import PLUGIN, SglangAdapter
from eagle3ops.engines.sglang.extraction import spool as spool_module
from eagle3ops.engines.sglang.extraction.block import Layout, parse_block
from eagle3ops.engines.sglang.extraction.room import Memory
from eagle3ops.engines.sglang.extraction.server import extraction_spec
from eagle3ops.engines.sglang.extraction.spool import RING_BYTES, SETTINGS, Spool
from eagle3ops.engines.sglang.extraction.states import AHEAD_BYTES, within
from eagle3ops.features.format import Dtype
from eagle3ops.features.quantised import dequantise, quantise
from eagle3ops.features.writer import FeatureRow

HIDDEN = 8
DONE: "Future[None]" = Future()
DONE.set_result(None)


@contextmanager
def joined(layers: AuxLayers, dtype: Dtype = "float32", ring: int = 1 << 16) -> Iterator[tuple[Spool, Any]]:
    """Both ends, in one process."""
    with ExitStack() as stack:
        # Closed last: the reader's end comes first unless a test ends the sender.
        closing = ExitStack()
        stack.callback(closing.close)
        spool = stack.enter_context(Spool(layers, HIDDEN, dtype, ring))
        sender = plugin.Sender(json.loads(spool.variables()[SETTINGS]), "Some")
        closing.callback(sender.socket.close)
        spool.connected(20)
        yield spool, sender


def states_of(tokens: int, layers: AuxLayers, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(tokens, HIDDEN, generator=generator) * 10**k for k in range(len(layers.boundary) + 1)]


LAYERS = AuxLayers((1, 3, 4), 6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn"])
def test_states_come_as_they_were_made(dtype: Dtype) -> None:
    states = states_of(12, LAYERS)
    ids = torch.arange(12) * 7
    with joined(LAYERS, dtype) as (spool, sender):
        a, b = spool.expect(["a", "b"], [ids[:5].tolist(), ids[5:].tolist()])
        sender.send([("a", 0, 0, 5), ("b", 0, 5, 7)], ids, states)
        spool.wait([a, b], DONE)
        row = spool.row(b, "second", 3)
    assert (row.id, row.loss_mask.tolist()) == ("second", [False] * 3 + [True] * 4)
    assert torch.equal(row.token_ids.long(), ids[5:])
    whole = torch.cat(states, -1)[5:]
    if isinstance(row, FeatureRow):
        assert torch.equal(torch.cat((row.aux, row.final), -1), whole.to(row.aux.dtype))
    else:
        # As the job itself would have made them: both ends of the road know one formula.
        stored, scale = quantise(whole, HIDDEN)
        assert torch.equal(torch.cat((row.aux, row.final), -1).view(torch.uint8), stored.view(torch.uint8))
        assert torch.equal(torch.cat((row.aux_scale, row.final_scale), -1), scale)
        read = dequantise(row.aux, row.aux_scale).float()
        assert float((read - whole[:, : 3 * HIDDEN]).norm() / whole[:, : 3 * HIDDEN].norm()) < 0.05


def test_a_request_in_pieces_is_put_together_and_others_are_left_alone() -> None:
    states, ids = states_of(20, LAYERS), torch.arange(20)
    with joined(LAYERS) as (spool, sender):
        (row,) = spool.expect(["a"], [ids[:12].tolist()])
        # A chunk amid others' tokens, its rest in a later pass.
        sender.send([("a", 0, 4, 7)], torch.cat((ids[:4] + 90, ids[:7])), [torch.cat((s[:4], s[:7])) for s in states])
        sender.send([("a", 7, 0, 5)], ids[7:], [s[7:] for s in states])
        spool.wait([row], DONE)
        found = spool.row(row, "a", 0)
    assert torch.equal(torch.cat((found.aux, found.final), -1), torch.cat(states, -1)[:12])


def test_more_than_the_ring_holds_goes_through_it() -> None:
    tokens = 3000
    states, ids = states_of(tokens, LAYERS), torch.arange(tokens)
    with joined(LAYERS, ring=1 << 14) as (spool, sender):
        (row,) = spool.expect(["a"], [ids.tolist()])
        sender.send([("a", 0, 0, tokens)], ids, states)
        spool.wait([row], DONE)
        assert spool.bytes > 20 * (1 << 14)
        found = spool.row(row, "a", 0)
    assert torch.equal(torch.cat((found.aux, found.final), -1), torch.cat(states, -1))


def test_the_order_asked_for_is_the_order_given() -> None:
    layers = AuxLayers((4, 1), 6)
    states, ids = states_of(6, AuxLayers((1, 4), 6)), torch.arange(6)
    with joined(layers) as (spool, sender):
        assert json.loads(spool.variables()[SETTINGS])["boundaries"] == [1, 4]
        (row,) = spool.expect(["a"], [ids.tolist()])
        sender.send([("a", 0, 0, 6)], ids, states)
        spool.wait([row], DONE)
        found = spool.row(row, "a", 0)
    assert torch.equal(found.aux, torch.cat((states[1], states[0]), -1))
    assert torch.equal(found.final, states[2])


@pytest.mark.slow
def test_a_reader_that_stops_stops_the_sender_and_its_end_is_an_error_there(monkeypatch: pytest.MonkeyPatch) -> None:
    reading = threading.Event()
    take = Spool._take

    def slow(self: Spool, block: Any) -> None:
        reading.wait()
        take(self, block)

    monkeypatch.setattr(Spool, "_take", slow)
    states, ids = states_of(3000, LAYERS), torch.arange(3000)
    raised: list[BaseException] = []
    with joined(LAYERS, ring=1 << 14) as (spool, sender):
        spool.expect(["a"], [ids.tolist()])

        def send() -> None:
            try:
                sender.send([("a", 0, 0, 3000)], ids, states)
            except RuntimeError as error:
                raised.append(error)

        thread = threading.Thread(target=send)
        thread.start()
        with sender.changed:
            # It has filled the ring, and waits: nothing is freed as long as nothing is read.
            assert sender.changed.wait_for(lambda: sender._place(4096) is None, 20)
        assert sum(size for _, size in sender.live) <= sender.size
        assert thread.is_alive()
        sender._end("the test says so")
        thread.join(20)
        reading.set()
    assert "reader of the hidden states has gone" in str(raised[0])


def test_the_end_of_the_reader_reaches_a_sender_that_waits() -> None:
    with joined(LAYERS, ring=1 << 14) as (spool, sender):
        pass
    with sender.changed:
        assert sender.changed.wait_for(lambda: sender.gone is not None, 20)
    with pytest.raises(RuntimeError, match="has gone"):
        sender.send([("a", 0, 0, 1)], torch.arange(1), states_of(1, LAYERS))
    with pytest.raises(EngineError, match="has ended"):
        spool.wait(spool.expect(["late"], [[1]]), DONE)


def test_the_end_of_the_server_is_an_error_for_who_waits() -> None:
    with joined(LAYERS) as (spool, sender):
        (row,) = spool.expect(["a"], [[1, 2]])
        sender.socket.shutdown(2)
        with pytest.raises(EngineError, match="closed the connection"):
            spool.wait([row], Future())


def test_a_prefix_that_never_comes_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_module, "_STATES_S", 0.0)
    states, ids = states_of(4, LAYERS), torch.arange(4)
    with joined(LAYERS) as (spool, sender):
        (row,) = spool.expect(["a"], [[9, 0, 1, 2, 3]])
        sender.send([("a", 1, 0, 4)], ids, states)
        with sender.changed:
            assert sender.changed.wait_for(lambda: not sender.live, 20)
        with pytest.raises(EngineError, match="1 of 5 tokens"):
            spool.wait([row], DONE)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda ring, told: ring.__setitem__(told["at"] + 40, int(ring[told["at"] + 40]) ^ 1), "other bytes"),
        (lambda ring, told: told["rows"][0].__setitem__(0, "b"), "nobody waits for"),
        (lambda ring, told: told["rows"][0].__setitem__(1, 1), "not those that were sent"),
        (lambda ring, told: told.update(bytes=told["bytes"] - 8), "bytes, not"),
    ],
)
def test_what_is_not_as_it_was_sent_is_an_error(spoil: Any, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with joined(LAYERS) as (spool, sender):
        (row,) = spool.expect(["a"], [[0, 1, 2]])
        say = sender._say

        def changed(told: dict[str, Any]) -> None:
            spoil(sender.ring, told)
            say(told)

        monkeypatch.setattr(sender, "_say", changed)
        sender.send([("a", 0, 0, 3)], torch.arange(3), states_of(3, LAYERS))
        with pytest.raises(EngineError, match=said):
            spool.wait([row], Future())


def test_a_server_without_the_plugin_is_found() -> None:
    with Spool(LAYERS, HIDDEN, "float32", 1 << 14) as spool, pytest.raises(EngineError, match="has not connected"):
        spool.connected(0.05)


class Model(torch.nn.Module):
    """As SGLang's classes are, in what the plugin sees of them."""

    def __init__(self, added: int) -> None:
        super().__init__()
        self.model = torch.nn.Module()
        self.model.layers = torch.nn.ModuleList(torch.nn.Identity() for _ in range(6))
        self.model.norm = torch.nn.Identity()
        self.model.layers_to_capture = []  # type: ignore[assignment]
        self._added = added

    def set_eagle3_layers_to_capture(self, ids: list[int]) -> None:
        self.model.layers_to_capture = [k + self._added for k in ids]  # type: ignore[assignment]


@pytest.mark.parametrize("added", [0, 1])
def test_either_convention_of_ids_captures_what_was_asked_for(added: int) -> None:
    model = Model(added)
    plugin.capture(model, [2, 3, 5])
    assert model.model.layers_to_capture == [2, 3, 5]
    assert plugin.final_norm(model, 6) is model.model.norm


def test_a_model_that_captures_others_is_refused() -> None:
    with pytest.raises(RuntimeError, match="captures layers"):
        plugin.capture(Model(2), [2, 3])
    with pytest.raises(RuntimeError, match="cannot hand over"):
        plugin.capture(torch.nn.Identity(), [2])
    with pytest.raises(RuntimeError, match="no final norm"):
        plugin.final_norm(Model(1), 7)


def test_a_small_host_gets_a_small_ring() -> None:
    assert within(1 << 40) == (RING_BYTES, AHEAD_BYTES)
    ring, ahead = within((1 << 32) + 5)
    assert (ring % 4096, ring, ahead) == (0, 1 << 29, (1 << 30) + 1)


@given(st.integers(1, 300), st.integers(1, 6), st.sampled_from([torch.float32, torch.bfloat16, torch.float8_e4m3fn]))
def test_both_ends_agree_on_where_things_lie(tokens: int, states: int, dtype: torch.dtype) -> None:
    layout = Layout.of(tokens, HIDDEN, states, dtype)
    assert (layout.states, layout.scales, layout.end, layout.size) == plugin.parts_of(tokens, HIDDEN, states, dtype)


LINES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 5000) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["at", "bytes", "tokens", "rows"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(LINES.map(lambda value: json.dumps(value).encode()) | st.binary())
@settings(max_examples=300)
def test_no_line_of_the_plugin_crashes_the_reader(line: bytes) -> None:
    try:
        block = parse_block(line, 4096)
    except ValueError:
        return
    assert 0 <= block.at < block.at + block.size <= 4096


def test_the_server_is_told_where_the_plugin_is(tmp_path: Path) -> None:
    base = ServeSpec(model=tmp_path, port=1, device="cpu", variables={"PYTHONPATH": "/theirs"}, arguments=("--x",))
    with Spool(LAYERS, HIDDEN, "bfloat16", 1 << 14) as spool:
        spec = extraction_spec(base, spool)
    environment = SglangAdapter().environment(spec)
    assert environment["PYTHONPATH"].split(":") == [str(PLUGIN), "/theirs"]
    assert environment["SGLANG_PLUGINS"] == "eagle3ops_extract"
    assert (PLUGIN / "eagle3ops_extract.py").is_file()
    argv = SglangAdapter().argv(spec)
    assert argv[argv.index("--x") + 1] == "--disable-radix-cache"


def test_memory_comes_back_when_its_last_tensor_has_gone() -> None:
    memory = Memory(most=1000)
    first = memory.take(600)
    first.fill_(7)
    at, part = first.data_ptr(), first[10:20].view(torch.int16)
    del first
    # A part of it is looked at still.
    assert memory.take(600).data_ptr() != at
    assert part.tolist() == [0x0707] * 5
    del part
    taken = [memory.take(500), memory.take(600)]
    assert at in {one.data_ptr() for one in taken}
    del taken
    # Far less than what lies there is no reason to hold on to all of it, whatever may be kept.
    memory = Memory(most=1 << 20)
    at = memory.take(600).data_ptr()
    small = memory.take(400)
    assert small.data_ptr() != at
    assert memory.take(600).data_ptr() == at


def test_no_more_memory_is_kept_than_was_allowed() -> None:
    memory = Memory(most=1000)
    taken = [memory.take(400) for _ in range(5)]
    del taken
    held = memory.take(10)
    assert sum(one.nbytes for one in memory._free) <= 1000
    assert held.numel() == 10


def test_rows_of_several_shards_in_one_block_reach_their_places() -> None:
    """Neighbours are copied at once; where order or shard changes, a new copy begins."""
    states, ids = states_of(30, LAYERS), torch.arange(30)
    with joined(LAYERS) as (spool, sender):
        one = spool.expect(["a", "b", "c"], [ids[:4].tolist(), ids[4:9].tolist(), ids[9:11].tolist()])
        two = spool.expect(["d", "e"], [ids[11:20].tolist(), ids[20:].tolist()])
        order = [("b", 0, 4, 5), ("c", 0, 9, 2), ("a", 0, 0, 4), ("d", 0, 11, 9), ("e", 0, 20, 6)]
        picked = torch.cat([ids[first : first + count] for _, _, first, count in order])
        moved, at = [], 0
        for rid, start, _, count in order:
            moved.append((rid, start, at, count))
            at += count
        sender.send(moved, picked, [part[picked] for part in states])
        # A request that was put off is computed again, while others are missing.
        sender.send([("a", 0, 0, 4)], ids[:4], [part[:4] for part in states])
        sender.send([("e", 6, 0, 4)], ids[26:], [part[26:] for part in states])
        spool.wait([*one, *two], Future())
        assert [row.missing for row in (*one, *two)] == [0] * 5
        found = [spool.row(row, row.rid, 1) for row in (*one, *two)]
    assert torch.equal(torch.cat([torch.cat((row.aux, row.final), -1) for row in found]), torch.cat(states, -1))
    assert torch.equal(torch.cat([row.token_ids for row in found]).long(), ids)


def test_a_run_ends_with_its_shard_even_where_the_next_one_would_go_on() -> None:
    """The second request of one shard and the first of another, whose places follow each other by chance."""
    states, ids = states_of(9, LAYERS), torch.arange(9)
    with joined(LAYERS) as (spool, sender):
        (one,) = spool.expect(["a"], [ids[:3].tolist()])
        two, three = spool.expect(["b", "c"], [[90, 91, 92], ids[3:].tolist()])
        sender.send([("a", 0, 0, 3), ("c", 0, 3, 6)], ids, states)
        sender.send([("b", 0, 0, 3)], torch.tensor([90, 91, 92]), states_of(3, LAYERS, seed=1))
        spool.wait([one, two, three], DONE)
        found = [spool.row(row, row.rid, 1) for row in (one, three)]
    assert torch.equal(torch.cat([torch.cat((row.aux, row.final), -1) for row in found]), torch.cat(states, -1))


def test_states_beyond_the_end_of_a_request_are_refused_although_its_neighbour_goes_on() -> None:
    with joined(LAYERS) as (spool, sender):
        rows = spool.expect(["a", "b"], [[1, 2], [3, 4]])
        sender.send([("a", 0, 0, 4)], torch.tensor([1, 2, 3, 4]), states_of(4, LAYERS))
        with pytest.raises(EngineError, match="tokens 0 to 4 of request a are not those that were sent"):
            spool.wait(rows, Future())
