"""Which rooms does the console have, and how does one get there?"""

from dataclasses import dataclass
from importlib import import_module

from textual.screen import Screen


@dataclass(frozen=True, slots=True)
class RoomEntry:
    """One room: a mode of the console with a stack of its own."""

    name: str
    key: str
    label: str
    what: str
    """One sentence for the command palette and the help."""
    place: str
    """`module:class` below `eagle3ops.screens`; imported when the room is first entered."""

    def make(self) -> Screen[None]:
        """A new screen; the rooms find what they look at through the console they are in."""
        module, _, name = self.place.partition(":")
        kind: type[Screen[None]] = getattr(import_module(f"eagle3ops.screens.{module}"), name)
        return kind()


ROOMS = (
    RoomEntry("overview", "1", "Overview", "The whole pipeline and the whole host", "overview.room:Overview"),
    RoomEntry("run", "2", "Run", "Stages, processes, metrics and artifacts of the selected run", "run.room:Run"),
    RoomEntry("logs", "3", "Logs", "What the processes of the selected run say", "logs.room:Logs"),
    RoomEntry("gpus", "4", "GPUs", "What the machine's GPUs and processes do", "gpus.room:GpusScreen"),
    RoomEntry("incidents", "5", "Incidents", "What went wrong, what shows it, what to do", "incidents.room:Incidents"),
    RoomEntry(
        "wiring", "6", "Wiring", "Do training and serving feed the drafter the same tensors?", "wiring.room:Wiring"
    ),
    RoomEntry("tokens", "7", "Tokens", "Which tokens of the samples are trained on", "tokens.room:Tokens"),
    RoomEntry("bench", "8", "Bench", "Baseline against drafters; promote or roll back", "bench.room:Bench"),
    RoomEntry("ledger", "9", "Ledger", "All runs, what changed between two of them, notes", "ledger.room:Ledger"),
    RoomEntry("launch", "0", "Launch", "Fill in a pipeline file, see its forecasts, start it", "launch.room:Launch"),
)
FIRST = ROOMS[0].name
