"""Who is let in: keys, passphrases, agents, passwords; and is every refusal explained?"""

import re
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import asyncssh
import pytest
from ssh_person import Answers, logged_in, reach, said, works
from sshd_world import SshWorld, keygen

from eagle3ops.hosts.ssh import auth
from eagle3ops.hosts.ssh.errors import LoginRefused
from eagle3ops.hosts.transport import ConnectionRefusedForGood


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


async def test_too_many_keys(ssh_world: SshWorld, agent: Path, tmp_path: Path) -> None:
    server = ssh_world.server(options=["MaxAuthTries 2"])
    ssh_world.trust(server)
    for number in range(4):
        said("ssh-add", "-q", str(keygen(tmp_path / f"key{number}")))
    with pytest.raises(LoginRefused, match="IdentitiesOnly"):
        await reach(server.url()).connect()
    ssh_world.config(f"Host *\n  IdentitiesOnly yes\n  IdentityFile {ssh_world.key}\n")
    assert await works(reach(server.url()))


class Codes(asyncssh.SSHServer):
    """Asks for a password and then for a code; OpenSSH does that with PAM only, which needs a system of its own."""

    rounds: ClassVar[list[str]] = []

    def kbdint_auth_supported(self) -> bool:
        return True

    def get_kbdint_challenge(
        self, username: str, lang: str, submethods: str
    ) -> tuple[str, str, str, list[tuple[str, bool]]]:
        return "", "Two factors", "", [("Password: ", False), ("Code \x1b[31m: ", True)]

    def validate_kbdint_response(self, username: str, responses: Sequence[str]) -> bool:
        self.rounds.append(" ".join(responses))
        return list(responses) == ["hunter2", "123456"]


async def test_questions_of_the_server(ssh_home: Path) -> None:
    key = asyncssh.generate_private_key("ssh-ed25519")
    acceptor = await asyncssh.listen("127.0.0.1", 0, server_factory=Codes, server_host_keys=[key])
    port = acceptor.get_port()
    (ssh_home / ".ssh").mkdir()
    public_key = key.export_public_key("openssh").decode()
    (ssh_home / ".ssh" / "known_hosts").write_text(f"[127.0.0.1]:{port} {public_key}")
    try:
        person = Answers("hunter2", "123456")
        connection = await reach(f"ssh://me@127.0.0.1:{port}", person).connect()
        await connection.close()
        assert [question.split(" asks: ")[1] for question in person.asked] == [
            "Two factors Password:",
            "Two factors Code [31m:",
        ]
        with pytest.raises(LoginRefused):
            await reach(f"ssh://me@127.0.0.1:{port}", Answers(*["wrong"] * 20)).connect()
        with pytest.raises(LoginRefused, match="unanswered"):
            await reach(f"ssh://me@127.0.0.1:{port}").connect()
        assert Codes.rounds == ["hunter2 123456", *["wrong wrong"] * 3]
    finally:
        acceptor.close()
        await acceptor.wait_closed()


async def test_an_ssh_agent_that_hangs_is_left_out(ssh_world: SshWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes connections and answers nothing, as one behind a question that nobody sees."""
    server = ssh_world.server()
    ssh_world.trust(server)
    monkeypatch.setattr(auth, "AGENT_S", 0.3)
    # The path of a socket is short.
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as hangs:
        hangs.bind(f"{folder}/agent")
        hangs.listen()
        monkeypatch.setenv("SSH_AUTH_SOCK", f"{folder}/agent")
        assert await works(reach(server.url())), "the key file is enough"
        ssh_world.key.unlink()
        with pytest.raises(LoginRefused) as caught:
            await reach(server.url()).connect()
        assert f"ssh-agent at {folder}/agent: no answer within 0.3 s" in caught.value.what
