"""Is it said who is in the way where another process holds the file of hosts, or that of trusted keys?"""

import fcntl
from pathlib import Path

import asyncssh
import pytest

from eagle3ops.errors import Refused
from eagle3ops.hosts.address import parse_address
from eagle3ops.hosts.registry import Host, Registry
from eagle3ops.hosts.ssh.known_hosts import append
from eagle3ops.runs import starts


@pytest.mark.parametrize("name", ["hosts.yaml", "known_hosts"])
def test_a_lock_that_somebody_holds_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(starts, "LOCK_WAIT_S", 0.1)
    file = tmp_path / name

    def write() -> None:
        if name == "hosts.yaml":
            Registry(file).add(Host(name="gpu", address=parse_address("ssh://gpu1:22")))
        else:
            append(file, "gpu1", asyncssh.generate_private_key("ssh-ed25519"), "gpu")

    with (tmp_path / (".hosts.lock" if name == "hosts.yaml" else ".known_hosts.lock")).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(Refused, match=f"{name} has been held by another process") as caught:
            write()
        assert "fuser" in (caught.value.remedy or "")
        assert not file.exists()
    write()
    assert "gpu1" in file.read_text()
