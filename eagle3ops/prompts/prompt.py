"""What is a prompt? Chat messages that end where the target is to answer."""

from dataclasses import dataclass
from typing import TypedDict


class Message(TypedDict):
    """One turn, as chat templates take it."""

    role: str
    """`system`, `user` or `assistant`."""
    content: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """Something to answer."""

    id: str
    messages: tuple[Message, ...]
    """At least one; the last is a user's."""
    category: str
    """Where it is from, for breaking results down."""
