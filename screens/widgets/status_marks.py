"""How is a status drawn? The same in every room: a mark, a word and a colour."""

MARKS = {
    "running": ("●", "history"),
    "done": ("✓", "good"),
    "reused": ("✓", "good"),
    "failed": ("✗", "bad"),
    "damaged": ("✗", "bad"),
    "verdict FAIL": ("!", "bad"),
    "verdict UNDECIDED": ("?", "warn"),
    "cancelled": ("■", "warn"),
    "interrupted": ("◌", "warn"),
    "waiting": ("·", "dim"),
    "created": ("·", "dim"),
    "deleted": ("·", "dim"),
}
"""Status of a run or of a stage -> its mark, and the name of its look."""


def outcome_mark(passed: bool | None) -> tuple[str, str]:
    """A verdict as a mark with its word, and its look; None is UNDECIDED."""
    return {True: ("✓ PASS", "good"), False: ("✗ FAIL", "bad"), None: ("? UNDECIDED", "warn")}[passed]


def mark(status: str) -> tuple[str, str]:
    """The mark and the look of a status."""
    return MARKS.get(status, ("?", "plain"))
