"""Does every command that opens a shell on a host end within its time, and say what it waited for and what came?"""

import fcntl
import json
import os
from argparse import Namespace
from functools import partial
from pathlib import Path

import psutil
import pytest
from sshd_world import Sshd, SshWorld, python

from eagle3ops.commands import hosts as commands
from eagle3ops.commands.doctor import doctor
from eagle3ops.errors import Eagle3opsError, ExitCode, HostUnreachable
from eagle3ops.hosts.address import parse_address
from eagle3ops.hosts.install import asking, steps
from eagle3ops.hosts.install import wheel as wheels
from eagle3ops.hosts.registry import Host, Registry
from eagle3ops.hosts.ssh import transport as ssh_transport
from eagle3ops.hosts.ssh.transport import Limits, SshTransport

IMPATIENT = Limits(shell=0.6)
NEVER_CAME = "did not come to run `sh` within 0.6 s; so far it has printed: one moment"


@pytest.fixture
def gpu(ssh_world: SshWorld, monkeypatch: pytest.MonkeyPatch) -> Sshd:
    """The host `gpu` of hosts.yaml, whose login shell has 0.6 s."""
    monkeypatch.setattr(ssh_transport, "Limits", partial(Limits, shell=0.6))
    monkeypatch.setattr(commands, "QUIET_S", 0.3)
    return _server(ssh_world)


def _server(world: SshWorld, **options: str) -> Sshd:
    server = world.server(**options)  # type: ignore[arg-type]
    world.trust(server)
    Registry().add(Host(name="gpu", address=parse_address(server.url()), python=python()))
    return server


def waits(server: Sshd) -> None:
    (server.home / ".bashrc").write_text("echo one moment; sleep 20\n")


def test_hosts_test(gpu: Sshd, capsys: pytest.CaptureFixture[str]) -> None:
    waits(gpu)
    code = commands.hosts(Namespace(hosts_command="test", name="gpu"), json=False)
    out, err = capsys.readouterr()
    assert code == ExitCode.UNREACHABLE
    assert "✓ login" in out
    assert NEVER_CAME in out
    assert "    -> a start-up file there" in out
    assert "waiting for the login shell of gpu, until it has run `sh` (at most 0.6 s)" in err


def test_doctor(gpu: Sshd, capsys: pytest.CaptureFixture[str]) -> None:
    waits(gpu)
    with pytest.raises(HostUnreachable) as caught:
        doctor(Namespace(doctor_host="gpu"), None, json=False)
    assert NEVER_CAME in caught.value.what
    assert caught.value.remedy
    assert "waiting for the login shell" in capsys.readouterr().err


def test_an_agent_that_is_stopped(
    gpu: Sshd, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It said hello, and answers nothing."""
    stops = gpu.home / "stops"
    # The shell between passes the hello on, and stops the agent behind it.
    stops.write_text(
        f'#!/bin/sh\ncase "$*" in *" agent"*) ;; *) exec {python()} "$@";; esac\n'
        f"{python()} -P -m eagle3ops agent --root {gpu.home} </dev/null | head -n 1; exec sleep 20\n"
    )
    stops.chmod(0o755)
    Registry().add(Host(name="gpu", address=parse_address(gpu.url()), python=str(stops)))
    monkeypatch.setattr(commands, "ANSWER_S", 0.3)
    code = commands.hosts(Namespace(hosts_command="test", name="gpu"), json=True)
    told = json.loads(capsys.readouterr().out)
    assert code == ExitCode.UNREACHABLE
    assert "did not answer within 0.3 s" in told["steps"][-1]["value"]


async def installs() -> Eagle3opsError:
    """What an installation on the host `gpu` ends with."""

    async def agree(_: str) -> bool:
        return True

    transport = SshTransport(Registry().find("gpu"), limits=IMPATIENT)
    with pytest.raises(Eagle3opsError) as caught:
        await steps.install(transport, tell=lambda _: None, confirm=agree)
    assert caught.value.remedy
    assert transport.waits_for == ""
    return caught.value


@pytest.fixture
def _any_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is sent is never installed here, so that it need not be built."""

    def build(folder: Path) -> Path:
        made = folder / "eagle3ops-0-py3-none-any.whl"
        made.write_bytes(os.urandom(1000))
        return made

    monkeypatch.setattr(wheels, "build", build)


@pytest.mark.usefixtures("_any_wheel")
async def test_install_looks_around(ssh_world: SshWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    server = _server(ssh_world)
    waits(server)
    assert NEVER_CAME in (await installs()).what
    # A Python that hangs is named.
    (server.home / ".bashrc").unlink()
    hangs = server.home / "hangs"
    hangs.write_text("#!/bin/sh\nsleep 20\n")
    hangs.chmod(0o755)
    Registry().add(Host(name="gpu", address=parse_address(server.url()), python=str(hangs)))
    monkeypatch.setattr(steps, "SURVEY_LIMIT_S", 0.7)
    assert f"took longer than 0.7 s; it came to: trying {hangs}" in (await installs()).what


@pytest.mark.usefixtures("_any_wheel")
async def test_install_and_a_shell_that_prints_for_ever(ssh_world: SshWorld) -> None:
    """Memory here is bounded, and so is the time."""
    server = _server(ssh_world)
    (server.home / ".bashrc").write_text("yes welcome\n")
    before = psutil.Process().memory_info().rss
    error = await installs()
    assert "looking around: more than 1048576 bytes came" in error.what
    assert "welcome welcome" in error.what
    assert psutil.Process().memory_info().rss - before < 64 << 20


@pytest.mark.usefixtures("_any_wheel")
async def test_install_builds(ssh_world: SshWorld) -> None:
    """The login shell is waited for at every step, not only at the first."""
    server = _server(ssh_world)
    (server.home / ".bashrc").write_text(
        "[ -e ~/once ] && { echo one moment; echo really >&2; sleep 20; }; touch ~/once\n"
    )
    error = await installs()
    assert f"{NEVER_CAME} really" in error.what


@pytest.mark.usefixtures("_any_wheel")
async def test_install_with_much_on_standard_error(ssh_world: SshWorld) -> None:
    """What nobody takes would hold up everything else: more than SSH's window of it comes first."""
    server = _server(ssh_world)
    (server.home / ".bashrc").write_text("head -c 6000000 /dev/zero | tr '\\0' 'x' >&2\n")
    base = server.home / ".local/share/eagle3ops"
    base.mkdir(parents=True)
    with (base / "install.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "another installation is going on" in (await installs()).what


@pytest.mark.usefixtures("_any_wheel")
async def test_install_sends(ssh_world: SshWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file transfer whose other side says nothing."""
    hangs = ssh_world.folder / "hangs"
    hangs.write_text("#!/bin/sh\nsleep 20\n")
    hangs.chmod(0o755)
    _server(ssh_world, sftp=str(hangs))
    monkeypatch.setattr(asking, "FILES_LIMIT_S", 0.3)
    error = await installs()
    assert "gpu: opening a file transfer had not ended after 0.3 s" in error.what
