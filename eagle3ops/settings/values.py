"""What can a user settle about the console, and what holds where nothing is said?"""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Notify:
    """What happens when a run that was seen going on has ended."""

    command: tuple[str, ...] | None = None
    """Program and arguments, started without a shell."""
    bell: bool = True
    """Ring the terminal's bell."""
    timeout_s: float = 30.0
    """After so many seconds the command is ended."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of the console. `file.SettingsFile` says the same of the file, with its bounds."""

    theme: str | None = None
    """Name of a theme; nothing leaves the choice to the console."""
    ascii: bool = False
    """Draw with ASCII characters only."""
    read_only: bool = False
    """Look, and end or resume nothing."""
    refresh: float = 1.0
    """Seconds between two readings of the runs."""
    keymap: dict[str, str | tuple[str, ...]] = field(default_factory=dict)
    """Actions and the keys that stand for them."""
    notify: Notify = field(default_factory=Notify)
