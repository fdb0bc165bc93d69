"""Ops about drafters: what a run's benchmark found, which drafters there are, which one is promoted."""

from typing import Any

from eagle3ops.hosts.agent.operation import Surroundings, operation

# What the ops need is imported when they are carried out: an agent is started far more often than it is asked this.


def bench(here: Surroundings, *, run: str) -> dict[str, Any]:
    """What the bench of a run measured, the verdicts on its drafter, and which settings may be promoted."""
    from eagle3ops.outputs import drafters

    return drafters.bench(here.root, run)


def list_drafters(here: Surroundings, *, target: str | None = None) -> dict[str, Any]:
    """One row for each run with a finished bench, newest first; with `target` (a fingerprint) only its drafters."""
    from eagle3ops.outputs import drafters

    return drafters.list_drafters(here.root, target)


def show(here: Surroundings, *, target: str | None = None) -> dict[str, Any]:
    """What is promoted for each target, with its launch line and how that came about."""
    from eagle3ops.outputs import drafters

    return drafters.show(here.root, target)


def promote(
    here: Surroundings,
    *,
    run: str,
    setting: str | None = None,
    forced: bool = False,
    reason: str | None = None,
    expected: int | None = None,
    token: str | None = None,
) -> dict[str, Any]:
    """Make a run's drafter the one that its target is served with; without `setting` at its best one."""
    from eagle3ops.outputs import drafters

    return drafters.promote(
        here.root, run=run, setting=setting, forced=forced, reason=reason, expected=expected, token=token
    )


def rollback(
    here: Surroundings,
    *,
    target: str | None = None,
    reason: str | None = None,
    expected: int | None = None,
    token: str | None = None,
) -> dict[str, Any]:
    """Go back to what was promoted for a target before."""
    from eagle3ops.outputs import drafters

    return drafters.rollback(here.root, target=target, reason=reason, expected=expected, token=token)


OPERATIONS = (
    operation("runs.bench", bench),
    operation("drafters.list", list_drafters),
    operation("drafters.show", show),
    operation("drafters.promote", promote),
    operation("drafters.rollback", rollback),
)
