"""What does a profile say, in a sentence and as bars of text?

A profiler slows the CPU down by several times and the GPU hardly at all. So the time that the GPU works is taken from
the trace, and how long a step takes from the same request without the profiler; what is left the GPU waits.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eagle3ops.profiling.phases import StepTimes

WAITING = "waiting"
_WORDS = {
    "draft": "drafting",
    "draft_extend": "reading what was accepted",
    "verify": "verification",
    "decode": "decoding",
    "prefill": "prefill",
    "sample": "choosing tokens",
    "communication": "communication that nothing hides",
    "other": "other work",
    WAITING: "waiting",
}
_CELLS = 48
_LONG = 0.4
"""From this share of a step on, a part of it is called what the step is bound by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One server's step.

    Attributes:
        label: of the setting.
        times: by the trace.
        step_ms: a step without the profiler, from answers of two lengths.
        tokens: tokens that a step yields, bonus token included.
    """

    label: str
    times: StepTimes
    step_ms: float
    tokens: float

    @property
    def parts(self) -> dict[str, float]:
        """Milliseconds of a step by phase, `waiting` last; they sum to `step_ms`, unless the device worked longer."""
        return {**self.times.phases, WAITING: max(0.0, self.step_ms - self.times.busy_ms)}

    @property
    def ms_per_token(self) -> float:
        """What counts in the end."""
        return self.step_ms / self.tokens

    def as_dict(self) -> dict[str, Any]:
        """For files."""
        return {
            "label": self.label,
            "step_ms": self.step_ms,
            "tokens_per_step": self.tokens,
            "ms_per_token": self.ms_per_token,
            "parts_ms": self.parts,
            "trace": self.times.as_dict(),
        }


def bound_by(profile: Profile) -> str:
    """What limits a step, and what would help."""
    parts = profile.parts
    whole = sum(parts.values()) or 1.0
    share = {name: spent / whole for name, spent in parts.items()}
    drafting = share.get("draft", 0.0) + share.get("draft_extend", 0.0)
    if share[WAITING] >= _LONG:
        where = next(iter(profile.times.waits), None)
        told = f", most of it in {where}" if where is not None else ""
        return (
            f"bound by launches and the scheduler: the device waits {share[WAITING]:.0%} of a step{told} "
            f"({profile.times.launches:.0f} launches a step). Larger batches, a larger target or more tokens a step "
            "use the time; a faster drafter does not"
        )
    bounds = {
        "bound by communication between GPUs: fewer GPUs a replica, or a faster all-reduce": share.get(
            "communication", 0.0
        ),
        "bound by the drafter: fewer draft steps, a narrower tree, or a smaller draft vocabulary": drafting,
        "bound by verification, as it should be: what helps is a longer accept length or fewer draft tokens": share.get(
            "verify", 0.0
        ),
        "bound by the target's own pass: there is room for a drafter": share.get("decode", 0.0),
    }
    # Two may be long; the longer one is what the step is bound by.
    words = max(bounds, key=lambda one: bounds[one])
    return words if bounds[words] >= _LONG else "bound by no single phase"


def sentence(profile: Profile, baseline: Profile | None) -> str:
    """Where the time of a step goes, against the baseline where there is one."""
    device = "GPU" if profile.times.on_gpu else "CPU"
    parts = sorted(profile.times.phases.items(), key=lambda item: -item[1])
    told = ", ".join(f"{_WORDS[name]} {spent:.2f}" for name, spent in parts if spent >= 0.005)
    text = (
        f"{profile.label}: a step takes {profile.step_ms:.2f} ms and yields {profile.tokens:.2f} tokens "
        f"({profile.ms_per_token:.2f} ms a token"
    )
    if baseline is not None:
        text += f", {baseline.label} {baseline.ms_per_token:.2f}"
    return f"{text}); the {device} works {profile.times.busy_ms:.2f} ms of it: {told}; {bound_by(profile)}"


def bars(profile: Profile) -> list[str]:
    """One line a phase, its length its share of the step."""
    parts = profile.parts
    whole = sum(parts.values()) or 1.0
    lines = []
    for name, spent in parts.items():
        cells = round(_CELLS * spent / whole)
        if cells or spent >= 0.005:
            lines.append(f"{_WORDS[name]:<32} {'█' * cells or '▏':<{_CELLS}} {spent:8.3f} ms {spent / whole:5.0%}")
    return lines


def table(profiles: Mapping[str, Profile]) -> str:
    """All profiles as text, for `profile.txt`."""
    blocks = []
    for label, profile in profiles.items():
        head = f"{label}: {profile.step_ms:.3f} ms a step, {profile.tokens:.2f} tokens a step"
        waits = [
            f"  while the device waits, by the profiled CPU: {name} {spent:.2f} ms"
            for name, spent in list(profile.times.waits.items())[:4]
            # On a CPU the waits are Python's own work between the operators.
            if profile.times.on_gpu
        ]
        blocks.append("\n".join([head, *("  " + line for line in bars(profile)), *waits]))
    return "\n\n".join(blocks) + "\n"
