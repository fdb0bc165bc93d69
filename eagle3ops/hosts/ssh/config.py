"""What does the user's SSH configuration say about a host: name, port, keys, jumps, known_hosts files?

The files are read by asyncssh; here the answers are put together, the chain of jumps is laid out hop by hop (so that
every hop's key is checked by us), and what would switch the checking of host keys off is noticed.
"""

import getpass
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from eagle3ops.errors import RequestError
from eagle3ops.hosts.address import Address, parse_address
from eagle3ops.hosts.ssh.known_hosts import lookup_name
from eagle3ops.hosts.transport import ConnectionRefusedForGood
from eagle3ops.locations import expanded

if TYPE_CHECKING:
    from asyncssh.config import SSHClientConfig

MAX_HOPS = 8
DEFAULT_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa", "id_ed25519_sk", "id_ecdsa_sk")
SYSTEM_CONFIG = Path("/etc/ssh/ssh_config")
SYSTEM_KNOWN_HOSTS = (Path("/etc/ssh/ssh_known_hosts"), Path("/etc/ssh/ssh_known_hosts2"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One SSH server on the way, with everything that the configuration says about it."""

    asked: str
    """The name it was asked for by, which `Host` blocks match."""
    host: str
    port: int
    user: str
    names: tuple[str, ...]
    """How it stands in known_hosts; see `KnownHosts.judge`."""
    known_hosts: tuple[Path, ...]
    """The user's and the system's files, without our own."""
    unchecked: bool
    """The configuration names no file of the user (`UserKnownHostsFile none`): asyncssh alone would check nothing."""
    keys: tuple[Path, ...]
    keys_named: bool
    """The keys come from IdentityFile, not from the usual names."""
    only_these_keys: bool
    certificates: tuple[Path, ...]
    agent: str | None
    """Socket of the ssh-agent."""
    jump: str | None
    proxy_command: str | None
    host_key_algorithms: bool
    """The configuration says which algorithms to allow."""
    config: tuple[str, ...] = field(default=())

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.user}@{host}" + (f":{self.port}" if self.port != 22 else "")


def config_files() -> tuple[str, ...]:
    """The configuration files that are there and readable: the user's, then the system's."""
    candidates = [expanded("~/.ssh/config"), SYSTEM_CONFIG]
    return tuple(str(path) for path in candidates if path.is_file() and os.access(path, os.R_OK))


def resolve(address: Address) -> Endpoint:
    """Everything that is to know about one address.

    Raises:
        ConnectionRefusedForGood: the configuration is wrong, with file and line.
    """
    files = config_files()
    config = _load(address, files)

    def text(option: str) -> str | None:
        value = config.get(option)
        return value if isinstance(value, str) else None

    def many(option: str) -> list[str] | None:
        value = config.get(option)
        return [str(item) for item in value] if isinstance(value, list) else None

    host = (text("Hostname") or address.host).lower()
    port = address.port or _port(config.get("Port"), files)
    alias = text("HostKeyAlias")
    if alias:
        names: tuple[str, ...] = (alias.lower(),)
    else:
        names = tuple(dict.fromkeys((lookup_name(host, port), host)))
    user_files = many("UserKnownHostsFile")
    if user_files is None:
        user_files = ["~/.ssh/known_hosts", "~/.ssh/known_hosts2"]
    checked = [_path(file, config) for file in user_files if file != os.devnull]
    system_files = many("GlobalKnownHostsFile")
    system = list(SYSTEM_KNOWN_HOSTS) if system_files is None else [_path(file, config) for file in system_files]
    named = many("IdentityFile")
    keys = named if named is not None else [f"~/.ssh/{name}" for name in DEFAULT_KEYS]
    return Endpoint(
        asked=address.host,
        host=host,
        port=port,
        user=address.user or text("User") or getpass.getuser(),
        names=names,
        known_hosts=(*checked, *system),
        unchecked=not checked,
        keys=tuple(expanded(key) for key in keys),
        keys_named=named is not None,
        only_these_keys=bool(config.get("IdentitiesOnly")),
        certificates=tuple(expanded(file) for file in many("CertificateFile") or []),
        agent=_agent(config),
        jump=text("ProxyJump"),
        proxy_command=text("ProxyCommand"),
        host_key_algorithms=text("HostKeyAlgorithms") is not None,
        config=files,
    )


def chain(address: Address) -> list[Endpoint]:
    """The servers to go through, the host itself last. As with OpenSSH, only the first jump's own jumps count.

    Raises:
        ConnectionRefusedForGood: the configuration is wrong, or jumps in a circle.
    """
    hops = [resolve(address)]
    seen = {hops[0].asked}
    while hops[0].jump is not None:
        try:
            jumps = [resolve(parse_address(part.strip())) for part in hops[0].jump.split(",")]
        except RequestError as error:
            raise ConnectionRefusedForGood(
                f"ProxyJump of {hops[0].asked}: {error.what}", remedy=error.remedy
            ) from error
        if any(hop.asked in seen for hop in jumps) or len(hops) + len(jumps) > MAX_HOPS:
            raise ConnectionRefusedForGood(
                f"ProxyJump of {hops[0].asked} goes in a circle or through more than {MAX_HOPS} hosts",
                remedy="look at ~/.ssh/config: a jump host must not match a Host block that jumps through itself",
            )
        seen.update(hop.asked for hop in jumps)
        hops = [*jumps, *hops]
    return hops


def _load(address: Address, files: tuple[str, ...]) -> "SSHClientConfig":
    from asyncssh.config import ConfigParseError, SSHClientConfig

    local = getpass.getuser()
    user = address.user if address.user is not None else ()
    port = address.port if address.port is not None else ()
    try:
        config = SSHClientConfig.load(None, list(files), False, False, False, local, user, address.host, port)
        if config.has_match_final():
            config = SSHClientConfig.load(config, list(files), True, False, True, local, user, address.host, port)
    except ConfigParseError as error:
        raise ConnectionRefusedForGood(
            f"the SSH configuration cannot be used: {error}", remedy="mend that line"
        ) from error
    except (OSError, ValueError) as error:
        raise ConnectionRefusedForGood(
            f"the SSH configuration ({', '.join(files)}) cannot be read: {error}", remedy="mend or move the file"
        ) from error
    assert isinstance(config, SSHClientConfig)
    return config


def _port(value: object, files: tuple[str, ...]) -> int:
    """As OpenSSH, and unlike asyncssh, a number that no port has ends it: 22 in its place would be another server."""
    if not isinstance(value, int):
        return 22
    if not 1 <= value <= 65535:
        raise ConnectionRefusedForGood(
            f"the SSH configuration ({', '.join(files)}) says Port {value}, which is no port (1 to 65535)",
            remedy="mend that line",
        )
    return value


def _agent(config: "SSHClientConfig") -> str | None:
    value = config.get("IdentityAgent", ())
    if value is None:
        return None  # IdentityAgent none
    if not isinstance(value, str) or value == "SSH_AUTH_SOCK":
        return os.environ.get("SSH_AUTH_SOCK") or None
    if re.fullmatch(r"\$[A-Za-z_][A-Za-z0-9_]*", value):
        return os.environ.get(value[1:]) or None
    return str(expanded(value))


def _path(text: str, config: "SSHClientConfig") -> Path:
    """A known_hosts path with its tokens filled in; asyncssh leaves those as they are."""
    tokens: dict[str, str] = getattr(config, "_tokens", {})
    filled = re.sub(r"%(.)", lambda match: tokens.get(match[1], match[0]), text)
    filled = re.sub(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}", lambda match: os.environ.get(match[1], ""), filled)
    return expanded(filled)
