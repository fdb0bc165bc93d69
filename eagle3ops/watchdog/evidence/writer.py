"""How does evidence reach the disk without a secret in it, readable for its owner only, and never too much of it?"""

import contextlib
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from eagle3ops.runs.redact import GONE, Secrets, redact, redact_data

FILE_BYTES = 16 << 20
"""One file at most."""
ALL_BYTES = 64 << 20
"""All files of one dossier at most."""
_END_OF_KEY = re.compile(r"\A(?P<rest>(?:(?!-----BEGIN ).)*?)(?=-----END [A-Z0-9 ]*PRIVATE KEY-----)", re.DOTALL)
_KEY_LINE = re.compile(r"[A-Za-z0-9+/=\\]{16,}")


class Writer:
    """Writes the files of one dossier. Whatever goes through it is redacted.

    Args:
        folder: is made when it is not there.
        secrets: values known to be secret, wherever they appear (see `redact.secret_values`).

    Raises:
        OSError: the folder cannot be made.
    """

    def __init__(self, folder: Path, secrets: Iterable[str] = ()) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder = folder
        self.files: list[str] = []
        self._left = ALL_BYTES
        self.secrets = Secrets(secrets)

    def clean(self, text: str) -> str:
        """The text without secrets."""
        return redact(self.secrets.mask(_without_cut_key(text)))

    def clean_data(self, data: Any) -> Any:
        """What JSON can hold, without secrets."""
        return redact_data(self._known_out(data))

    def _known_out(self, data: Any) -> Any:
        if isinstance(data, str):
            return self.secrets.mask(_without_cut_key(data))
        if isinstance(data, dict):
            return {self.secrets.mask(str(key)): self._known_out(value) for key, value in data.items()}
        if isinstance(data, list | tuple):
            return [self._known_out(value) for value in data]
        return data

    def text(self, name: str, text: str) -> str | None:
        """Write a text; its end is left out where it is too long.

        Returns: None, or why it could not be written.
        """
        return self._write(name, self.clean(text))

    def json(self, name: str, data: Any) -> str | None:
        """Write an object, indented. Returns as `text`."""
        clean = self.clean_data(data)
        text = json.dumps(clean, indent=1, ensure_ascii=False, default=str) + "\n"
        if len(text) > FILE_BYTES:
            # Half an object is none: without indentation it may fit, else it is left out by name.
            text = json.dumps(clean, ensure_ascii=False, default=str) + "\n"
        if len(text) > FILE_BYTES:
            return f"{len(text)} bytes, more than the {FILE_BYTES} that one file may have"
        return self._write(name, text)

    def _write(self, name: str, text: str) -> str | None:
        data = text.encode("utf-8", "replace")
        limit = min(FILE_BYTES, self._left)
        if len(data) > limit:
            data = data[: max(0, limit - 100)] + b"\n[the rest was left out: too long]\n"
        path = self.folder / name
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
            # A new file each time: never through a link that somebody put there, never with another one's rights.
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(handle, "wb") as file:
                file.write(data)
        except OSError as error:
            return f"cannot be written: {error.strerror or error}"
        self._left -= len(data)
        if name not in self.files:
            self.files.append(name)
        return None


def _without_cut_key(text: str) -> str:
    """The tail of a log may begin in the middle of a private key, with nothing that says so before its end."""
    if "PRIVATE KEY-----" not in text:
        return text
    return _END_OF_KEY.sub(_key_out, text, count=1)


def _key_out(found: re.Match[str]) -> str:
    lines = found["rest"].split("\n")
    # The last line before the end is the shortest one, and always part of the key.
    last = max((number for number, line in enumerate(lines) if line.strip()), default=-1)
    return "\n".join(GONE if number == last else _KEY_LINE.sub(GONE, line) for number, line in enumerate(lines))
