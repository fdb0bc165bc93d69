"""Ops about what training and serving feed the drafter. What does the work is imported when it is asked for."""

from typing import Any

from eagle3ops.hosts.agent.operation import Surroundings, operation


def wiring(here: Surroundings, *, run: str) -> dict[str, Any]:
    """The layers of every side by every convention, the fingerprints, the verdict, and what to do."""
    from eagle3ops.outputs.wiring import wiring_of

    return wiring_of(here.root, run)


def tokens(
    here: Surroundings, *, run: str, split: str = "train", row: int = 0, find: str | None = None, first: int = 0
) -> dict[str, Any]:
    """One sample of a run's training data, token by token."""
    from eagle3ops.outputs.tokens import tokens_of

    return tokens_of(here.root, run, split=split, row=row, find=find, first=first)


OPERATIONS = (operation("runs.wiring", wiring), operation("runs.tokens", tokens))
