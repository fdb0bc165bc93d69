"""Does a host get eagle3ops, keep the one it has when anything goes wrong, and say what stood in the way?

Real OpenSSH servers, real environments. The interpreter that the tests run in is the host's Python; what it has is
shared with the new environment, so that nothing has to be fetched.
"""

import asyncio
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from sshd_world import Sshd, SshWorld, python

from eagle3ops import __version__
from eagle3ops.errors import Eagle3opsError, HostUnreachable, RequestError
from eagle3ops.hosts.address import parse_address
from eagle3ops.hosts.install import steps as installing
from eagle3ops.hosts.install import wheel as wheels
from eagle3ops.hosts.install.steps import OWN_PYTHON, Installed, install, prove
from eagle3ops.hosts.registry import Host, Registry
from eagle3ops.hosts.ssh.transport import SshTransport


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this source tree."""
    return wheels.build(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(autouse=True)
def _one_wheel(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every installation of this file is of the same bytes, also while the source tree is being edited."""
    monkeypatch.setattr(wheels, "build", lambda folder: Path(shutil.copy(built, folder)))


def base_of(server: Sshd) -> Path:
    return server.home / ".local/share/eagle3ops"


def reach(server: Sshd, interpreter: str | None = None) -> SshTransport:
    """The host `gpu` of hosts.yaml."""
    Registry().add(Host(name="gpu", address=parse_address(server.url()), python=interpreter or python()))
    return SshTransport(Registry().find("gpu"))


class Told:
    """A person who agrees or not, and what they were told; `steps` are set when a line that begins so is told."""

    def __init__(self, *, agrees: bool = True) -> None:
        self.agrees = agrees
        self.lines: list[str] = []
        self.asked = ""
        self.steps: dict[str, asyncio.Event] = {}

    def tell(self, line: str) -> None:
        self.lines.append(line)
        for start, event in self.steps.items():
            if line.startswith(start):
                event.set()

    async def confirm(self, what: str) -> bool:
        self.asked = what
        return self.agrees

    async def installs(self, transport: SshTransport) -> Installed:
        return await install(transport, tell=self.tell, confirm=self.confirm)


async def refusal(transport: SshTransport) -> Eagle3opsError:
    with pytest.raises(Eagle3opsError) as caught:
        await Told().installs(transport)
    assert caught.value.remedy
    return caught.value


def works(folder: Path) -> bool:
    ran = subprocess.run([folder / "bin/python", "-P", "-m", "eagle3ops", "--version"], capture_output=True, text=True)
    return ran.stdout == f"eagle3ops {__version__}\n"


def processes_of(folder: Path) -> list[psutil.Process]:
    """What still runs for an installation into a folder."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if process.pid != os.getpid() and any(str(folder) in word for word in process.info["cmdline"] or ())
    ]


async def until(condition: object, seconds: float = 30.0) -> None:
    """Wait for a condition; the time only ends a hang."""
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        await asyncio.sleep(0.02)


@pytest.mark.slow
async def test_install_again_interrupted_and_changed(
    ssh_world: SshWorld, built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One host through its life: nothing, installed, the same again, killed half-way, damaged upload, changed."""
    server = ssh_world.server(users={"root": shutil.which("fish") or "/bin/sh"})
    ssh_world.trust(server)
    transport = reach(server)
    person = Told()
    done = await person.installs(transport)
    first = Path(done.folder)
    assert done.fresh
    assert os.readlink(base_of(server) / "env") == first.name
    assert "hosts.yaml   python of gpu becomes ~/.local/share/eagle3ops/env/bin/python" in person.asked
    assert Registry().find("gpu").python == OWN_PYTHON
    assert not list(base_of(server).glob("wheels/*/*.part"))
    await prove(transport)

    person = Told()
    done = await person.installs(transport)
    assert not done.fresh
    assert done.folder == str(first)
    assert person.lines == [], "nothing to send, nothing to build"

    # Another wheel of the same version: other content, another environment.
    changed = tmp_path / "changed" / built.name
    changed.parent.mkdir()
    shutil.copy(built, changed)
    _add_to_wheel(changed)
    monkeypatch.setattr(wheels, "build", lambda folder: Path(shutil.copy(changed, folder)))

    person = Told()
    begun = person.steps["installing eagle3ops"] = asyncio.Event()
    attempt = asyncio.create_task(person.installs(transport))
    await asyncio.wait({attempt, asyncio.create_task(begun.wait())}, return_when=asyncio.FIRST_COMPLETED)
    assert not attempt.done()
    assert server.signal_sessions(signal.SIGKILL)
    with pytest.raises(HostUnreachable, match="connection was lost"):
        await attempt
    await until(lambda: not processes_of(base_of(server)))
    assert os.readlink(base_of(server) / "env") == first.name
    assert works(base_of(server) / "env")
    leftover = [path for path in base_of(server).glob("env-*") if path != first]
    assert len(leftover) == 1

    # What lies there under the wheel's name is not what was sent.
    [arrived] = base_of(server).glob(f"wheels/{wheels.sha256_of(changed)}/*.whl")
    data = bytearray(arrived.read_bytes())
    data[len(data) // 2] ^= 1
    arrived.write_bytes(data)
    person = Told()
    done = await person.installs(transport)
    assert "the wheel arrived damaged; sending it once more" in person.lines
    assert "removing what an interrupted installation left behind" in person.lines
    assert done.folder == str(leftover[0])
    assert done.others == (first.name,)
    assert os.readlink(base_of(server) / "env") == leftover[0].name
    assert works(first), "runs may still use it"
    assert (leftover[0] / "lib").exists()
    await prove(transport)


def _add_to_wheel(path: Path) -> None:
    """Put one more file into a wheel, the way a changed source would."""
    import zipfile

    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist() if not name.endswith("RECORD")}
    info = next(name.partition("/")[0] for name in files if ".dist-info/" in name)
    files["eagle3ops/changed.py"] = b'"""Changed."""\n'
    wheels.pack(files, info, path)


async def test_behind_csh_with_noise(ssh_world: SshWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A login shell of another family, start-up files that print, and a wheel that arrives damaged twice."""
    server = ssh_world.server(users={"root": shutil.which("tcsh") or "/bin/sh"})
    ssh_world.trust(server)
    for name in (".cshrc", ".tcshrc", ".bashrc", ".profile"):
        (server.home / name).write_text('echo "Welcome; quota 12%"\n')
    monkeypatch.setattr(wheels, "sha256_of", lambda path: "0" * 64)
    error = await refusal(reach(server))
    assert "arrived damaged, twice" in error.what
    assert not (base_of(server) / "env").is_symlink()
    assert not list(base_of(server).glob("env-*"))
    assert not list(base_of(server).glob("wheels/*/*.whl")), "what is damaged does not stay"


async def test_nothing_happens_without_agreement(ssh_world: SshWorld) -> None:
    server = ssh_world.server()
    ssh_world.trust(server)
    person = Told(agrees=False)
    with pytest.raises(RequestError, match="nothing was changed"):
        await person.installs(reach(server))
    assert f"install eagle3ops {__version__} on gpu" in person.asked
    assert sys.executable in person.asked
    assert not list(base_of(server).glob("wheels/*"))
    assert Registry().find("gpu").python == python()


async def test_one_installation_at_a_time(ssh_world: SshWorld) -> None:
    server = ssh_world.server()
    ssh_world.trust(server)
    base_of(server).mkdir(parents=True)
    with (base_of(server) / "install.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        error = await refusal(reach(server))
    assert "another installation is going on" in error.what


async def test_a_file_where_a_folder_has_to_be(ssh_world: SshWorld) -> None:
    server = ssh_world.server()
    ssh_world.trust(server)
    (base_of(server) / "wheels").mkdir(parents=True)
    (base_of(server) / "wheels" / wheels.sha256_of(wheels.build(server.folder))).write_text("in the way")
    error = await refusal(reach(server))
    assert "could not be written" in error.what


async def test_no_file_transfer(ssh_world: SshWorld) -> None:
    server = ssh_world.server(start=False)
    config = server.folder / "sshd_config"
    server.start()
    listener = server._listener()
    assert listener is not None
    config.write_text(config.read_text().replace("Subsystem sftp internal-sftp", ""))
    listener.send_signal(signal.SIGHUP)
    await until(lambda: server.log().count("listening on") > 1)
    ssh_world.trust(server)
    error = await refusal(reach(server))
    assert "SFTP" in error.what
    assert "Subsystem sftp" in str(error.remedy)


@pytest.mark.parametrize(
    ("mount", "words"),
    [
        ("mount -t tmpfs -o ro none {home}", "cannot be written"),
        ("mount -t tmpfs -o size=64k none {home}; head -c 99999 /dev/zero >{home}/x 2>/dev/null; true", "is full"),
        ("mount -t tmpfs -o noexec none {home}", "noexec"),
        ("mount -t tmpfs -o size=20m none {home}", "are free in"),
    ],
    ids=["read-only", "full", "noexec", "small"],
)
async def test_homes_that_cannot_carry_it(ssh_world: SshWorld, mount: str, words: str) -> None:
    server = ssh_world.server(start=False)
    server.prepare = "{ " + mount.format(home=server.home) + "; }"
    server.start()
    ssh_world.trust(server)
    error = await refusal(reach(server))
    assert words in error.what
    assert "free some space" in str(error.remedy) or "link" in str(error.remedy)


HIDE = (
    'for p in /usr/bin/python3* /usr/local/bin/python3* /bin/python3*; do [ -f "$p" ] && '
    'mount --bind /dev/null "$(readlink -f "$p")"; done; true'
)


async def test_a_host_without_python(ssh_world: SshWorld) -> None:
    server = ssh_world.server(prepare="{ " + HIDE + "; }")
    ssh_world.trust(server)
    Registry().add(Host(name="gpu", address=parse_address(server.url())))
    error = await refusal(SshTransport(Registry().find("gpu")))
    assert "gpu has no Python" in error.what


@pytest.mark.parametrize(
    ("trick", "words", "remedy"),
    [
        ("sys.version_info = (3, 8, 10)", "Python 3.11 or newer is needed; found", "uv python install"),
        ("sys.modules['ensurepip'] = None", "cannot make environments", "apt install python3."),
        ("sys.exit(3)", "(does not run)", "install one there"),
        (None, "is not there or not executable", "mend python:"),
    ],
    ids=["old", "no-venv", "broken", "missing"],
)
async def test_pythons_that_will_not_do(
    ssh_world: SshWorld, tmp_path: Path, trick: str | None, words: str, remedy: str
) -> None:
    server = ssh_world.server()
    ssh_world.trust(server)
    fake = tmp_path / "my python"
    if trick is not None:
        fake.write_text(f'#!/bin/sh\nexec {sys.executable} -c "import sys; {trick}; exec(sys.argv[1])" "$2"\n')
        fake.chmod(0o755)
    error = await refusal(reach(server, str(fake)))
    assert words in error.what
    assert str(fake) in error.what
    assert remedy in str(error.remedy)


async def test_no_package_index(ssh_world: SshWorld) -> None:
    """A Python that has nothing to share, and an index that does not answer."""
    plain = Path(sys.base_prefix, "bin", "python3")
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "0", "PIP_CONFIG_FILE": "/dev/null"}
    server = ssh_world.server(environment=nowhere)
    ssh_world.trust(server)
    error = await refusal(reach(server, str(plain)))
    assert "index" in error.what or "found no" in error.what
    assert "package index" in str(error.remedy)
    assert not (base_of(server) / "env").is_symlink()


async def test_unknown_extra(ssh_home: Path) -> None:
    host = Host(name="gpu", address=parse_address("ssh://root@127.0.0.1:1"))
    with pytest.raises(RequestError, match="unknown extra 'trian'"):
        await install(SshTransport(host), extras=["trian"], tell=print, confirm=Told().confirm)


async def test_unreachable(ssh_world: SshWorld) -> None:
    server = ssh_world.server()
    ssh_world.trust(server)
    server.stop()
    with pytest.raises(HostUnreachable):
        await Told().installs(reach(server))


def test_only_messages_are_read() -> None:
    assert installing.read_message('eagle3ops-install:{"step": "x"}\n') == {"step": "x"}
    for noise in ("Welcome", "", "eagle3ops-install:", "eagle3ops-install:[1]", "eagle3ops-install:" + "[" * 100000):
        assert installing.read_message(noise) is None
