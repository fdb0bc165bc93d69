"""An isolated user of SSH, with the developer's own settings out of sight."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sshd_world import SshWorld, make_world, missing


@pytest.fixture
def ssh_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An isolated user: HOME, no ssh-agent, no system configuration."""
    from eagle3ops.hosts.ssh import config as ssh_config

    home = tmp_path / "home"
    home.mkdir(exist_ok=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("EAGLE3OPS_CONFIG", str(tmp_path / "config"))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.setattr(ssh_config, "SYSTEM_CONFIG", tmp_path / "etc" / "ssh_config")
    monkeypatch.setattr(
        ssh_config, "SYSTEM_KNOWN_HOSTS", (tmp_path / "etc" / "ssh_known_hosts", tmp_path / "etc" / "ssh_known_hosts2")
    )
    return home


@pytest.fixture
def ssh_world(ssh_home: Path, tmp_path: Path) -> Iterator[SshWorld]:
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    world = make_world(tmp_path)
    yield world
    for server in world.servers:
        server.stop()
