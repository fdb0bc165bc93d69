"""Which host is looked at? A list of those that this user knows."""

from typing import ClassVar

from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from eagle3ops.errors import Eagle3opsError
from eagle3ops.hosts.reach import LOCAL
from eagle3ops.locations import config_folder
from eagle3ops.screens.base import named
from eagle3ops.words import plain


def other_hosts(here: str) -> list[str]:
    """Names of the hosts that one could look at instead of `here`. Reads a file.

    Raises:
        SpecError: hosts.yaml is wrong, with line and column.
    """
    return [name for name, _ in known_hosts() if name != here]


def known_hosts() -> list[tuple[str, str]]:
    """Every host with its address, this machine first.

    Raises:
        SpecError: as `other_hosts`.
    """
    if not (config_folder() / "hosts.yaml").exists():
        # What reads the file takes a while to import.
        return [(LOCAL, "this machine")]
    from eagle3ops.hosts.registry import Registry

    hosts = Registry().hosts()
    return [(LOCAL, "this machine"), *((name, plain(host.address)) for name, host in sorted(hosts.items()))]


class Hosts(ModalScreen[str | None]):
    """The name of the host that was chosen; None for the one that is looked at."""

    CSS_PATH = "host_choice.tcss"
    PLACE = "Hosts"
    BINDINGS: ClassVar[list[BindingType]] = [
        *named("hosts", [Binding("escape", "leave", "Stay", tooltip="Stay with this host")])
    ]

    def __init__(self, here: str) -> None:
        super().__init__()
        self._here = here

    def compose(self) -> ComposeResult:
        """A list, and what the choice does."""
        with Vertical(id="dialog"):
            yield Static(Text("Look at which host?", style="bold"))
            yield OptionList(id="hosts", markup=False)
            yield Static(
                Text("Runs go on, here and there. Another host: eagle3ops hosts add NAME ssh://..."), id="told"
            )

    def on_mount(self) -> None:
        """Read the file of hosts."""
        self._read()

    @work(thread=True, exit_on_error=False)
    def _read(self) -> None:
        try:
            found, why = known_hosts(), ""
        except Eagle3opsError as error:
            found, why = [(LOCAL, "this machine")], plain(error)
        self.app.call_from_thread(self._show, found, why)

    def _show(self, found: list[tuple[str, str]], why: str) -> None:
        options = self.query_one("#hosts", OptionList)
        names = [name for name, _ in found]
        if self._here not in names:
            found = [(self._here, "given on the command line"), *found]
        broad = max(len(name) for name, _ in found)
        for name, address in found:
            mark = "●" if name == self._here else " "
            options.add_option(Option(Text(f"{mark} {name.ljust(broad)}  {address}"), id=name))
        options.highlighted = [name for name, _ in found].index(self._here)
        options.focus()
        if why:
            self.query_one("#told", Static).update(Text(why))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """One was chosen."""
        self.dismiss(None if event.option.id == self._here else event.option.id)

    def action_leave(self) -> None:
        """Stay."""
        self.dismiss(None)
