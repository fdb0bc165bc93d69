"""Does the console reach a host whose key has a passphrase, and take a lost line as it should?"""

import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
from sshd_world import SshWorld, keygen, python
from textual.pilot import Pilot
from textual.widgets import Input
from toy_world import Toy, prepare

from eagle3ops.hosts.address import parse_address
from eagle3ops.hosts.link import Pace
from eagle3ops.hosts.registry import Host, Registry
from eagle3ops.screens.app import ConsoleApp
from eagle3ops.screens.feeds import runs_feed
from eagle3ops.screens.rooms import ROOMS
from eagle3ops.settings import resolve

sys.path.insert(0, str(Path(__file__).parents[1] / "screens"))
from screen_text import shown, until
from stage import DONE, FAILED, canned_root


async def test_a_passphrase_is_asked_for_once_and_kept_for_reconnects(
    ssh_world: SshWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked = keygen(ssh_world.ssh / "id_locked", passphrase="open sesame")
    ssh_world.key.unlink()
    (ssh_world.folder / "authorized_keys").write_text("")
    ssh_world.authorize(locked)
    ssh_world.config(f"Host *\n  IdentityFile {locked}\n")
    (tmp_path / "there").mkdir()
    there = Toy(prepare(tmp_path / "there"))
    kept = ("EAGLE3OPS_JOBS", "EAGLE3OPS_ROOT", "EAGLE3OPS_CACHE", "EAGLE3OPS_STATE", "PYTHONPATH")
    server = ssh_world.server(environment={name: there.environment[name] for name in kept})
    ssh_world.trust(server)
    Registry().add(Host(name="big", address=parse_address(server.url()), python=python()))
    assert there.job().returncode == 0
    app = ConsoleApp(host="big")
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "id_locked")
        app.screen.query_one(Input).value = "wrong"
        await pilot.press("enter")
        await until(pilot, "wrong; passphrase of")
        app.screen.query_one(Input).value = "open sesame"
        await pilot.press("enter")
        await until(pilot, "big: connected", "✓ done", "PASS joined")
        assert server.signal_sessions(signal.SIGKILL)
        for _ in range(600):
            await pilot.pause(0.05)
            if app.link.connections == 2:
                break
        await until(pilot, "big: connected", "PASS joined")
        assert app.link.connections == 2
    assert "open sesame" not in "".join(
        path.read_text(errors="replace") for path in (tmp_path / "config").rglob("*") if path.is_file()
    )
    assert os.environ["HOME"] == str(ssh_world.home)


SAYS_STALE = {"overview": "◌ big", "logs": "read at"}
"""How a room says that what it shows is old; most say STALE."""
WAITS = ("Reading", "Asking", "Nothing planned", "on its way")
"""Words of rooms that have not got everything yet."""


async def every_room(pilot: Pilot[int], *, stale: bool) -> None:
    """Go through all rooms, and wait in each until it looks as old as it is."""
    app = pilot.app
    for entry in ROOMS:
        await pilot.press(entry.key)
        word = SAYS_STALE.get(entry.name, "STALE: ")
        for _ in range(400):
            await pilot.pause(0.03)
            text = shown(app)
            settled = stale or not any(words in text for words in WAITS)
            if app.current_mode == entry.name and (word in text) == stale and settled:
                break
        else:
            raise AssertionError(f"{entry.name} is {'not ' if stale else ''}stale:\n{text}")


async def test_every_room_is_stale_while_the_line_is_down_or_the_agent_hangs(
    ssh_world: SshWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs_feed, "LATE_S", 1.5)
    (tmp_path / "there").mkdir()
    root = canned_root(tmp_path / "there")
    server = ssh_world.server(environment={"EAGLE3OPS_ROOT": str(root), "PYTHONPATH": os.environ.get("PYTHONPATH", "")})
    ssh_world.trust(server)
    Registry().add(Host(name="big", address=parse_address(server.url()), python=python()))
    app = ConsoleApp(host="big", resolved=resolve({"refresh": 0.3}))
    app.link.pace = Pace(first=0.1, longest=0.3)
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await until(pilot, "● big connected", "tiny")
        await every_room(pilot, stale=False)
        listener = server._listener()
        assert listener is not None
        # The server accepts, and says nothing: as a host whose network is gone.
        listener.suspend()
        assert server.signal_sessions(signal.SIGKILL)
        await every_room(pilot, stale=True)
        assert app.link.state.kind != "connected"
        app.runs.select(FAILED)
        await pilot.press("1", "r")
        # Not kept until the line is back: by then nobody waits for it.
        await until(pilot, "Nothing was asked of it")
        app.runs.select(DONE)
        shutil.copytree(root / "runs" / DONE, root / "runs" / f"{DONE[:-4]}beef")
        listener.resume()
        await every_room(pilot, stale=False)
        assert app.link.connections == 2
        await pilot.press("9")
        await until(pilot, "tiny-beef")
        agents = [process for process in server.commands() if "agent" in process.cmdline()]
        assert agents
        for agent in agents:
            agent.suspend()
        await every_room(pilot, stale=True)
        assert app.runs.way == "silent"
        for agent in agents:
            agent.resume()
        await every_room(pilot, stale=False)
        assert app.link.connections == 2
        app.runs.select(FAILED)
        await pilot.press("2")
        await until(pilot, FAILED, "SIGKILL")
