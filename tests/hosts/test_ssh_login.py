"""Does only the right host with the right key get in, and is every refusal explained?"""

import asyncio
import os
import re
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import asyncssh
import pytest
from sshd_world import Sshd, SshWorld, free_port, keygen, python

from eagle3ops.errors import HostUnreachable
from eagle3ops.hosts.address import parse_address
from eagle3ops.hosts.known_hosts import fingerprint
from eagle3ops.hosts.registry import Host
from eagle3ops.hosts.ssh import Limits, SshTransport
from eagle3ops.hosts.ssh_errors import HostKeyChanged, HostKeyUnknown, LoginRefused
from eagle3ops.hosts.ssh_trust import trust
from eagle3ops.hosts.transport import ConnectionRefusedForGood


class Answers:
    """A person who gives the answers of a list, and remembers what was asked."""

    def __init__(self, *answers: str | bool | None) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def secret(self, question: str) -> str | None:
        self.asked.append(question)
        answer = self.answers.pop(0) if self.answers else None
        return answer if isinstance(answer, str) else None

    async def confirm(self, question: str) -> bool:
        self.asked.append(question)
        return bool(self.answers and self.answers.pop(0))


def reach(address: str, person: Answers | None = None, limits: Limits | None = None) -> SshTransport:
    host = Host(name="gpu", address=parse_address(address), python=python())
    return SshTransport(host, person or Answers(), limits=limits)


async def works(transport: SshTransport) -> bool:
    async with await transport.connect() as connection:
        return (await connection.ssh.run("echo in")).stdout == "in\n"


def said(*command: str) -> str:
    """What a short program prints."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def public(key: Path) -> str:
    """Type and key of a key pair's file."""
    return " ".join(Path(f"{key}.pub").read_text().split()[:2])


def logged_in(server: Sshd) -> bool:
    return "Accepted " in server.log()


# --- host keys


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


# --- logging in


async def test_refused_login_names_what_was_tried(ssh_world: SshWorld) -> None:
    server = ssh_world.server()
    ssh_world.trust(server)
    (ssh_world.folder / "authorized_keys").write_text("")
    with pytest.raises(LoginRefused, match=re.escape(str(ssh_world.key))) as caught:
        await reach(server.url()).connect()
    assert "ssh-copy-id -p" in str(caught.value)


async def test_no_key_at_all(ssh_world: SshWorld) -> None:
    server = ssh_world.server()
    ssh_world.trust(server)
    ssh_world.key.unlink()
    with pytest.raises(LoginRefused, match="nothing to try"):
        await reach(server.url()).connect()


async def test_key_that_others_may_read_is_not_used(ssh_world: SshWorld) -> None:
    server = ssh_world.server()
    ssh_world.trust(server)
    ssh_world.key.chmod(0o644)
    with pytest.raises(LoginRefused, match="mode 0644"):
        await reach(server.url()).connect()
    assert not logged_in(server)


@pytest.mark.parametrize("pem", [False, True])
async def test_passphrase_is_asked_once_and_kept(ssh_world: SshWorld, tmp_path: Path, pem: bool) -> None:
    server = ssh_world.server()
    ssh_world.trust(server)
    key = keygen(tmp_path / "locked", passphrase="open sesame", kind="ecdsa" if pem else "ed25519", pem=pem)
    ssh_world.authorize(key)
    (tmp_path / "locked.pub").unlink()
    ssh_world.config(f"Host *\n  IdentityFile {key}\n")
    person = Answers("wrong", "open sesame")
    transport = reach(server.url(), person)
    assert await works(transport)
    assert len(person.asked) == 2
    assert str(key) in person.asked[0]
    assert person.asked[1].startswith("wrong")
    assert await works(transport)
    assert len(person.asked) == 2


async def test_passphrase_is_not_asked_for_a_key_that_opens_nothing(ssh_world: SshWorld, tmp_path: Path) -> None:
    server = ssh_world.server()
    ssh_world.trust(server)
    ssh_world.config(f"Host *\n  IdentityFile {keygen(tmp_path / 'locked', passphrase='x')}\n")
    person = Answers("x")
    with pytest.raises(LoginRefused):
        await reach(server.url(), person).connect()
    assert person.asked == []


async def test_passphrase_that_nobody_knows(ssh_world: SshWorld, tmp_path: Path) -> None:
    server = ssh_world.server()
    ssh_world.trust(server)
    key = keygen(tmp_path / "locked", passphrase="open sesame")
    ssh_world.authorize(key)
    ssh_world.config(f"Host *\n  IdentityFile {key}\n")
    with pytest.raises(ConnectionRefusedForGood, match="ssh-add") as caught:
        await reach(server.url()).connect()
    assert str(key) in caught.value.what
    with pytest.raises(ConnectionRefusedForGood, match="3 wrong passphrases"):
        await reach(server.url(), Answers("a", "b", "c", "open sesame")).connect()
    assert not logged_in(server)


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "agent.sock"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", str(path)], stdout=subprocess.DEVNULL)
    while not path.exists():
        assert process.poll() is None
    monkeypatch.setenv("SSH_AUTH_SOCK", str(path))
    yield path
    process.kill()
    process.wait()


async def test_ssh_agent(ssh_world: SshWorld, tmp_path: Path, agent: Path) -> None:
    server = ssh_world.server()
    ssh_world.trust(server)
    key = keygen(tmp_path / "in-agent")
    said("ssh-add", "-q", str(key))
    ssh_world.authorize(key)
    ssh_world.key.unlink()
    assert await works(reach(server.url()))
    # IdentityAgent none, and IdentitiesOnly without that key, leave it out.
    for line in ("IdentityAgent none", "IdentitiesOnly yes"):
        ssh_world.config(f"Host *\n  {line}\n")
        with pytest.raises(LoginRefused):
            await reach(server.url()).connect()
    # A public key file picks it.
    ssh_world.config(f"Host *\n  IdentitiesOnly yes\n  IdentityFile {key}.pub\n")
    assert await works(reach(server.url()))


async def test_agent_is_not_forwarded(ssh_world: SshWorld, agent: Path) -> None:
    server = ssh_world.server()
    ssh_world.trust(server)
    ssh_world.config("Host *\n  ForwardAgent yes\n")
    async with await reach(server.url()).connect() as connection:
        assert (await connection.ssh.run("echo [$SSH_AUTH_SOCK]")).stdout == "[]\n"


async def test_dead_agent_is_named(ssh_world: SshWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = ssh_world.server()
    ssh_world.trust(server)
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "gone"))
    assert await works(reach(server.url()))
    ssh_world.key.unlink()
    with pytest.raises(LoginRefused, match="ssh-agent at"):
        await reach(server.url()).connect()


async def test_password(ssh_world: SshWorld) -> None:
    server = ssh_world.server(options=["PasswordAuthentication yes", "PubkeyAuthentication no"], start=False)
    hashed = said("openssl", "passwd", "-6", "hunter2").strip()
    (server.folder / "shadow").write_text(f"root:{hashed}:19000:0:99999:7:::\nsshd:*:19000:0:99999:7:::\n")
    server.start()
    ssh_world.trust(server)
    person = Answers("wrong", "hunter2")
    transport = reach(server.url(), person)
    assert await works(transport)
    assert [question.split()[0] for question in person.asked] == ["password", "wrong;"]
    assert await works(transport)
    assert len(person.asked) == 2
    with pytest.raises(LoginRefused):
        await reach(server.url()).connect()


# --- the way there


async def test_proxy_jump_checks_every_key(ssh_world: SshWorld) -> None:
    jump, target = ssh_world.server(), ssh_world.server()
    ssh_world.config(
        f"Host far\n  HostName 127.0.0.1\n  Port {target.port}\n  User root\n  ProxyJump jump\n"
        f"Host jump\n  HostName 127.0.0.1\n  Port {jump.port}\n  User root\n"
    )
    ssh_world.trust(target)
    with pytest.raises(HostKeyUnknown, match=f"port {jump.port}"):
        await reach("far").connect()
    assert not logged_in(jump)
    (ssh_world.ssh / "known_hosts").write_text(jump.known)
    with pytest.raises(HostKeyUnknown, match=f"port {target.port}"):
        await reach("far").connect()
    assert not logged_in(target)
    ssh_world.trust(target)
    async with await reach("far").connect() as connection:
        assert [endpoint.port for endpoint, _ in connection.hops] == [jump.port, target.port]
        assert (await connection.ssh.run("echo $HOME")).stdout == f"{target.home}\n"


async def test_trust_through_a_jump_asks_for_both(ssh_world: SshWorld) -> None:
    jump, target = ssh_world.server(), ssh_world.server()
    ssh_world.config(f"Host far\n  ProxyJump root@127.0.0.1:{jump.port}\n  HostName 127.0.0.1\n  Port {target.port}\n")
    person = Answers(True, True)
    results = await trust(reach("root@far", person), person, None)
    assert [(item.endpoint.port, item.added) for item in results] == [(jump.port, True), (target.port, True)]
    assert await works(reach("root@far"))


async def test_two_jumps(ssh_world: SshWorld) -> None:
    servers = [ssh_world.server() for _ in range(3)]
    ssh_world.trust(*servers)
    jumps = ",".join(f"root@127.0.0.1:{server.port}" for server in servers[:2])
    ssh_world.config(f"Host far\n  HostName 127.0.0.1\n  Port {servers[2].port}\n  User root\n  ProxyJump {jumps}\n")
    assert await works(reach("far"))
    assert all(logged_in(server) for server in servers)


async def test_jumps_in_a_circle(ssh_world: SshWorld) -> None:
    ssh_world.config("Host a\n  ProxyJump b\nHost b\n  ProxyJump a\n")
    with pytest.raises(ConnectionRefusedForGood, match="circle"):
        await reach("a").connect()


async def test_target_behind_a_jump_is_down(ssh_world: SshWorld) -> None:
    jump = ssh_world.server()
    ssh_world.trust(jump)
    ssh_world.config(f"Host far\n  HostName 127.0.0.1\n  Port {free_port()}\n  ProxyJump root@127.0.0.1:{jump.port}\n")
    with pytest.raises(HostUnreachable, match=r"by way of 127\.0\.0\.1.*refused"):
        await reach("root@far").connect()


async def test_proxy_command_include_and_match(ssh_world: SshWorld) -> None:
    server = ssh_world.server()
    ssh_world.trust(server)
    relay = (
        "import os,socket,sys,threading;s=socket.create_connection((sys.argv[1],int(sys.argv[2])));"
        "threading.Thread(target=lambda:[os.write(1,d) for d in iter(lambda:s.recv(65536),b'')],daemon=True).start();"
        "[s.sendall(d) for d in iter(lambda:os.read(0,65536),b'')]"
    )
    (ssh_world.ssh / "relay.py").write_text(relay)
    (ssh_world.ssh / "more").write_text(
        f"Match originalhost far\n  Port {server.port}\n  User root\n"
        f"  ProxyCommand {python()} {ssh_world.ssh}/relay.py %h %p\n"
    )
    ssh_world.config("Host far\n  HostName 127.0.0.1\nInclude more\n")
    assert await works(reach("far"))
    (ssh_world.ssh / "more").write_text("Host far\n  ProxyCommand /no/such/program %h\n")
    with pytest.raises(ConnectionRefusedForGood, match="ProxyCommand cannot be started"):
        await reach("far").connect()


async def test_wrong_configuration_is_named_with_its_line(ssh_world: SshWorld) -> None:
    ssh_world.config("Host far\n  Port many\n")
    with pytest.raises(ConnectionRefusedForGood, match="line 2"):
        await reach("far").connect()


async def test_nothing_listens(ssh_home: Path) -> None:
    with pytest.raises(HostUnreachable, match="refused: nothing listens") as caught:
        await reach(f"ssh://root@127.0.0.1:{free_port()}").connect()
    assert not isinstance(caught.value, ConnectionRefusedForGood)


async def test_name_that_does_not_resolve(ssh_home: Path) -> None:
    with pytest.raises(HostUnreachable, match="does not resolve"):
        await reach("ssh://root@no-such-host.invalid").connect()


async def test_something_else_listens(ssh_home: Path) -> None:
    async def web(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n" + b"x" * 9000)
        writer.close()

    server = await asyncio.start_server(web, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(HostUnreachable, match=r"no SSH server|closed while"):
        await reach(f"ssh://root@127.0.0.1:{port}").connect()
    server.close()


async def test_no_answer_is_given_up_in_time(ssh_home: Path) -> None:
    """A listener whose backlog is full does not answer; one that accepts and says nothing does not let in."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(8)
        port = silent.getsockname()[1]
        with pytest.raises(HostUnreachable, match=r"did not let in within 0\.5 s"):
            await reach(f"ssh://root@127.0.0.1:{port}", limits=Limits(login=0.5)).connect()
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        port = full.getsockname()[1]
        with pytest.raises(HostUnreachable, match=r"no answer within 0\.5 s"):
            await reach(f"ssh://root@127.0.0.1:{port}", limits=Limits(connect=0.5)).connect()
        for one in waiting:
            one.close()


async def test_no_secret_is_logged(ssh_world: SshWorld, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    server = ssh_world.server()
    ssh_world.trust(server)
    key = keygen(tmp_path / "locked", passphrase="canary-passphrase")
    ssh_world.authorize(key)
    ssh_world.config(f"Host *\n  IdentityFile {key}\n")
    asyncssh.set_log_level("DEBUG")
    asyncssh.set_debug_level(3)
    try:
        with caplog.at_level("DEBUG"):
            assert await works(reach(server.url(), Answers("canary-passphrase")))
    finally:
        asyncssh.set_log_level("NOTSET")
        asyncssh.set_debug_level(1)
    assert caplog.text
    assert "canary" not in caplog.text
    assert os.environ.get("SSH_AUTH_SOCK") is None
