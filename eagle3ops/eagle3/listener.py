"""Who hears how a training goes?"""

from collections.abc import Callable
from dataclasses import dataclass


def _unheard(*_said: object) -> None:
    """Where nobody listens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """What a training tells while it goes on; what nobody wants to hear is left out.

    Attributes:
        progress: called with the steps that are done, and the steps in all.
        metric: with name, value and step.
        info, warn: with a sentence.
    """

    progress: Callable[[int, int], None] = _unheard
    metric: Callable[[str, float, int | None], None] = _unheard
    info: Callable[[str], None] = _unheard
    warn: Callable[[str], None] = _unheard


SILENT = Listener()
