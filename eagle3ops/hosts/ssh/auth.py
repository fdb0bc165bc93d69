"""How does one log in to one server: agent, key files, passphrases, passwords; and is a person asked only when needed?

Questions are put between two connections, never while a server waits: no login time-out runs while somebody types. The
exception are the questions of a server itself (one-time codes), for which a second connection is more patient.
"""

import asyncio
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncssh

from eagle3ops.hosts.prompts import Prompts
from eagle3ops.hosts.ssh.bootstrap import clean
from eagle3ops.hosts.ssh.config import Endpoint
from eagle3ops.hosts.transport import ConnectionRefusedForGood

TRIES = 3
AGENT_S = 10.0
"""How long the ssh-agent may take to name its keys: one that hangs is left out, and said to be."""


class _LockedKey(asyncssh.SSHKeyPair):
    """A key file that is encrypted: offered by its public half, to learn whether the passphrase is worth asking for."""

    _key_type = "local"

    def __init__(self, public: asyncssh.SSHKey, path: Path, wanted: list[Path]) -> None:
        super().__init__(
            public.algorithm, public.algorithm, public.sig_algorithms, public.sig_algorithms, public.public_data, None
        )
        self._path = path
        self._wanted = wanted

    def sign(self, data: bytes) -> bytes:
        """The server would take this key."""
        self._wanted.append(self._path)
        raise asyncssh.KeyEncryptionError("no passphrase yet")


@dataclass(slots=True)
class Secrets:
    """What was unlocked or typed in; in memory only, so that a reconnect asks nothing twice."""

    keys: dict[Path, list[asyncssh.SSHKeyPair]] = field(default_factory=dict)
    passwords: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Offer:
    """The keys to offer in one attempt, and what is to be said of them if none is taken."""

    pairs: list[asyncssh.SSHKeyPair] = field(default_factory=list)
    tried: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    blind: list[Path] = field(default_factory=list)
    """Encrypted files without a readable public half."""
    locked: list[Path] = field(default_factory=list)
    """Encrypted files whose key the server would take; filled while logging in."""
    agent: asyncssh.SSHAgentClient | None = None

    def close(self) -> None:
        """Give the ssh-agent back."""
        if self.agent is not None:
            self.agent.close()
            self.agent = None


async def gather(endpoint: Endpoint, secrets: Secrets) -> Offer:
    """Collect the keys of the agent, then those of the files."""
    offer = Offer()
    # Every look at a file from a thread: a home on a network file system may keep it waiting.
    files = await asyncio.to_thread(lambda: [path for path in endpoint.keys if _is_there(path, endpoint, offer)])
    if endpoint.agent:
        await _from_agent(endpoint, files, offer)
    known = {pair.public_data for pair in offer.pairs}
    for path in files:
        pairs = secrets.keys.get(path)
        if pairs is None:
            pairs = await asyncio.to_thread(_from_file, path, endpoint, offer)
        fresh = [pair for pair in pairs if pair.public_data not in known]
        if fresh:
            offer.pairs.extend(fresh)
            offer.tried.append(str(path))
    return offer


def _is_there(path: Path, endpoint: Endpoint, offer: Offer) -> bool:
    try:
        found = path.stat()
    except OSError as error:
        if endpoint.keys_named:
            offer.skipped.append(f"{path}: {error.strerror}")
        return False
    if found.st_uid == os.getuid() and stat.S_IMODE(found.st_mode) & 0o077 and not _is_public(path):
        mode = stat.S_IMODE(found.st_mode)
        offer.skipped.append(f"{path}: others may read it (mode {mode:04o}); chmod 600 {path}")
        return False
    return True


def _is_public(path: Path) -> bool:
    """IdentityFile may name a public key, to pick one of the agent."""
    try:
        with path.open("rb") as file:
            return b"PRIVATE KEY" not in file.read(4096)
    except OSError:
        return False


async def _from_agent(endpoint: Endpoint, files: Sequence[Path], offer: Offer) -> None:
    assert endpoint.agent is not None
    try:
        async with asyncio.timeout(AGENT_S):
            offer.agent = agent = await asyncssh.connect_agent(endpoint.agent)
            pairs = list(await agent.get_keys())
    except TimeoutError:
        offer.skipped.append(f"ssh-agent at {endpoint.agent}: no answer within {AGENT_S:g} s")
        offer.close()
        return
    except (OSError, ValueError) as error:
        offer.skipped.append(f"ssh-agent at {endpoint.agent}: {error}")
        offer.close()
        return
    halves = await asyncio.to_thread(lambda: [_public_half(path) for path in files])
    if endpoint.only_these_keys:
        allowed = {key.public_data for key in halves if key is not None}
        pairs = [pair for pair in pairs if pair.key_public_data in allowed]
    else:
        named = [key.public_data for key in halves if endpoint.keys_named and key is not None]
        pairs.sort(key=lambda pair: pair.key_public_data not in named)  # keys that were named come first
    offer.pairs.extend(pairs)
    words = f"{len(pairs)} key{'s' if len(pairs) != 1 else ''}"
    offer.tried.append(f"ssh-agent ({words})")


def _public_half(path: Path) -> asyncssh.SSHKey | None:
    for file in (path.with_name(path.name + ".pub"), path):
        try:
            return asyncssh.read_public_key(file)
        except (OSError, asyncssh.KeyImportError, ValueError):
            continue
    return None


def _from_file(path: Path, endpoint: Endpoint, offer: Offer) -> list[asyncssh.SSHKeyPair]:
    certificates = [str(file) for file in endpoint.certificates if file.is_file()]
    try:
        return list(asyncssh.load_keypairs(str(path), None, certificates))
    except asyncssh.KeyImportError as error:
        if not _encrypted(error):
            if not _is_public(path):
                offer.skipped.append(f"{path}: {error}")
            return []
    except (OSError, ValueError) as error:
        offer.skipped.append(f"{path}: {error}")
        return []
    public = _public_half(path)
    if public is None:
        offer.blind.append(path)
        return []
    return [_LockedKey(public, path, offer.locked)]


def _encrypted(error: Exception) -> bool:
    return "passphrase" in str(error).lower()


async def unlock(path: Path, endpoint: Endpoint, secrets: Secrets, prompts: Prompts) -> None:
    """Ask for a passphrase, and keep the key in memory.

    Raises:
        ConnectionRefusedForGood: nobody can be asked, or three wrong ones; names the file.
    """
    certificates = [str(file) for file in endpoint.certificates if file.is_file()]
    wrong = ""
    for _ in range(TRIES):
        answer = await prompts.secret(f"{wrong}passphrase of {path}")
        if answer is None:
            raise ConnectionRefusedForGood(
                f"{endpoint}: the key {path} has a passphrase and nobody could be asked for it",
                remedy=f"put it into the ssh-agent: ssh-add {path}",
            )
        try:
            pairs = await asyncio.to_thread(asyncssh.load_keypairs, str(path), answer, certificates)
        except (asyncssh.KeyImportError, asyncssh.KeyEncryptionError) as error:
            if "bcrypt" in str(error):
                raise ConnectionRefusedForGood(
                    f"{endpoint}: the key {path} cannot be opened without the Python package bcrypt",
                    remedy=f"pip install bcrypt, or put the key into the ssh-agent: ssh-add {path}",
                ) from error
            wrong = "wrong; "
            continue
        secrets.keys[path] = list(pairs)
        return
    raise ConnectionRefusedForGood(
        f"{endpoint}: {TRIES} wrong passphrases for {path}", remedy=f"try it by hand: ssh-keygen -y -f {path}"
    )


class Login(asyncssh.SSHClient):
    """The client's side of one attempt: answers what it knows, and notes down what it was asked."""

    def __init__(self, endpoint: Endpoint, offer: Offer, secrets: Secrets, prompts: Prompts, *, patient: bool) -> None:
        self.endpoint = endpoint
        self.offer = offer
        self.pairs = list(offer.pairs)
        self.secrets = secrets
        self.prompts = prompts
        self.patient = patient
        self.shown_key: asyncssh.SSHKey | None = None
        self.made = asyncio.Event()
        self.connection: asyncssh.SSHClientConnection | None = None
        self.dialogs = 0
        self.password_used = False
        self.password_wanted = False
        self.dialog_wanted = False
        self.declined = False

    def connection_made(self, conn: asyncssh.SSHClientConnection) -> None:
        """The other side answers."""
        self.connection = conn
        self.made.set()

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        """Asked for keys that are not on record: never accepted here."""
        self.shown_key = key
        return False

    def public_key_auth_requested(self) -> Any:
        """The next key."""
        return [self.pairs.pop(0)] if self.pairs else None

    def password_auth_requested(self) -> str | None:
        """The password, once, if it is known."""
        return self._password()

    def kbdint_auth_requested(self) -> str | None:
        """Be ready for the server's questions; once, or three times when a person answers them."""
        self.dialogs += 1
        if self.offer.locked or self.dialogs > (TRIES if self.patient else 1):
            return None
        return ""

    async def kbdint_challenge_received(
        self, name: str, instructions: str, lang: str, prompts: Sequence[tuple[str, bool]]
    ) -> list[str] | None:
        """Answer the server's questions: the password when it is that, else by asking a person."""
        if not prompts:
            return []
        if len(prompts) == 1 and "password" in prompts[0][0].lower() and not self.patient:
            answer = self._password()
            return None if answer is None else [answer]
        if self.offer.locked:
            return None
        if not self.patient:
            self.dialog_wanted = True
            return None
        answers = []
        for question, _ in prompts:
            if "password" in question.lower() and str(self.endpoint) in self.secrets.passwords:
                answers.append(self.secrets.passwords[str(self.endpoint)])
                continue
            answer = await self.prompts.secret(f"{self.endpoint} asks: {clean(f'{instructions} {question}')[:200]}")
            if answer is None:
                self.declined = True
                return None
            answers.append(answer)
        return answers

    def _password(self) -> str | None:
        known = self.secrets.passwords.get(str(self.endpoint))
        if known is None:
            self.password_wanted = True
            return None
        if self.password_used:
            return None
        self.password_used = True
        return known
