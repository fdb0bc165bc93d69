"""Does speculation leave the answers as they are, whatever the drafter, the batch and the tree?"""

from collections import Counter

import pytest
import torch
from reference_tiny import (
    LAYERS,
    VOCAB,
    MarkovDrafter,
    answer_all,
    prompts,
    random_drafter,
    tiny_target,
)

from eagle3ops.eagle3.decoding import adjusted_probs
from eagle3ops.engines.reference.drafting import SpecSettings, Speculator
from eagle3ops.engines.reference.engine import Engine
from eagle3ops.engines.reference.model import Target
from eagle3ops.engines.reference.requests import Event, Request, SamplingParams
from eagle3ops.errors import RequestError

CHAINS = [SpecSettings(1, 1, 2), SpecSettings(3, 1, 4), SpecSettings(5, 1, 6)]
TREES = [SpecSettings(3, 4, 16), SpecSettings(2, 3, 4), SpecSettings(4, 2, 9)]


def _naive(target: Target, prompt: list[int], count: int, stops: tuple[int, ...] = (VOCAB - 1,)) -> list[int]:
    """Greedy decoding without any cache: the whole text again for each token."""
    ids = list(prompt)
    while len(ids) - len(prompt) < count:
        final = target.boundaries(torch.tensor([ids]), torch.tensor([len(ids)]), (LAYERS,))[0, 0, -1]
        ids.append(int(target.logits(target.normed(final)).argmax()))
        if ids[-1] in stops:
            break
    return ids[len(prompt) :]


def test_batched_decoding_equals_decoding_without_a_cache() -> None:
    target, texts = tiny_target(), prompts(7)
    answers = answer_all(target, texts, SamplingParams(max_new_tokens=24))
    for text, answer in zip(texts, answers, strict=True):
        assert answer.output == _naive(target, text, 24)


@pytest.mark.parametrize("settings", [*CHAINS, *TREES], ids=str)
@pytest.mark.parametrize("kind", ["random", "often right"])
@pytest.mark.parametrize("rows", [1, 4])
def test_greedy_speculation_is_plain_greedy_decoding(settings: SpecSettings, kind: str, rows: int) -> None:
    target = tiny_target(depth_scale=0.35)
    drafter = random_drafter() if kind == "random" else MarkovDrafter(target)
    texts, params = prompts(6), SamplingParams(max_new_tokens=40, ignore_eos=True)
    plain = answer_all(target, texts, params)
    drafted = answer_all(target, texts, params, drafter=drafter, settings=settings, max_running=rows)
    assert [r.output for r in drafted] == [r.output for r in plain]
    correct = sum(r.stats.correct for r in drafted if r.stats is not None)
    steps = sum(r.stats.verify_steps for r in drafted if r.stats is not None)
    if kind == "often right":
        assert correct / steps > 0.3, "the drafter of this test must be right often, or the test shows nothing"


@pytest.mark.parametrize("settings", [CHAINS[1], TREES[0]], ids=str)
def test_statistics_account_for_every_token(settings: SpecSettings) -> None:
    target = tiny_target(depth_scale=0.35)
    requests = answer_all(
        target, prompts(8), SamplingParams(max_new_tokens=29), drafter=MarkovDrafter(target), settings=settings
    )
    for request in requests:
        stats = request.stats
        assert stats is not None
        assert len(request.output) == 1 + stats.verify_steps + stats.correct
        assert sum(stats.histogram) == stats.verify_steps
        assert sum(k * n for k, n in enumerate(stats.histogram)) == stats.correct
        assert stats.proposed == stats.verify_steps * (settings.draft_tokens - 1)


@pytest.mark.parametrize("settings", [CHAINS[2], TREES[0]], ids=str)
def test_nothing_is_emitted_past_a_stop_token_or_the_limit(settings: SpecSettings) -> None:
    target = tiny_target(depth_scale=0.35)
    drafter = MarkovDrafter(target)
    free = answer_all(target, prompts(5), SamplingParams(max_new_tokens=30, ignore_eos=True))
    for limit in range(1, 9):
        cut = answer_all(
            target, prompts(5), SamplingParams(max_new_tokens=limit, ignore_eos=True), drafter=drafter,
            settings=settings,
        )  # fmt: skip
        assert [r.output for r in cut] == [r.output[:limit] for r in free]
        assert all(r.finish == {"type": "length", "length": limit} for r in cut)
    for position in range(1, 12):
        stop = free[0].output[position]
        first = free[0].output.index(stop)
        params = SamplingParams(max_new_tokens=30, ignore_eos=True, stop_token_ids=frozenset([stop]))
        (one,) = answer_all(target, prompts(5)[:1], params, drafter=drafter, settings=settings)
        assert one.output == free[0].output[: first + 1]
        assert one.finish == {"type": "stop", "matched": stop}


@pytest.mark.parametrize("settings", [None, CHAINS[1], TREES[0]], ids=str)
def test_requests_that_come_and_go_do_not_disturb_each_other(settings: SpecSettings | None) -> None:
    target = tiny_target(depth_scale=0.35)
    texts = prompts(9)
    params = [SamplingParams(max_new_tokens=5 + 7 * (k % 4), ignore_eos=True) for k in range(9)]
    alone = [answer_all(target, [t], [p])[0].output for t, p in zip(texts, params, strict=True)]
    drafter = MarkovDrafter(target)
    speculator = None if settings is None else Speculator(drafter, target, settings, 3)
    engine = Engine(target, speculator=speculator, stops=(), max_running=3)
    requests = [Request(str(k), t, p, lambda _e: None) for k, (t, p) in enumerate(zip(texts, params, strict=True))]
    for request in requests:
        engine.submit([request])
        engine.step()
        assert len(engine.running) <= 3
        assert [r.row for r in engine.running] == list(range(len(engine.running)))
    while engine.step():
        pass
    assert [r.output for r in requests] == alone


def test_a_cancelled_request_frees_its_row() -> None:
    target = tiny_target()
    engine = Engine(target, max_running=1)
    events: list[Event] = []
    first, second = (
        Request(name, [1, 2, 3], SamplingParams(max_new_tokens=400, ignore_eos=True), events.append) for name in "ab"
    )
    engine.submit([first])
    engine.step()
    engine.submit([second])
    first.cancelled = True
    engine.step()
    assert first.finish is not None
    assert first.finish["type"] == "abort"
    assert engine.running == [second]


@pytest.mark.parametrize("settings", [None, CHAINS[1], TREES[0]], ids=str)
def test_hidden_states_are_those_of_the_whole_text(settings: SpecSettings | None) -> None:
    target = tiny_target(depth_scale=0.35)
    drafter = None if settings is None else MarkovDrafter(target)
    (request,) = answer_all(
        target, prompts(1), SamplingParams(max_new_tokens=21, ignore_eos=True), drafter=drafter, settings=settings,
        hidden=True,
    )  # fmt: skip
    rows = torch.cat((request.hidden[0], torch.stack(request.hidden[1:])))
    ids = torch.tensor([[*request.prompt, *request.output[:-1]]])
    states = target.boundaries(ids, torch.tensor([ids.shape[1]]), (1, 2, 3))[:, 0]
    want = target.normed(states[2]) if settings is None else torch.cat(tuple(states), dim=-1)
    torch.testing.assert_close(rows, want, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("settings", [None, CHAINS[1]], ids=str)
def test_the_same_batch_gives_the_same_bits(settings: SpecSettings | None) -> None:
    target = tiny_target()
    params = SamplingParams(max_new_tokens=30, temperature=1.0, seed=7)
    drafter = None if settings is None else random_drafter()
    first, again = (
        [r.output for r in answer_all(target, prompts(6), params, drafter=drafter, settings=settings)] for _ in "ab"
    )
    assert first == again


@pytest.mark.parametrize(
    ("settings", "message"),
    [((0, 1, 2), "steps"), ((3, 1, 8), "set draft tokens to steps"), ((1, 2, 9), "3 nodes at most")],
)
def test_impossible_settings_are_refused(settings: tuple[int, int, int], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        SpecSettings(*settings)


@pytest.mark.parametrize("settings", [CHAINS[1], TREES[0]], ids=str)
@pytest.mark.parametrize(("temperature", "top_k", "top_p"), [(1.0, 4, 1.0), (1.4, 5, 0.8)])
def test_sampled_speculation_draws_from_the_target(
    settings: SpecSettings, temperature: float, top_k: int, top_p: float
) -> None:
    """Second and third token of 1,500 answers against the exact joint distribution, by chi-square."""
    target = tiny_target(depth_scale=0.35)
    count, prompt = 1500, [3, 1, 4]
    params = [
        SamplingParams(max_new_tokens=4, temperature=temperature, top_k=top_k, top_p=top_p, ignore_eos=True, seed=k)
        for k in range(count)
    ]
    requests = answer_all(
        target, [prompt] * count, params, drafter=MarkovDrafter(target), settings=settings, max_running=256
    )

    def next_probs(ids: list[int]) -> torch.Tensor:
        final = target.boundaries(torch.tensor([ids]), torch.tensor([len(ids)]), (LAYERS,))[0, 0, -1]
        return adjusted_probs(target.logits(target.normed(final)), temperature, top_k, top_p).double()

    expected: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(3):
        expected = {
            (*head, token): mass * float(probs[token])
            for head, mass in expected.items()
            for probs in [next_probs([*prompt, *head])]
            for token in probs.nonzero().flatten().tolist()
        }
    seen = Counter(tuple(r.output[:3]) for r in requests)
    assert set(seen) <= set(expected)
    # Cells that are expected less than 5 times are taken together, as the test asks.
    cells = [(seen[key], mass * count) for key, mass in expected.items() if mass * count >= 5]
    rest = (count - sum(n for n, _ in cells), count - sum(e for _, e in cells))
    observed, wanted = zip(*([*cells, rest] if rest[1] >= 5 else cells), strict=True)
    statistic = sum((n - e) ** 2 / e for n, e in zip(observed, wanted, strict=True))
    freedom = torch.tensor(float(len(observed) - 1))
    assert len(observed) > 8
    assert float(torch.special.gammaincc(freedom / 2, torch.tensor(statistic) / 2)) > 1e-3


@pytest.mark.parametrize("settings", [None, CHAINS[1], TREES[0]], ids=str)
def test_the_last_event_comes_when_statistics_and_states_are_complete(settings: SpecSettings | None) -> None:
    """Whoever is told of the end reads the request from another thread at once."""
    target = tiny_target(depth_scale=0.35)
    speculator = None if settings is None else Speculator(MarkovDrafter(target), target, settings, 1)
    engine = Engine(target, speculator=speculator, max_running=1)
    seen: list[tuple[int, int, int]] = []

    def read(_event: Event) -> None:
        stats = request.stats
        explained = len(request.output) if stats is None else 1 + stats.verify_steps + stats.correct
        seen.append((len(request.output), explained, len(request.hidden)))

    request = Request("r", [1, 2], SamplingParams(max_new_tokens=17, ignore_eos=True), read, want_hidden=True)
    engine.submit([request])
    while engine.step():
        pass
    assert seen == [(17, 17, 17)]
    assert request.finished >= request.started >= request.created


def test_whoever_watches_sees_long_prompts_being_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a server that reads many of them for minutes looks as one that hangs."""
    monkeypatch.setattr("eagle3ops.engines.reference.engine._PREFILL_TOKENS", 8)
    seen: list[tuple[int, int]] = []
    prefill = Engine._prefill

    def watched(self: Engine, chunk: list[Request]) -> None:
        seen.append((self.at_work, self.counters.passes))
        prefill(self, chunk)

    monkeypatch.setattr(Engine, "_prefill", watched)
    engine = Engine(tiny_target(), speculator=None, stops=(VOCAB - 1,), max_running=5)
    ends: list[Event] = []
    params = SamplingParams(max_new_tokens=1)
    engine.submit([Request(str(number), text, params, ends.append) for number, text in enumerate(prompts(5))])
    assert engine.at_work == 0
    engine.step()
    assert len(seen) > 1
    assert seen == [(5, number) for number in range(len(seen))]
    assert engine.at_work == 0
