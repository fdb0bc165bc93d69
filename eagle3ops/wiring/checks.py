"""What else has to be equal between data, training, checkpoint and engine, besides the layers?"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

CheckOutcome = Literal["PASS", "FAIL", "UNDECIDED", "not made"]
Side = Literal["data", "training", "checkpoint", "engine"]
SIDES: tuple[Side, ...] = ("data", "training", "checkpoint", "engine")


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One question about two sides, and its answer."""

    name: str
    """`template`, `engine_template`, `tokens`, `loss_mask`, `final_state`, `pairing`, `greedy`, `layers`, `lint`."""
    between: tuple[Side, Side]
    verdict: CheckOutcome
    reason: str
    kind: str = ""
    """The fault in one word for programs, such as `doubled_bos`; empty where there is none."""
    fix: str = ""
    """What mends it, or what would decide it."""
    figures: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """For events and reports."""
        return asdict(self) | {"between": list(self.between), "passed": self.verdict == "PASS"}


def counted(number: int, what: str) -> str:
    """`1 row`, `12 rows`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def sample(texts: Sequence[str], most: int = 3) -> str:
    """The first few, and how many more."""
    shown = ", ".join(texts[:most])
    return shown + (f" and {len(texts) - most} more" if len(texts) > most else "")
