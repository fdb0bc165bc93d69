"""Is every way to a host taken as the SSH configuration says, and every dead end explained?"""

import asyncio
import os
import socket
from pathlib import Path

import asyncssh
import pytest
from ssh_person import Answers, logged_in, reach, works
from sshd_world import SshWorld, free_port, keygen, python

from eagle3ops.errors import HostUnreachable
from eagle3ops.hosts.ssh.errors import HostKeyUnknown
from eagle3ops.hosts.ssh.transport import Limits
from eagle3ops.hosts.ssh.trust import trust
from eagle3ops.hosts.transport import ConnectionRefusedForGood


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
