"""Who may drive a console over loopback? Whoever has the key, from a page of this server, and nobody else.

Loopback is no wall: every user of the machine can reach it, and so can every web page that is open in a browser on it.
A key in the path keeps other users out. It is no cookie, as cookies are sent to every port of a host. A page of another
site cannot know the key, and is refused all the same: by `Host`, which names that site when it has pointed its name at
127.0.0.1 (DNS rebinding), and by `Origin` and `Sec-Fetch-Site`, which a page cannot forge.
"""

import hmac
import ipaddress
import secrets
from collections.abc import Mapping
from typing import Literal
from urllib.parse import urlsplit

Purpose = Literal["page", "part", "socket", "download"]
"""What is asked for: the page itself, what it is made of, the line to a console, a file that a console hands out."""


def new_key() -> str:
    """A key that cannot be guessed; 256 bits, of characters that stand for themselves in an address."""
    return secrets.token_urlsafe(32)


def right_key(given: str, key: str) -> bool:
    """Compare in a time that says nothing about how much of it was right."""
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), key.encode())


def is_loopback(name: str) -> bool:
    """Whether a name or an address (`127.0.0.1`, `::1`, `[::1]`) is loopback; no resolver is asked."""
    if name.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(name.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False


def refusal(headers: Mapping[str, str], purpose: Purpose) -> str | None:
    """Why a request is not answered, in words; None when it is.

    Any port is right: behind `ssh -L 9000:localhost:7333` the browser speaks of port 9000.
    """
    host = headers.get("Host", "")
    name = _name(host)
    if name is None or not is_loopback(name):
        return f"the address names the host {host[:100]!a}, and only this machine's loopback is answered"
    origin = headers.get("Origin")
    if origin is None and purpose == "socket":
        return "a console is opened by its page only"
    if origin is not None and origin != f"http://{host}":
        return f"asked for by a page of {origin[:100]!a}"
    came_from = headers.get("Sec-Fetch-Site", "none")
    allowed = {"page": None, "download": ("same-origin", "none")}.get(purpose, ("same-origin",))
    if "Sec-Fetch-Site" in headers and allowed is not None and came_from not in allowed:
        return f"asked for by a page of another place ({came_from[:40]!a})"
    if headers.get("Sec-Fetch-Dest") in ("iframe", "frame", "embed", "object"):
        return "shown inside another page"
    return None


def _name(host: str) -> str | None:
    """The name in a `Host` header, without its port; None when it is none."""
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port
    except ValueError:
        return None
    if parts.netloc != host or "@" in host or parts.path or parts.query or parts.fragment:
        return None
    return parts.hostname


def headers(nonce: str, host: str) -> dict[str, str]:
    """What a browser is told about every answer: load nothing from elsewhere, be framed by nobody, keep nothing."""
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src 'self' 'nonce-{nonce}'",
            "style-src 'self' 'unsafe-inline'",  # the terminal writes its colours into style elements
            "font-src 'self'",
            "img-src 'self' data:",
            f"connect-src ws://{host}",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )
    return {
        "Content-Security-Policy": policy,
        "X-Frame-Options": "DENY",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cache-Control": "no-store",
    }
