"""Is this key the host's? A person compares fingerprints, and says yes with a key that nobody presses by accident."""

import asyncio
from pathlib import Path
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Button, Static

from eagle3ops.errors import Eagle3opsError
from eagle3ops.hosts.link import Link
from eagle3ops.hosts.ssh.errors import HostKeyUnknown
from eagle3ops.hosts.ssh.known_hosts import fingerprint
from eagle3ops.screens.base import named
from eagle3ops.words import plain

_FILES = {"ssh-ed25519": "ed25519", "ssh-rsa": "rsa"}


class TrustKey(ModalScreen[bool]):
    """True only for `ctrl+y`. Enter, Escape, `n` and the button mean no.

    It comes by itself, in the middle of whatever is typed: no letter, and nothing that the focus can reach, says yes.
    """

    CSS_PATH = "widgets/confirm.tcss"
    PLACE = "Host key"
    BINDINGS: ClassVar[list[BindingType]] = [
        *named(
            "host-key",
            [
                Binding("ctrl+y", "answer(True)", "Trust", tooltip="Trust the key that is shown, and connect"),
                Binding("n,escape", "answer(False)", "Do not trust", tooltip="Trust nothing, and stay away"),
            ],
        )
    ]

    def __init__(self, name: str, unknown: HostKeyUnknown, file: Path) -> None:
        super().__init__()
        self._name_of_host, self._unknown, self._file = name, unknown, file

    def compose(self) -> ComposeResult:
        """What the host showed, where it would be written, how to compare, and one button, which says no."""
        endpoint, key = self._unknown.endpoint, self._unknown.key
        kind = key.get_algorithm()
        own = _FILES.get(kind, "ecdsa" if kind.startswith("ecdsa") else "*")
        with Vertical(id="dialog"):
            yield Static(Text(f"{plain(self._name_of_host)}: its host key is not known", style="bold"))
            yield Static(
                Text.assemble(
                    f"host         {plain(endpoint.host)} port {endpoint.port}\n",
                    f"key type     {plain(kind)}\n",
                    "fingerprint  ",
                    (fingerprint(key), "bold"),
                ),
                id="key",
            )
            yield Static(Text(f"If trusted, it is written to {plain(self._file)} as {plain(endpoint.names[0])}"))
            for note in self._unknown.notes:
                yield Static(Text(f"! {plain(note)}", style="yellow"))
            yield Static(
                Text(
                    "Compare the fingerprint with what the host itself says, by another way than this connection:\n"
                    f"  ssh-keygen -lf /etc/ssh/ssh_host_{own}_key.pub\n"
                    "Where they differ, somebody sits in between and would read everything."
                )
            )
            yield Static(Text.assemble(("ctrl+y", "bold"), ": they are the same; trust this key and connect"))
            with Horizontal(id="buttons"):
                yield Button(Text("Do not trust it (n)"), id="no")

    def on_mount(self) -> None:
        """Enter alone trusts nothing."""
        self.query_one("#no", Button).focus()

    def on_button_pressed(self) -> None:
        """The button says no."""
        self.dismiss(False)

    def action_answer(self, answer: bool) -> None:
        """Answer the question."""
        self.dismiss(answer)


def unknown_key(link: Link) -> HostKeyUnknown | None:
    """The key at which a line stopped because nobody knows it; None where anything else stands in the way."""
    return link.failure if isinstance(link.failure, HostKeyUnknown) else None


async def ask_for_trust(app: "App[int]", link: Link) -> bool:
    """Let the person compare the key at which a line stopped; True once it is on record. Called from a worker."""
    # Whoever only wants to know the keys of all screens does without these, which take a while to import.
    from eagle3ops.hosts.registry import own_known_hosts
    from eagle3ops.hosts.ssh.transport import SshTransport
    from eagle3ops.hosts.ssh.trust import record

    unknown, transport = unknown_key(link), link.transport
    if unknown is None or not isinstance(transport, SshTransport):
        return False
    title, file = f"Host {plain(link.name)}", own_known_hosts()
    if not await app.push_screen_wait(TrustKey(link.name, unknown, file)):
        told = "Its key is not trusted; nothing was written.\nctrl+l asks again."
        app.notify(told, title=title, severity="warning", markup=False)
        return False
    try:
        await asyncio.to_thread(record, transport, unknown)
    except Eagle3opsError as error:
        app.notify(plain(error), title=title, severity="error", timeout=120, markup=False)
        return False
    app.notify(f"Its key is trusted now: {plain(file)}", title=title, markup=False)
    return True
