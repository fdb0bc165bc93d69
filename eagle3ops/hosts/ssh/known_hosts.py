"""Is this the host it claims to be? Strict checking against known_hosts files, and one file that we add keys to."""

import binascii
import contextlib
import fnmatch
import hashlib
import hmac
import os
import re
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from eagle3ops.errors import Eagle3opsError, RequestError
from eagle3ops.runs.files import explain_os_error, sync_folder

if TYPE_CHECKING:
    import asyncssh

Marker = Literal["", "cert-authority", "revoked"]

MAX_FILE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Line:
    """One usable line of a known_hosts file."""

    file: Path
    number: int
    marker: Marker
    patterns: str
    key: "asyncssh.SSHKey"

    @property
    def place(self) -> str:
        return f"{self.file}, line {self.number}"

    def matches(self, name: str) -> bool:
        """Whether the line speaks of a host, named as in known_hosts: `host`, or `[host]:port`."""
        return match_patterns(self.patterns, name)


def match_patterns(patterns: str, name: str) -> bool:
    """Match the first field of a line: comma-separated names with * and ?, ! for exceptions, or one hashed name."""
    if patterns.startswith("|"):
        parts = patterns.split("|")
        if len(parts) != 4 or parts[1] != "1":
            return False
        try:
            salt, wanted = binascii.a2b_base64(parts[2]), binascii.a2b_base64(parts[3])
        except (binascii.Error, ValueError):
            return False
        return hmac.compare_digest(hmac.new(salt, name.lower().encode(), hashlib.sha1).digest(), wanted)
    found = False
    for pattern in patterns.lower().split(","):
        negated = pattern.startswith("!")
        if _glob(pattern[1:] if negated else pattern, name.lower()):
            if negated:
                return False
            found = True
    return found


def _glob(pattern: str, name: str) -> bool:
    """Only * and ? are special; brackets are those of `[host]:port`."""
    return fnmatch.fnmatchcase(name, pattern.replace("[", "[[]"))


def lookup_name(host: str, port: int) -> str:
    """How a host stands in known_hosts."""
    return host if port == 22 else f"[{host}]:{port}"


def fingerprint(key: "asyncssh.SSHKey") -> str:
    """`SHA256:...`, as `ssh-keygen -l` prints it."""
    return str(key.get_fingerprint("sha256"))


def describe(key: "asyncssh.SSHKey") -> str:
    """Type and fingerprint of a key."""
    return f"{key.get_algorithm()} {fingerprint(key)}"


@dataclass(frozen=True, slots=True)
class Finding:
    """What the files say of a key that a host showed."""

    state: Literal["trusted", "unknown", "changed", "revoked"]
    lines: tuple[Line, ...] = ()
    """trusted: where it stands; changed: the keys that are on record instead; revoked: where that is said."""


@dataclass(slots=True)
class KnownHosts:
    """The lines of several files, in order."""

    lines: list[Line] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What could not be read: for the message when a key is unknown."""

    def load(self, file: Path) -> None:
        """Add a file. One that is missing has no lines; one that cannot be read, and a bad line, leave a note."""
        self.files.append(file)
        try:
            if file.exists() and not file.is_file():
                if str(file) != os.devnull:
                    self.notes.append(f"{file} is not a file")
                return
            if file.stat().st_size > MAX_FILE_BYTES:
                self.notes.append(f"{file} is larger than {MAX_FILE_BYTES} bytes and was left out")
                return
            data = file.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            self.notes.append(f"{file} cannot be read: {error.strerror}")
            return
        self.parse(data, file)

    def parse(self, data: bytes, file: Path) -> None:
        """Add the lines of a file's content."""
        import asyncssh

        for number, raw in enumerate(data.decode("utf-8", errors="replace").split("\n"), start=1):
            text = raw.strip()
            if not text or text.startswith("#"):
                continue
            parts = text.split(None, 2 if text.startswith("@") else 1)
            marker = parts.pop(0)[1:] if text.startswith("@") else ""
            if len(parts) != 2 or marker not in ("", "cert-authority", "revoked"):
                self.notes.append(f"{file}, line {number} is not a line of known_hosts and was left out")
                continue
            try:
                key = asyncssh.import_public_key(parts[1])
            except (asyncssh.KeyImportError, ValueError):
                # A type of key that this side does not know is none that it could accept either.
                self.notes.append(f"{file}, line {number} holds no key that can be read and was left out")
                continue
            self.lines.append(Line(file, number, _marker(marker), parts[0], key))

    def about(self, names: Iterable[str], marker: Marker) -> list[Line]:
        """The lines of one kind that speak of any of the names."""
        wanted = list(names)
        return [line for line in self.lines if line.marker == marker and any(line.matches(name) for name in wanted)]

    def judge(self, names: Sequence[str], key: "asyncssh.SSHKey") -> Finding:
        """What the files say of a plain key.

        Args:
            names: how the host stands in known_hosts; a key that is on record under the first makes any other key a
                changed one, the others can only speak for a key (a name without its port).
            key: the key that the host showed.
        """
        revoked = [line for line in self.about(names, "revoked") if line.key == key]
        if revoked:
            return Finding("revoked", tuple(revoked))
        trusted = [line for line in self.about(names, "") if line.key == key]
        if trusted:
            return Finding("trusted", tuple(trusted))
        others = self.about(names[:1], "")
        return Finding("changed", tuple(others)) if others else Finding("unknown")


def _marker(text: str) -> Marker:
    return "revoked" if text == "revoked" else "cert-authority" if text == "cert-authority" else ""


def read_all(files: Iterable[Path]) -> KnownHosts:
    """The lines of these files; a file named twice counts once."""
    known = KnownHosts()
    for file in dict.fromkeys(files):
        known.load(file)
    return known


def same_fingerprint(given: str, key: "asyncssh.SSHKey") -> bool:
    """Whether a fingerprint that a person gave is that of `key`.

    Raises:
        RequestError: it is no SHA256 fingerprint.
    """
    text = given.strip()
    if not re.fullmatch(r"SHA256:[A-Za-z0-9+/]{43}=?", text):
        raise RequestError(
            f"{given[:80]!r} is not a SHA256 fingerprint",
            remedy="it reads SHA256: and 43 characters; on the host: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub",
        )
    return hmac.compare_digest(text.rstrip("=").encode(), fingerprint(key).rstrip("=").encode())


def append(file: Path, name: str, key: "asyncssh.SSHKey", comment: str) -> None:
    """Add one key to our own file: whole or not at all, readable by its owner only.

    Args:
        file: our own known_hosts.
        name: as `lookup_name` gives it.
        key: the key to trust from now on.
        comment: for people who read the file, such as the name in hosts.yaml.

    Raises:
        Eagle3opsError: the file cannot be written.
    """
    from eagle3ops.runs.starts import locked

    if re.search(r"[\s,*?!|#@]", name):
        raise Eagle3opsError(f"{name!r} cannot stand in {file}", remedy="use the host's plain name or address")
    public = key.export_public_key("openssh").decode().split()[:2]
    words = " ".join(re.sub(r"[^\w.@:\[\]-]+", " ", comment).split())
    line = f"{name} {' '.join(public)} {words} {time.strftime('%Y-%m-%d')}".encode()
    file = Path(os.path.realpath(file))
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with locked(file.with_name(f".{file.name}.lock"), str(file)):
            before = file.read_bytes() if file.exists() else b""
            if before and not before.endswith(b"\n"):
                before += b"\n"
            handle, partial = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
            try:
                with os.fdopen(handle, "wb") as out:
                    out.write(before + line + b"\n")
                    out.flush()
                    os.fsync(out.fileno())
                os.replace(partial, file)
            except OSError:
                with contextlib.suppress(OSError):
                    os.unlink(partial)
                raise
            sync_folder(file.parent)
    except OSError as error:
        raise explain_os_error(error, file) or error from error
