"""Served is not what was predicted: whose fault can that be? Each suspect with what speaks for it, or clears it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from eagle3ops.bench.diversity import Diversity
from eagle3ops.bench.gap import Gap

OTHER_TEXT = 0.1
"""Share of the served tokens up to the first that the data does not have. On a recorded bf16 engine, whose near-ties
turn with the batch, it was 0.33; other weights part at once."""
State = Literal["likely", "possible", "cleared"]
_ORDER: tuple[State, ...] = ("likely", "possible", "cleared")


@dataclass(frozen=True, slots=True)
class Suspect:
    """One thing that can be wrong."""

    name: str
    """`wiring`, `drafting`, `sampling`, `weights`, `template`, `prompts`, `length` or `looping`."""
    state: State
    why: str
    look: str = ""
    """What to do about it."""

    def as_json(self) -> dict[str, Any]:
        """For `bench.json`."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is known once the alarm has fired."""

    gap: Gap
    diversity: Diversity
    wiring: bool | None
    """Of the measurement repeated against what was served; None where it gave no verdict."""
    wiring_reason: str
    temperature: float
    """With which the data's answers were sampled; served answers are greedy."""
    same_text: float
    """Share of the served tokens that stand before an answer's first difference from the data's."""
    served_prompts: int
    heldout_prompts: int
    """Over which the walk went."""
    limit: int
    """Of new tokens, when served."""
    longest: int
    """Tokens of the longest of the data's answers to the served prompts."""


def suspects(known: Evidence) -> tuple[Suspect, ...]:
    """All of them, the likeliest first."""
    found = [_wiring(known), _drafting(known), _looping(known), *_text(known), *_prompts(known)]
    return tuple(sorted(found, key=lambda one: _ORDER.index(one.state)))


def next_words(found: Sequence[Suspect]) -> str:
    """The suspects that are left, in one sentence."""
    left = [one for one in found if one.state != "cleared"]
    if not left:
        return "no suspect is left that eagle3ops knows: compare the target, its dtype and the drafter with training's"
    return "suspects: " + "; ".join(f"{one.name} ({one.state}): {one.why}" for one in left)


def _wiring(known: Evidence) -> Suspect:
    if known.wiring is None:
        return Suspect("wiring", "possible", f"not measured again: {known.wiring_reason}", "eagle3ops --job verify")
    if not known.wiring:
        return Suspect("wiring", "likely", known.wiring_reason, "mend it, and serve again")
    return Suspect("wiring", "cleared", f"measured again as served: {known.wiring_reason}")


def _drafting(known: Evidence) -> Suspect:
    """The first draft reads what the target hands over; every later one what the drafter made itself."""
    start = known.gap.start
    if start is not None and start > 1:
        why = (
            f"up to draft position {start - 1} drafts are accepted as predicted, from {start} on they are not: what "
            "the drafter feeds back to itself differs from training"
        )
        return Suspect("drafting", "likely", why, "norm_output, rope and window of its config: eagle3ops lint")
    if start is None:
        return Suspect("drafting", "possible", "no draft position stands out", "eagle3ops lint")
    return Suspect("drafting", "cleared", "the first draft already differs, which no later one explains")


def _looping(known: Evidence) -> Suspect:
    told = known.diversity
    if told.alarms:
        return Suspect("looping", "likely", "; ".join(told.alarms), "look at the answers; other prompts, or a penalty")
    if known.gap.kind == "above" and told.served.looping > 0:
        why = f"{told.served.looping:.0%} of the answers loop, and loops are easy to draft"
        return Suspect("looping", "possible", why, "look at the answers")
    return Suspect("looping", "cleared", told.words)


def _text(known: Evidence) -> list[Suspect]:
    sampled = known.temperature > 0
    share = f"{known.same_text:.0%} of the served tokens stand before an answer's first difference from the data's"
    if sampled:
        why = f"the data was sampled at temperature {known.temperature:g} and served greedily: these are other texts"
        sampling = Suspect("sampling", "likely", why, "predict on greedy answers: stages.generate.temperature=0")
    else:
        sampling = Suspect("sampling", "cleared", "the data's answers and the served ones are both greedy")
    if sampled:
        weights = Suspect("weights", "possible", "sampled text cannot be compared with greedy text")
    elif known.same_text < OTHER_TEXT:
        look = "compare the target's fingerprint, dtype and quantisation with those of the data"
        weights = Suspect("weights", "likely", f"only {share}: another target than the data's answers", look)
    else:
        weights = Suspect("weights", "cleared", share)
    sent = (
        "prompts were sent as the data's own token ids, so no template took part; a server that is asked with messages "
        "may use another one"
    )
    return [sampling, weights, Suspect("template", "cleared", sent)]


def _prompts(known: Evidence) -> list[Suspect]:
    served, whole = known.served_prompts, known.heldout_prompts
    if served < whole:
        why = f"served were the first {served} of the {whole} held-out prompts that the walk went over"
        prompts = Suspect("prompts", "possible", why, f"stages.bench.accept_prompts={whole}")
    else:
        prompts = Suspect("prompts", "cleared", "the walk and the server had the same held-out prompts")
    if known.longest > known.limit:
        why = f"served answers end at {known.limit} tokens, the data's run to {known.longest}"
        length = Suspect("length", "possible", why, f"stages.bench.max_new_tokens={known.longest}")
    else:
        length = Suspect("length", "cleared", "served answers may be as long as the data's")
    return [prompts, length]
