"""Where is a host? `ssh://user@host:port`, `user@host`, or a name that the user's SSH configuration knows."""

import re
from dataclasses import dataclass
from urllib.parse import unquote

from eagle3ops.errors import RequestError

_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}")
_IPV6 = re.compile(r"[0-9A-Fa-f:.]{2,45}(%[A-Za-z0-9_.-]{1,32})?")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+\\-]{0,127}")
_EXAMPLE = "for example ssh://root@gpu1.example.org:22, ssh://[2001:db8::1]:2222, or a Host of ~/.ssh/config"


@dataclass(frozen=True, slots=True)
class Address:
    """A place that SSH reaches. What is None comes from the SSH configuration."""

    host: str
    """A name, an alias of the SSH configuration, or an IP address without brackets."""
    user: str | None = None
    port: int | None = None

    def __str__(self) -> str:
        user = f"{self.user}@" if self.user else ""
        host = f"[{self.host}]" if ":" in self.host else self.host
        if not user and self.port is None and ":" not in self.host:
            return host
        return f"ssh://{user}{host}" + (f":{self.port}" if self.port is not None else "")


def is_url(text: str) -> bool:
    """Whether this is an address written out, not a name of hosts.yaml."""
    return text.lower().startswith("ssh://")


def parse_address(text: str) -> Address:
    """Read an address.

    Only characters that no shell and no `ProxyCommand` can take for anything else are let through.

    Raises:
        RequestError: it is not one; a password inside is not repeated in the message.
    """
    rest = text.strip()
    url = is_url(rest)
    rest = rest[len("ssh://") :] if url else rest
    if "://" in rest:
        raise RequestError(f"{_shown(text)}: hosts are reached over SSH only", remedy=_EXAMPLE)
    userinfo, at, rest = rest.rpartition("@")
    user: str | None = None
    if at:
        if ":" in userinfo:
            raise RequestError(
                f"the address of {_shown('...@' + rest)} holds a password; passwords do not belong in addresses, which "
                "are stored and logged",
                remedy="leave it out: it is asked for when it is needed; better, use a key and ssh-agent",
            )
        user = unquote(userinfo) if url else userinfo
        if not _USER.fullmatch(user):
            raise RequestError(f"{_shown(text)}: {_shown(user)} is not the name of a user", remedy=_EXAMPLE)
    if url and rest.endswith("/"):
        rest = rest[:-1]
    port: int | None = None
    bracketed = re.fullmatch(r"\[([^\]]*)\](?::(.*))?", rest)
    if bracketed:
        host, port_text = bracketed[1], bracketed[2]
        good = _IPV6.fullmatch(host) is not None and ":" in host
    elif rest.count(":") > 1:
        raise RequestError(f"{_shown(text)}: an IPv6 address stands in brackets", remedy=f"ssh://[{_shown(rest)}]:22")
    else:
        host, colon, given = rest.partition(":")
        port_text = given if colon else None
        good = _HOST.fullmatch(host) is not None
    if not good:
        raise RequestError(f"{_shown(text)}: {_shown(host)!r} is not the name of a host", remedy=_EXAMPLE)
    if port_text is not None:
        if not re.fullmatch(r"[0-9]{1,5}", port_text) or not 1 <= int(port_text) <= 65535:
            raise RequestError(f"{_shown(text)}: {_shown(port_text)!r} is not a port (1 to 65535)", remedy=_EXAMPLE)
        port = int(port_text)
    return Address(host, user, port)


def _shown(text: str) -> str:
    """For a message: short, and without what steers a terminal."""
    clean = "".join(character if character.isprintable() else "?" for character in text)
    return clean if len(clean) <= 80 else clean[:77] + "..."
