"""Does the console reach a host whose key has a passphrase, and take a lost line as it should?"""

import os
import signal
import sys
from pathlib import Path

import pytest
from sshd_world import SshWorld, keygen, python
from textual.widgets import Input
from toy_world import Toy, prepare

from eagle3ops.hosts.address import parse_address
from eagle3ops.hosts.registry import Host, Registry
from eagle3ops.screens.app import ConsoleApp

sys.path.insert(0, str(Path(__file__).parents[1] / "screens"))
from screen_text import until


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
    kept = ("EAGLE3OPS_JOBS", "EAGLE3OPS_ROOT", "EAGLE3OPS_CACHE", "PYTHONPATH")
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
        await until(pilot, "big: connected", "✓ done", "use/joined")
        assert server.signal_sessions(signal.SIGKILL)
        for _ in range(600):
            await pilot.pause(0.05)
            if app.link.connections == 2:
                break
        await until(pilot, "big: connected", "use/joined")
        assert app.link.connections == 2
    assert "open sesame" not in "".join(
        path.read_text(errors="replace") for path in (tmp_path / "config").rglob("*") if path.is_file()
    )
    assert os.environ["HOME"] == str(ssh_world.home)
