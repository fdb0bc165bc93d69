"""The console: what does a person see who types `eagle3ops`?"""

from collections.abc import Iterable
from typing import ClassVar

from textual import work
from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.screen import Screen

from eagle3ops.hosts.link import Link, LinkState
from eagle3ops.hosts.reach import transport_for
from eagle3ops.screens.asking import ConsolePrompts
from eagle3ops.screens.feed import MachineFeed
from eagle3ops.screens.gpus import GpusScreen
from eagle3ops.screens.overview import Overview
from eagle3ops.words import plain


class ConsoleApp(App[int]):
    """One host, one root there, its runs, and what can be done with them."""

    TITLE = "eagle3ops"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("q", "quit", "Quit")]

    def __init__(self, root: str | None = None, host: str = "local") -> None:
        super().__init__()
        self.link = Link(transport_for(host, ConsolePrompts(self)), on_state=self._link_changed)
        self.feed = MachineFeed(self.link)
        self.overview = Overview(self.link, root)

    def on_mount(self) -> None:
        """Open the overview, and the line to the host."""
        self.push_screen(self.overview)
        self._connect()
        self.run_worker(self.feed.run(), group="machine", exit_on_error=False)

    @work(exit_on_error=False)
    async def _connect(self) -> None:
        """Begin to connect from a worker: what asks for a passphrase waits for a screen, and only a worker may."""
        self.link.start()

    async def on_unmount(self) -> None:
        """Hang up; runs go on."""
        await self.link.close()

    def _link_changed(self, state: LinkState) -> None:
        self.sub_title = f"{self.link.name}: {plain(state)}"
        self.overview.show_link(state)

    def action_gpus(self) -> None:
        """Open the GPUs and processes, unless they are open."""
        if not isinstance(self.screen, GpusScreen):
            self.push_screen(GpusScreen(self.feed))

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """The palette: Textual's own commands and those of the overview."""
        yield from super().get_system_commands(screen)
        if not isinstance(screen, GpusScreen):
            yield SystemCommand("GPUs and processes", "What the machine's GPUs and processes do", self.action_gpus)
        if isinstance(screen, GpusScreen):
            yield SystemCommand("Sort processes", "By CPU, memory, GPU memory, I/O or age", screen.action_sort)
        if isinstance(screen, Overview):
            yield SystemCommand("Resume run", "Take the selected run up again where it stopped", screen.action_resume)
            yield SystemCommand("Cancel run", "End the selected run; asks first", screen.action_cancel)
            yield SystemCommand("Reconnect", "Try the line to the host now", screen.action_reconnect)


def main(root: str | None, host: str) -> int:
    """Open the console on a host; returns the exit code.

    Raises:
        RequestError: there is no such host.
    """
    app = ConsoleApp(root, host)
    app.run()
    return app.return_code or 0
