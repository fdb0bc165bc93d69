"""Who asks a person for a passphrase, or whether a host key is right?"""

from typing import Protocol


class Prompts(Protocol):
    """A way to ask; a terminal or the console."""

    async def secret(self, question: str) -> str | None:
        """A passphrase or password, not shown while it is typed; None when nobody can be asked or they declined."""

    async def confirm(self, question: str) -> bool:
        """Yes or no; False when nobody can be asked."""


class NoPrompts:
    """Nobody is there to be asked: a script, a service."""

    async def secret(self, question: str) -> str | None:
        """Always None."""
        return None

    async def confirm(self, question: str) -> bool:
        """Always False."""
        return False
