"""Does the console let a person trust a key that is unknown, deliberately, and never one that has changed?"""

import sys
from pathlib import Path

import asyncssh
import pytest
from screen_text import shown, until
from textual.pilot import Pilot

sys.path.insert(0, str(Path(__file__).parents[1] / "hosts"))
from ssh_fixtures import ssh_home, ssh_world
from ssh_person import logged_in, public
from sshd_world import Sshd, SshWorld, keygen, python

from eagle3ops.errors import Eagle3opsError
from eagle3ops.hosts.address import parse_address
from eagle3ops.hosts.registry import Host, Registry
from eagle3ops.hosts.ssh.errors import HostKeyChanged
from eagle3ops.hosts.ssh.known_hosts import fingerprint
from eagle3ops.screens.app import ConsoleApp
from eagle3ops.screens.trusting import TrustKey
from eagle3ops.settings import resolve

__all__ = ["ssh_home", "ssh_world"]


def console(server: Sshd, **settings: object) -> ConsoleApp:
    """A console on the host `gpu`, which was added and not trusted yet."""
    root = server.folder / "root"
    root.mkdir(exist_ok=True)
    Registry().add(Host(name="gpu", address=parse_address(server.url()), python=python(), root=str(root)))
    return ConsoleApp(host="gpu", resolved=resolve(settings))


def key_of(server: Sshd) -> str:
    return fingerprint(asyncssh.read_public_key(f"{server.host_key}.pub"))


async def until_stopped(pilot: Pilot[int], why: type[Eagle3opsError]) -> None:
    """Until the line has stopped for this reason, and what follows from that has happened."""
    app = pilot.app
    assert isinstance(app, ConsoleApp)
    for _ in range(600):
        await pilot.pause(0.02)
        if isinstance(app.link.failure, why) and app.link.state.kind == "stopped":
            break
    await pilot.pause(0.1)
    assert isinstance(app.link.failure, why), app.link.state


@pytest.mark.parametrize("size", [(120, 40), (80, 24), (50, 30)])
async def test_an_unknown_key_is_shown_and_asked_about(ssh_world: SshWorld, size: tuple[int, int]) -> None:
    server = ssh_world.server()
    app = console(server)
    async with app.run_test(size=size) as pilot:
        text = await until(pilot, "its host key is not known", "ctrl+y", "Do not trust it (n)")
        assert isinstance(app.screen, TrustKey)
        place = app.screen.query_one("#dialog").content_region
        rows = text.splitlines()[place.y : place.bottom]
        one_line = "".join(row[place.x : place.right] for row in rows).replace(" ", "")
        for said in (key_of(server), "ssh-ed25519", f"127.0.0.1port{server.port}", f"[127.0.0.1]:{server.port}"):
            assert said in one_line, "all of it can be read, on a small terminal too"
        assert str(ssh_world.own_known_hosts) in one_line
        assert "ssh_host_ed25519_key.pub" in one_line
        assert not ssh_world.own_known_hosts.exists()
        assert not logged_in(server)


@pytest.mark.parametrize(
    "keys", [["enter"], ["escape"], ["n"], ["y", "Y", "t", "tab", "enter"], ["tab", "space", "escape"]]
)
async def test_whatever_else_is_pressed_trusts_nothing(ssh_world: SshWorld, keys: list[str]) -> None:
    server = ssh_world.server()
    app = console(server)
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await until(pilot, "its host key is not known")
        await pilot.press(*keys)
        await until(pilot, "nothing was written", "hosts trust gpu")
        assert not isinstance(app.screen, TrustKey)
        assert app.link.state.kind == "stopped"
        await pilot.press("ctrl+y")
        await pilot.pause(0.05)
        assert app.link.state.kind == "stopped"
    assert not ssh_world.own_known_hosts.exists()
    assert not logged_in(server)


async def test_the_deliberate_key_trusts_it_and_connects(ssh_world: SshWorld) -> None:
    server = ssh_world.server()
    app = console(server)
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await until(pilot, "its host key is not known")
        await pilot.press("n")
        await until(pilot, "ctrl+l asks again")
        await pilot.press("ctrl+l")
        await until(pilot, key_of(server))
        await pilot.press("ctrl+y")
        await until(pilot, "gpu: connected", "Its key is trusted now")
    lines = ssh_world.own_known_hosts.read_text().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"[127.0.0.1]:{server.port} {server.public_key} gpu ")
    assert ssh_world.own_known_hosts.stat().st_mode & 0o077 == 0
    assert not (ssh_world.ssh / "known_hosts").exists(), "written is only the file that is ours"


async def test_every_host_on_the_way_is_asked_about(ssh_world: SshWorld) -> None:
    jump, server = ssh_world.server(), ssh_world.server()
    ssh_world.config(f'Host 127.0.0.1\n  IdentityFile {ssh_world.key}\nMatch host 127.0.0.1 exec "false"\n')
    ssh_world.config(
        f"Host way\n  HostName 127.0.0.1\n  Port {jump.port}\n  User root\n"
        f"Host there\n  HostName 127.0.0.1\n  Port {server.port}\n  User root\n  ProxyJump way\n"
    )
    app = console(server)
    Registry().add(Host(name="gpu", address=parse_address("there"), python=python(), root=str(server.folder)))
    app = ConsoleApp(host="gpu")
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, key_of(jump), f"port {jump.port}")
        await pilot.press("ctrl+y")
        await until(pilot, key_of(server), f"port {server.port}")
        assert not logged_in(server)
        await pilot.press("ctrl+y")
        await until(pilot, "gpu: connected")


async def test_a_changed_key_offers_nothing(ssh_world: SshWorld, tmp_path: Path) -> None:
    server = ssh_world.server()
    known = ssh_world.ssh / "known_hosts"
    known.write_text(f"[127.0.0.1]:{server.port} {public(keygen(tmp_path / 'other'))}\n")
    before = known.read_text()
    app = console(server)
    async with app.run_test(size=(120, 40)) as pilot:
        for _ in range(2):
            await until_stopped(pilot, HostKeyChanged)
            assert not isinstance(app.screen, TrustKey)
            await pilot.press("ctrl+y", "y")
            await until(pilot, "THE HOST KEY HAS CHANGED", "by hand")
            assert "ctrl+y" not in shown(app)
            assert app.link.connections == 0
            await pilot.press("ctrl+l")
    assert known.read_text() == before
    assert not ssh_world.own_known_hosts.exists()
    assert not logged_in(server)


async def test_another_key_that_came_on_record_meanwhile_is_a_changed_one(ssh_world: SshWorld, tmp_path: Path) -> None:
    """While one person compares, somebody else trusts another key for the same host."""
    server = ssh_world.server()
    app = console(server)
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await until(pilot, "its host key is not known")
        line = f"[127.0.0.1]:{server.port} {public(keygen(tmp_path / 'other'))}\n"
        ssh_world.own_known_hosts.write_text(line)
        await pilot.press("ctrl+y")
        await until(pilot, "THE HOST KEY HAS CHANGED")
        assert app.link.state.kind == "stopped"
    assert ssh_world.own_known_hosts.read_text() == line
    assert not logged_in(server)


async def test_a_console_that_only_looks_trusts_nothing(ssh_world: SshWorld) -> None:
    server = ssh_world.server()
    app = console(server, read_only=True)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "host key not known", "hosts trust gpu")
        assert not isinstance(app.screen, TrustKey)
        await pilot.press("ctrl+y")
        await pilot.pause(0.05)
        assert app.link.state.kind == "stopped"
    assert not ssh_world.own_known_hosts.exists()
