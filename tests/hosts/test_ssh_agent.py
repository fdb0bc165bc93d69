"""Does an agent come up behind any login shell, and is it said what is missing when it does not?"""

import asyncio
import os
import re
import shlex
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sshd_world import Sshd, SshWorld, python

from eagle3ops.errors import HostUnreachable, RequestError
from eagle3ops.hosts.address import parse_address
from eagle3ops.hosts.client import AgentClient, ConnectionLost
from eagle3ops.hosts.link import Link, Pace
from eagle3ops.hosts.registry import Host
from eagle3ops.hosts.ssh import bootstrap
from eagle3ops.hosts.ssh.transport import Limits, SshTransport
from eagle3ops.hosts.transport import ConnectionRefusedForGood

FAST = Pace(first=0.05, longest=0.2, look=0.1, answer=5.0)


def reach(
    server: Sshd,
    interpreter: str | None = None,
    *,
    root: str | None = None,
    user: str = "root",
    limits: Limits | None = None,
) -> SshTransport:
    host = Host(name="gpu", address=parse_address(server.url(user)), python=interpreter, root=root)
    return SshTransport(host, limits=limits)


def trusted(world: SshWorld, **options: object) -> Sshd:
    server = world.server(**options)  # type: ignore[arg-type]
    world.trust(server)
    return server


def shell(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed here")
    return found


@pytest.mark.parametrize("name", ["sh", "bash", "rbash", "dash", "zsh", "fish", "csh", "tcsh"])
async def test_any_login_shell(ssh_world: SshWorld, name: str) -> None:
    server = trusted(ssh_world, users={"someone": shell(name)})
    for file in (".bashrc", ".zshenv", ".cshrc", ".tcshrc", ".config/fish/config.fish"):
        path = server.home / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('echo "{ welcome }"\necho \'{"agent":"other"}\'\n')
    root = "~/it's a $HOME `folder`"
    async with await AgentClient.connect(reach(server, python(), root=root, user="someone")) as client:
        assert client.hello.root == f"{server.home}/it's a $HOME `folder`"
        assert (await client.call("ping"))["time"] > 0


async def test_banner_without_a_line_end(ssh_world: SshWorld) -> None:
    server = trusted(ssh_world)
    (server.home / ".bashrc").write_text("printf 'hello \\033[31m there'; echo more >&2\n")
    async with await AgentClient.connect(reach(server, python())) as client:
        assert (await client.call("ping"))["time"] > 0


async def test_own_environment_is_found(ssh_world: SshWorld) -> None:
    server = trusted(ssh_world, environment={"PATH": "/usr/bin:/bin"})
    environment = server.home / bootstrap.ENVIRONMENT / "bin"
    environment.mkdir(parents=True)
    (environment / "python").write_text(f'#!/bin/sh\nexec {python()} "$@"\n')
    (environment / "python").chmod(0o755)
    async with await AgentClient.connect(reach(server)) as client:
        assert client.hello.pid > 0


async def test_no_python(ssh_world: SshWorld) -> None:
    folder = ssh_world.folder / "bin"
    folder.mkdir()
    (folder / "sh").symlink_to("/bin/sh")
    server = trusted(ssh_world, environment={"PATH": str(folder)})
    with pytest.raises(ConnectionRefusedForGood, match=r"gpu has no Python") as caught:
        await AgentClient.connect(reach(server))
    assert "hosts install gpu" in str(caught.value)


async def test_python_that_is_too_old(ssh_world: SshWorld) -> None:
    folder = ssh_world.folder / "bin"
    folder.mkdir()
    (folder / "sh").symlink_to("/bin/sh")
    (folder / "python3").write_text('#!/bin/sh\ncase "$2" in *find_spec*) exit 10;; *) echo 3.8.10;; esac\n')
    (folder / "python3").chmod(0o755)
    server = trusted(ssh_world, environment={"PATH": str(folder)})
    with pytest.raises(ConnectionRefusedForGood, match=r"3\.11 or later is needed; found .*python3 \(3\.8\.10\)"):
        await AgentClient.connect(reach(server))


async def test_python_without_eagle3ops(ssh_world: SshWorld) -> None:
    server = trusted(ssh_world, environment={"PATH": "/usr/bin:/bin"})
    (server.home / ".bashrc").write_text("printf 'a banner without an end'\n")
    with pytest.raises(ConnectionRefusedForGood, match="eagle3ops is not") as caught:
        await AgentClient.connect(reach(server, "/usr/bin/python3"))
    assert "eagle3ops hosts install gpu" in str(caught.value)


async def test_eagle3ops_that_lacks_a_module(ssh_world: SshWorld) -> None:
    """An installation that lost a part is there for the probe, and dies when it starts."""
    server = trusted(ssh_world)
    broken = server.home / "broken"
    broken.write_text(
        f'#!/bin/sh\ncase "$*" in *" agent"*) echo "Traceback" >&2; '
        f'echo "ModuleNotFoundError: No module named \'platformdirs\'" >&2; exit 1;; esac\nexec {python()} "$@"\n'
    )
    broken.chmod(0o755)
    with pytest.raises(ConnectionRefusedForGood, match=r"No module named 'platformdirs'") as caught:
        await AgentClient.connect(reach(server, str(broken)))
    assert "eagle3ops hosts install gpu" in str(caught.value)


async def test_what_to_try_by_hand_works(ssh_world: SshWorld) -> None:
    """Also for a host that was given as a URL: the command is run as it stands."""
    server = trusted(ssh_world)
    (server.home / ".bashrc").write_text('[ "$once" ] || [ -e ~/good ] || { touch ~/good; exit 3; }\n')
    host = Host(name=server.url(), address=parse_address(server.url()), python=python())
    with pytest.raises(ConnectionRefusedForGood, match="exit code 3") as caught:
        await AgentClient.connect(SshTransport(host))
    found = re.search(r"look: (ssh .* sh -c true);", str(caught.value))
    assert found is not None, str(caught.value)
    command = found[1].replace(
        "ssh ", f"ssh -o BatchMode=yes -i {ssh_world.key} -F none -o UserKnownHostsFile={ssh_world.ssh}/known_hosts ", 1
    )
    process = await asyncio.create_subprocess_exec(*shlex.split(command), stdin=subprocess.DEVNULL)
    assert await process.wait() == 0, command


async def test_a_host_that_starts_no_agent_for_a_while(ssh_world: SshWorld) -> None:
    """Once there was an agent: start-up files that fail, a Python that is gone for now, end nothing."""
    server = trusted(ssh_world)
    interpreter, start_up = server.home / "python", server.home / ".bashrc"

    def install(path: str) -> None:
        interpreter.write_text(f'#!/bin/sh\nexec {path} "$@"\n')
        interpreter.chmod(0o755)

    install(python())
    async with Link(reach(server, str(interpreter)), pace=FAST) as link:
        await link.open()
        start_up.write_text("echo fork: Resource temporarily unavailable >&2; exit 254\n")
        server.signal_sessions(signal.SIGKILL)
        await link.wait_for(lambda state: state.kind == "waiting" and "code 254" in (state.why or ""))
        start_up.unlink()
        link.wake()
        await link.call("ping")
        interpreter.unlink()
        server.signal_sessions(signal.SIGKILL)
        await link.wait_for(lambda state: state.kind == "waiting" and "is not there" in (state.why or ""))
        install(python())
        link.wake()
        await link.call("ping")
        install("/usr/bin/python3")
        server.signal_sessions(signal.SIGKILL)
        state = await link.wait_for(lambda state: state.kind == "stopped")
        assert "eagle3ops is not" in (state.why or "")


async def test_a_frozen_agent_behind_a_living_server(ssh_world: SshWorld) -> None:
    server = trusted(ssh_world)
    pace = Pace(first=0.05, longest=0.2, look=0.05, quiet=0.3, answer=1.0)
    async with Link(reach(server, python()), pace=pace) as link:
        await link.open()
        assert link.hello is not None
        frozen = link.hello.pid
        os.kill(frozen, signal.SIGSTOP)
        try:
            await link.call("ping")
            assert link.connections == 2
        finally:
            os.kill(frozen, signal.SIGKILL)


async def test_configured_python_that_is_not_there(ssh_world: SshWorld) -> None:
    server = trusted(ssh_world)
    with pytest.raises(ConnectionRefusedForGood, match=r"/no/python, named by hosts\.yaml"):
        await AgentClient.connect(reach(server, "/no/python"))


async def test_home_folder_shadows_no_module(ssh_world: SshWorld) -> None:
    """`python -m` would import from the working folder, which is the home folder."""
    server = trusted(ssh_world)
    (server.home / "json.py").write_text("raise SystemExit('imported from home')\n")
    (server.home / "eagle3ops.py").write_text("raise SystemExit('imported from home')\n")
    async with await AgentClient.connect(reach(server, python())) as client:
        assert client.hello.pid > 0


@pytest.mark.parametrize(
    ("login", "words"),
    [
        ("/usr/sbin/nologin", "may not log in"),
        ("/bin/false", "ended with exit code 1"),
        ("/bin/true", "ended with exit code 0"),
    ],
)
async def test_shell_that_ends_at_once(ssh_world: SshWorld, login: str, words: str) -> None:
    server = trusted(ssh_world, users={"nobody2": login})
    with pytest.raises(ConnectionRefusedForGood, match=words):
        await AgentClient.connect(reach(server, python(), user="nobody2"))


async def test_words_of_a_host_steer_no_terminal(ssh_world: SshWorld) -> None:
    server = trusted(ssh_world)
    (server.home / ".bashrc").write_text("printf '\\033[2J\\033]0;title\\007 quota\\nexceeded' >&2; exit 3\n")
    with pytest.raises(ConnectionRefusedForGood, match="exit code 3") as caught:
        await AgentClient.connect(reach(server, python()))
    assert "quota exceeded" in caught.value.what
    assert caught.value.what.isprintable()


async def test_no_sh(ssh_world: SshWorld) -> None:
    server = trusted(ssh_world, environment={"PATH": "/nonexistent"})
    with pytest.raises(ConnectionRefusedForGood, match="no sh on the PATH"):
        await AgentClient.connect(reach(server))


@pytest.mark.parametrize(
    ("start_up", "printed"),
    [
        ("echo one moment; sleep 20", "so far it has printed: one moment"),
        ("echo loading modules >&2; sleep 20", "so far it has printed: loading modules"),
        ("sleep 20", "it has printed nothing"),
        ("printf 'Terminal type? '; read answer", "so far it has printed: Terminal type?"),
        ("cat; sleep 20", "the script that was sent to sh"),
    ],
)
async def test_login_shell_that_waits(ssh_world: SshWorld, start_up: str, printed: str) -> None:
    """Within its time it is said what was waited for, what came until then, and what to do."""
    server = trusted(ssh_world)
    (server.home / ".bashrc").write_text(f"{start_up}\n")
    with pytest.raises(HostUnreachable, match=r"did not come to run `sh` within 0\.5 s") as caught:
        await AgentClient.connect(reach(server, python(), limits=Limits(shell=0.5)))
    assert printed in caught.value.what
    assert caught.value.what.isprintable()
    assert f"ssh -p {server.port} root@127.0.0.1 sh -c true" in (caught.value.remedy or "")
    # A link goes on trying: it may pass.
    assert not isinstance(caught.value, ConnectionRefusedForGood)


async def test_a_profile_that_waits(ssh_world: SshWorld) -> None:
    """Where a login shell is forced, .profile is read as well."""
    login = ssh_world.folder / "login"
    login.write_text('#!/bin/sh\nshift\nexec sh -lc "$1"\n')
    login.chmod(0o755)
    server = trusted(ssh_world, users={"someone": str(login)})
    (server.home / ".profile").write_text("echo checking the licence; sleep 20\n")
    with pytest.raises(HostUnreachable, match=r"within 0\.5 s; so far it has printed: checking the licence"):
        await AgentClient.connect(reach(server, python(), user="someone", limits=Limits(shell=0.5)))


async def test_slow_start_up_files_have_time(ssh_world: SshWorld) -> None:
    """Once the shell has run `sh`, it is the agent that is waited for."""
    server = trusted(ssh_world)
    slow = server.home / "slow"
    slow.write_text(f'#!/bin/sh\nsleep 1.2\nexec {python()} "$@"\n')
    slow.chmod(0o755)
    async with await AgentClient.connect(reach(server, str(slow), limits=Limits(shell=1.0))) as client:
        assert client.hello.pid > 0


async def test_python_that_hangs(ssh_world: SshWorld) -> None:
    """A dead mount behind the interpreter is no login shell that waits."""
    server = trusted(ssh_world)
    hangs = server.home / "hangs"
    hangs.write_text("#!/bin/sh\nsleep 20\n")
    hangs.chmod(0o755)
    (server.home / ".bashrc").write_text("printf 'a banner'\n")
    with pytest.raises(HostUnreachable, match=r"ran `sh`, but no agent answered within 0\.8 s") as caught:
        await AgentClient.connect(reach(server, str(hangs), limits=Limits(shell=30.0, start=0.8)))
    assert f"it was trying {hangs}; so far it has printed: a banner" in caught.value.what
    assert f"{hangs} --version" in (caught.value.remedy or "")


async def test_a_shell_that_reads_ends_with_the_connection(ssh_world: SshWorld) -> None:
    """What waits for input gets its end: nothing is left on the host."""
    server = trusted(ssh_world)
    (server.home / ".bashrc").write_text("read answer\n")
    with pytest.raises(HostUnreachable):
        await AgentClient.connect(reach(server, python(), limits=Limits(shell=0.5)))
    async with asyncio.timeout(20):
        while server.commands() or server.sessions():  # noqa: ASYNC110  (another process, which tells nobody)
            await asyncio.sleep(0.02)


async def test_forced_command(ssh_world: SshWorld) -> None:
    server = trusted(ssh_world, options=["ForceCommand internal-sftp"])
    with pytest.raises(HostUnreachable, match="gpu: "):
        await AgentClient.connect(reach(server, python(), limits=Limits(start=3)))


@pytest.mark.parametrize(
    ("mount", "words"),
    [("size=64k", "no space left on the disk"), ("size=64k,ro", "the file system is read-only")],
)
async def test_home_folder_that_takes_nothing_is_explained(ssh_world: SshWorld, mount: str, words: str) -> None:
    """The agent comes up; what it cannot write it says."""
    home = ssh_world.folder / "remote0"
    fill = f"mount -t tmpfs -o {mount} tmpfs {home} && (cat /dev/zero > {home}/full || true) 2>/dev/null"
    server = trusted(ssh_world, prepare=fill, environment={"EAGLE3OPS_JOBS": "toy_jobs", "PYTHONPATH": toys()})
    async with await AgentClient.connect(reach(server, python(), root="~/runs")) as client:
        spec = "schema: 1\nname: toy\ntarget: {model: none}\n"
        with pytest.raises(Exception, match=words) as caught:
            await client.call("runs.place", job="pipeline", spec_text=spec, source="toy.yaml", key="k")
        assert "remote0" in str(caught.value)
        assert (await client.call("ping"))["time"] > 0


def toys() -> str:
    return str(Path(__file__).parents[1] / "runs")


async def test_killed_agent_session_and_server(ssh_world: SshWorld) -> None:
    """Each way of losing the agent is a lost connection, and a link comes back from each."""
    server = trusted(ssh_world)
    async with Link(reach(server, python()), pace=FAST) as link:
        await link.open()
        assert link.hello is not None
        os.kill(link.hello.pid, signal.SIGKILL)
        await link.call("ping")
        assert link.connections == 2
        assert server.signal_sessions(signal.SIGKILL) > 0
        await link.call("ping")
        assert link.connections == 3
        server.stop()
        state = await link.wait_for(lambda state: state.kind == "waiting" and "refused" in (state.why or ""))
        assert state.wait_s <= FAST.longest
        server.start()
        link.wake()
        await link.call("ping")
        assert link.connections == 4


async def test_session_that_dies_while_a_call_waits(ssh_world: SshWorld) -> None:
    server = trusted(ssh_world)
    client = await AgentClient.connect(reach(server, python()))
    os.kill(client.hello.pid, signal.SIGSTOP)
    call = asyncio.create_task(client.call("ping"))
    await asyncio.sleep(0.1)
    server.signal_sessions(signal.SIGKILL)
    with pytest.raises(ConnectionLost):
        await call
    os.kill(client.hello.pid, signal.SIGKILL)
    await client.close()


async def test_frozen_connection_is_noticed_by_keepalive(ssh_world: SshWorld) -> None:
    server = trusted(ssh_world)
    limits = Limits(keepalive=0.2, keepalive_misses=3, login=2.0)
    async with Link(reach(server, python(), limits=limits), pace=FAST) as link:
        await link.open()
        frozen = server.sessions()
        server.signal_sessions(signal.SIGSTOP)
        state = await link.wait_for(lambda state: state.kind == "waiting")
        assert state.why is not None
        await link.call("ping")
        assert link.connections == 2
        for pid in frozen:
            os.kill(pid, signal.SIGKILL)


async def test_closing_ends_the_agent(ssh_world: SshWorld) -> None:
    server = trusted(ssh_world)
    client = await AgentClient.connect(reach(server, python()))
    agent = next(process for process in server.commands() if process.pid == client.hello.pid)
    await client.close()
    agent.wait(timeout=20)


def test_quoting_survives_sh(tmp_path: Path) -> None:
    word = 'it\'s "a" $HOME `x` \\ ; & | * ? ~ ü é'
    out = subprocess.run(["sh"], input=f"printf %s {bootstrap.quote(word)}".encode(), capture_output=True, check=True)
    assert out.stdout.decode() == word


@given(st.text(max_size=40))
def test_quoting_any_text(text: str) -> None:
    if any(character in text for character in "\0\n\r"):
        with pytest.raises(RequestError):
            bootstrap.quote(text)
        return
    assert bootstrap.script(f"/{text}", f"/{text}").count(b"\n") == 1


@given(st.text(max_size=60), st.text(max_size=60), st.text(max_size=60), st.booleans())
def test_every_silence_is_explained(banner: str, path: str, errors: str, begun: bool) -> None:
    mark = f'{bootstrap.BEGUN}"}}\n{bootstrap.BEGUN}{path}"}}\n' if begun else ""
    printed = f"{banner}\n{mark}"
    assert bootstrap.has_begun(printed) or not begun
    for explain in (bootstrap.explain_waiting_shell, bootstrap.explain_silent_agent):
        absent = explain("gpu", printed, errors, 30.0)
        assert absent.what.startswith("gpu: logged in")
        assert absent.what.isprintable()
        assert absent.remedy.isprintable()


def test_an_echo_of_the_script_has_not_begun() -> None:
    echoed = bootstrap.script(python()).decode()
    assert not bootstrap.has_begun(echoed)
    ran = subprocess.run(["sh"], input=echoed, capture_output=True, text=True, cwd="/")
    assert bootstrap.has_begun(ran.stdout)
    assert bootstrap.parse_tried(ran.stdout) == python()


@given(st.binary(max_size=200))
def test_any_line_is_a_failure_or_none(line: bytes) -> None:
    for data in (line, bootstrap.FAILED + line):
        found = bootstrap.parse_failure(data)
        if found is not None:
            assert bootstrap.explain_failure(found, "gpu", None).what.startswith("gpu")


@given(st.text(max_size=100), st.none() | st.integers(0, 255), st.none() | st.just("KILL"), st.text(max_size=100))
def test_every_end_is_explained(found: str, status: int | None, ended_by: str | None, words: str) -> None:
    for absent in (
        bootstrap.explain_failure(found, "gpu", None),
        bootstrap.explain_exit("gpu", status, ended_by, words),
    ):
        assert absent.what.startswith("gpu")
        assert absent.remedy
        assert absent.what.isprintable()
