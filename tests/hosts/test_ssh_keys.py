"""Does only the host with the right key get a connection, and does nothing else make a key right?"""

from pathlib import Path

import asyncssh
import pytest
from ssh_person import Answers, logged_in, public, reach, said, works
from sshd_world import SshWorld, keygen

from eagle3ops.hosts.ssh.errors import HostKeyChanged, HostKeyUnknown
from eagle3ops.hosts.ssh.known_hosts import fingerprint
from eagle3ops.hosts.ssh.trust import trust
from eagle3ops.hosts.transport import ConnectionRefusedForGood


async def test_trusted_host_runs_commands(ssh_world: SshWorld) -> None:
    server = ssh_world.server()
    ssh_world.trust(server)
    async with await reach(server.url()).connect() as connection:
        assert (await connection.ssh.run("echo $HOME")).stdout == f"{server.home}\n"


@pytest.mark.parametrize("there", ["missing", "empty", "other host", "folder"])
async def test_unknown_key_never_connects(ssh_world: SshWorld, there: str) -> None:
    server = ssh_world.server()
    file = ssh_world.ssh / "known_hosts"
    if there == "folder":
        file.mkdir()
    elif there != "missing":
        file.write_text("" if there == "empty" else f"[127.0.0.1]:1 {server.public_key}\n")
    with pytest.raises(HostKeyUnknown, match="hosts trust gpu") as caught:
        await reach(server.url()).connect()
    assert fingerprint(asyncssh.read_public_key(f"{server.host_key}.pub")) in caught.value.what
    assert not logged_in(server)


async def test_changed_key_is_a_hard_stop(ssh_world: SshWorld, tmp_path: Path) -> None:
    server = ssh_world.server()
    other = keygen(tmp_path / "other")
    old = public(other)
    (ssh_world.ssh / "known_hosts").write_text(f"# mine\n[127.0.0.1]:{server.port} {old}\n")
    person = Answers(True, True, True)
    transport = reach(server.url(), person)
    for attempt in (transport.connect(), trust(transport, person, None)):
        with pytest.raises(HostKeyChanged) as caught:
            await attempt
        text = str(caught.value)
        assert f"{ssh_world.ssh / 'known_hosts'}, line 2" in text
        for key in (other, server.host_key):
            assert fingerprint(asyncssh.read_public_key(f"{key}.pub")) in text
    given = fingerprint(asyncssh.read_public_key(f"{server.host_key}.pub"))
    with pytest.raises(HostKeyChanged):
        await trust(transport, person, given)
    assert person.asked == []
    assert not ssh_world.own_known_hosts.exists()
    assert not logged_in(server)


async def test_key_of_another_type_is_a_changed_one(ssh_world: SshWorld, tmp_path: Path) -> None:
    server = ssh_world.server()
    other = keygen(tmp_path / "other", kind="ecdsa")
    old = public(other)
    (ssh_world.ssh / "known_hosts").write_text(f"[127.0.0.1]:{server.port} {old}\n")
    with pytest.raises(HostKeyChanged, match="ecdsa-sha2-nistp256"):
        await reach(server.url()).connect()


@pytest.mark.parametrize("kind", ["rsa", "ecdsa"])
async def test_key_on_record_is_the_one_asked_for(ssh_world: SshWorld, tmp_path: Path, kind: str) -> None:
    """A server with several keys shows the type that is on record, not the one that it likes best."""
    second = keygen(tmp_path / "second", kind=kind)
    server = ssh_world.server(options=[f"HostKey {second}"])
    (ssh_world.ssh / "known_hosts").write_text(f"[127.0.0.1]:{server.port} {public(second)}\n")
    assert await works(reach(server.url()))


async def test_revoked_key(ssh_world: SshWorld) -> None:
    server = ssh_world.server()
    ssh_world.trust(server)
    with (ssh_world.ssh / "known_hosts").open("a") as file:
        file.write(f"@revoked * {server.public_key}\n")
    with pytest.raises(HostKeyChanged, match=r"revoked.*line 2"):
        await reach(server.url()).connect()
    assert not logged_in(server)


async def test_hashed_names(ssh_world: SshWorld) -> None:
    server = ssh_world.server()
    ssh_world.trust(server)
    file = ssh_world.ssh / "known_hosts"
    said("ssh-keygen", "-q", "-H", "-f", str(file))
    assert await works(reach(server.url()))


async def test_certificate_of_an_authority(ssh_world: SshWorld, tmp_path: Path) -> None:
    authority = keygen(tmp_path / "ca")
    server = ssh_world.server(start=False)
    said("ssh-keygen", "-q", "-s", str(authority), "-I", "x", "-h", "-n", "gpu.example", f"{server.host_key}.pub")
    server.options.append(f"HostCertificate {server.host_key}-cert.pub")
    server.start()
    ca = public(authority)
    ssh_world.config(f"Host *.example\n  HostName 127.0.0.1\n  HostKeyAlias gpu.example\n  Port {server.port}\n")
    with pytest.raises(HostKeyUnknown):
        await reach("root@gpu.example").connect()
    (ssh_world.ssh / "known_hosts").write_text(f"@cert-authority *.example {ca}\n")
    assert await works(reach("root@gpu.example"))
    # For another name the certificate does not hold.
    ssh_world.config(f"Host *.example\n  HostName 127.0.0.1\n  HostKeyAlias cpu.example\n  Port {server.port}\n")
    with pytest.raises(ConnectionRefusedForGood, match="certificate"):
        await reach("root@gpu.example").connect()


@pytest.mark.parametrize("value", ["none", "/dev/null", "NONE"])
async def test_configuration_that_switches_checking_off_is_not_followed(ssh_world: SshWorld, value: str) -> None:
    server = ssh_world.server()
    ssh_world.config(f"Host *\n  UserKnownHostsFile {value}\n  StrictHostKeyChecking no\n")
    transport = reach(server.url())
    with pytest.raises(HostKeyUnknown, match="UserKnownHostsFile none"):
        await transport.connect()
    assert not logged_in(server)
    # Trusted in our own file it is checked, and let in.
    await trust(transport, Answers(True), None)
    assert await works(transport)


async def test_configured_known_hosts_and_alias(ssh_world: SshWorld) -> None:
    server = ssh_world.server()
    (ssh_world.ssh / "mine").write_text(f"the-gpu {server.public_key}\n")
    ssh_world.config(
        f"Host g\n  HostName 127.0.0.1\n  Port {server.port}\n  HostKeyAlias the-gpu\n"
        "  UserKnownHostsFile ~/.ssh/%n-none %d/.ssh/mine\n  User root\n"
    )
    assert await works(reach("g"))


async def test_trust_asks_with_the_fingerprint_and_stores_it(ssh_world: SshWorld) -> None:
    server = ssh_world.server()
    no, yes = Answers(False), Answers(True)
    with pytest.raises(HostKeyUnknown):
        await trust(reach(server.url(), no), no, None)
    assert not ssh_world.own_known_hosts.exists()
    results = await trust(reach(server.url(), yes), yes, None)
    expected = fingerprint(asyncssh.read_public_key(f"{server.host_key}.pub"))
    assert len(yes.asked) == 1
    assert expected in yes.asked[0]
    assert "ssh-ed25519" in yes.asked[0]
    assert [item.added for item in results] == [True]
    assert not (ssh_world.ssh / "known_hosts").exists(), "the user's own file is left alone"
    assert await works(reach(server.url()))
    assert [item.added for item in await trust(reach(server.url()), no, None)] == [False]


async def test_trust_by_fingerprint(ssh_world: SshWorld, tmp_path: Path) -> None:
    server = ssh_world.server()
    person = Answers()
    wrong = fingerprint(asyncssh.read_public_key(f"{keygen(tmp_path / 'other')}.pub"))
    right = fingerprint(asyncssh.read_public_key(f"{server.host_key}.pub"))
    with pytest.raises(HostKeyChanged, match="nothing was stored"):
        await trust(reach(server.url()), person, wrong)
    assert not ssh_world.own_known_hosts.exists()
    assert [item.added for item in await trust(reach(server.url()), person, right)] == [True]
    with pytest.raises(HostKeyChanged, match="was expected"):
        await trust(reach(server.url()), person, wrong)
    assert person.asked == []
