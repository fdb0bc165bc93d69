"""Real OpenSSH servers for the tests: on loopback, with keys, users and login shells of their own.

Each server runs in a mount namespace where /etc/passwd has extra users, so that the machine itself stays as it is.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:" + os.environ.get("PATH", ""))
TESTS = Path(__file__).parent


def missing() -> str | None:
    """Why no server can be started here; None when one can."""
    if SSHD is None:
        return "no sshd here (apt-get install openssh-server)"
    if os.geteuid() != 0:
        return "sshd with users of its own needs root"
    if (
        shutil.which("unshare") is None
        or subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode != 0
    ):
        return "mount namespaces are not permitted here"
    return None


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def keygen(path: Path, *, passphrase: str = "", kind: str = "ed25519", pem: bool = False) -> Path:
    """A key pair made by ssh-keygen."""
    more = ["-m", "PEM"] if pem else []
    subprocess.run(
        ["ssh-keygen", "-q", "-t", kind, *more, "-N", passphrase, "-C", path.name, "-f", str(path)], check=True
    )
    return path


@dataclass
class Sshd:
    """One server. `users` maps a name to its login shell; all of them are uid 0 with `home`."""

    folder: Path
    home: Path
    authorized: Path
    users: dict[str, str] = field(default_factory=dict)
    options: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    prepare: str = "true"
    """Shell commands in the server's mount namespace before it starts."""
    sftp: str = "internal-sftp"
    netns: str | None = None
    address: str = "127.0.0.1"
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.host_key = keygen(self.folder / "host_key")

    @property
    def public_key(self) -> str:
        """Type and key, as in known_hosts."""
        return " ".join(self.host_key.with_name("host_key.pub").read_text().split()[:2])

    @property
    def known(self) -> str:
        """The line of known_hosts that trusts this server."""
        return f"[{self.address}]:{self.port} {self.public_key}\n"

    def url(self, user: str = "root") -> str:
        return f"ssh://{user}@{self.address}:{self.port}"

    def start(self) -> "Sshd":
        assert SSHD is not None
        words = " ".join(f'"{name}={value}"' for name, value in self.environment.items())
        config = [
            f"ListenAddress {self.address}:{self.port}",
            f"HostKey {self.host_key}",
            f"AuthorizedKeysFile {self.authorized}",
            f"PidFile {self.folder / 'sshd.pid'}",
            "UsePAM no",
            "StrictModes no",
            "PermitRootLogin yes",
            "UseDNS no",
            "PrintMotd no",
            "MaxStartups 100",
            *([f"SetEnv {words}"] if words else []),
            *self.options,
            *([] if any(line.startswith("PasswordAuth") for line in self.options) else ["PasswordAuthentication no"]),
            f"Subsystem sftp {self.sftp}",
        ]
        (self.folder / "sshd_config").write_text("\n".join(config) + "\n")
        root = [f"root:x:0:0:root:{self.home}:{self.users.get('root', '/bin/bash')}"]
        others = [line for line in Path("/etc/passwd").read_text().splitlines() if not line.startswith("root:")]
        extra = [f"{name}:x:0:0::{self.home}:{shell}" for name, shell in self.users.items() if name != "root"]
        (self.folder / "passwd").write_text("\n".join([*root, *others, *extra]) + "\n")
        shadow = [f"{name}:*:19000:0:99999:7:::" for name in ["root", "sshd", *self.users]]
        if not (self.folder / "shadow").exists():
            (self.folder / "shadow").write_text("\n".join(dict.fromkeys(shadow)) + "\n")
        script = (
            f"mount --bind {self.folder}/passwd /etc/passwd && mount --bind {self.folder}/shadow /etc/shadow && "
            f"mkdir -p /run/sshd && {self.prepare} && exec {SSHD} -D -e -f {self.folder}/sshd_config"
        )
        inside = ["ip", "netns", "exec", self.netns] if self.netns else []
        log = (self.folder / "sshd.log").open("ab")
        with log:
            self.process = subprocess.Popen(
                [*inside, "unshare", "-m", "sh", "-c", script], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise AssertionError(f"sshd did not start: {self.log()}")
            if f"listening on {self.address} port {self.port}" in self.log():
                return self
            time.sleep(0.01)
        raise AssertionError(f"sshd does not listen: {self.log()}")

    def log(self) -> str:
        return (self.folder / "sshd.log").read_text(errors="replace")

    def _listener(self) -> psutil.Process | None:
        if self.process is None:
            return None
        try:
            found = psutil.Process(self.process.pid)
            for process in [found, *found.children(recursive=True)]:
                if process.name() == "sshd":
                    return process
        except psutil.NoSuchProcess:
            pass
        return None

    def sessions(self) -> list[int]:
        """The processes that serve connections."""
        listener = self._listener()
        if listener is None:
            return []
        return [process.pid for process in listener.children(recursive=True) if process.name() == "sshd"]

    def signal_sessions(self, number: signal.Signals) -> int:
        """Send a signal to every session process; how many there were."""
        pids = self.sessions()
        for pid in pids:
            os.kill(pid, number)
        return len(pids)

    def commands(self) -> list[psutil.Process]:
        """What runs below the sessions: login shells, agents."""
        found = []
        for pid in self.sessions():
            try:
                found += [p for p in psutil.Process(pid).children(recursive=True) if p.name() != "sshd"]
            except psutil.NoSuchProcess:
                continue
        return found

    def _shells(self) -> list[int]:
        """What the sessions started, without what left them since."""
        below = {process.pid: process for process in self.commands()}
        found = []
        for pid, process in below.items():
            with suppress(psutil.NoSuchProcess, ProcessLookupError):
                if process.ppid() not in below or os.getsid(pid) == os.getsid(process.ppid()):
                    found.append(pid)
        return found

    def stop(self) -> None:
        """End the listener, every session, and its login shell, which would sleep on if it sleeps.

        What has a session of its own lives on, as it does where a real server ends.
        """
        if self.process is None:
            return
        pids = [*self.sessions(), *self._shells()]
        listener = self._listener()
        if listener is not None:
            listener.kill()
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.kill()
        self.process.wait(timeout=10)
        self.process = None


@dataclass
class SshWorld:
    """A user with a home, keys and configuration of their own, and servers to log in to."""

    folder: Path
    servers: list[Sshd] = field(default_factory=list)

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def ssh(self) -> Path:
        return self.home / ".ssh"

    @property
    def key(self) -> Path:
        return self.ssh / "id_ed25519"

    @property
    def own_known_hosts(self) -> Path:
        return self.folder / "config" / "known_hosts"

    def server(
        self,
        *,
        users: dict[str, str] | None = None,
        options: list[str] | None = None,
        environment: dict[str, str] | None = None,
        prepare: str = "true",
        sftp: str = "internal-sftp",
        netns: str | None = None,
        address: str = "127.0.0.1",
        start: bool = True,
    ) -> Sshd:
        """One more server, running."""
        number = len(self.servers)
        remote_home = self.folder / f"remote{number}"
        remote_home.mkdir()
        made = Sshd(
            folder=self.folder / f"sshd{number}",
            home=remote_home,
            authorized=self.folder / "authorized_keys",
            users=users or {},
            options=options or [],
            environment=environment or {},
            prepare=prepare,
            sftp=sftp,
            netns=netns,
            address=address,
        )
        self.servers.append(made)
        return made.start() if start else made

    def trust(self, *servers: Sshd) -> None:
        """Write the servers' keys into the user's own known_hosts."""
        with (self.ssh / "known_hosts").open("a") as file:
            file.writelines(server.known for server in servers)

    def config(self, text: str) -> None:
        """The user's ~/.ssh/config."""
        (self.ssh / "config").write_text(text)

    def authorize(self, key: Path) -> None:
        """Let a key in."""
        with (self.folder / "authorized_keys").open("a") as file:
            file.write(key.with_name(key.name + ".pub").read_text())


def make_world(folder: Path) -> SshWorld:
    """Homes and a first key, which every server lets in."""
    world = SshWorld(folder)
    world.ssh.mkdir(parents=True, mode=0o700)
    (folder / "config").mkdir(mode=0o700)
    world.authorize(keygen(world.key))
    return world


def python() -> str:
    """The interpreter that hosts are told to use."""
    return sys.executable
