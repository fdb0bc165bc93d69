"""Ops about patches: what was changed in the source of installed engines, and how it stands."""

from pathlib import Path
from typing import Any

from eagle3ops.hosts.agent.operation import Surroundings, operation

MOST = 200
"""Deeds in one answer, the newest."""


def journal(here: Surroundings) -> dict[str, Any]:
    """What is patched and how it stands now, and what was done, the newest first."""
    return journal_below(here.root)


def journal_below(root: Path) -> dict[str, Any]:
    """The same of one root."""
    from dataclasses import asdict

    from eagle3ops.patching.transaction import Journal

    found = Journal(root)
    deeds = found.deeds()
    return {
        "standing": [asdict(one) | {"files": [file for file, _, _ in one.files]} for one in found.standing()],
        "deeds": [asdict(one) for one in reversed(deeds[-MOST:])],
        "left_out": max(0, len(deeds) - MOST),
    }


OPERATIONS = (operation("patches.journal", journal),)
