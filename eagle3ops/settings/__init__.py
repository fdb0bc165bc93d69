"""The console's settings: what holds, and where each comes from."""

from eagle3ops.settings.resolve import Resolved, config_file, remember_theme, resolve
from eagle3ops.settings.values import Notify, Settings

__all__ = ["Notify", "Resolved", "Settings", "config_file", "remember_theme", "resolve"]
