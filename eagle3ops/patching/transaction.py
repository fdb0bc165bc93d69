"""How does a patch reach the disk whole, and how is it taken back exactly?

The journal (`patches/journal.jsonl` below the root) says what is meant before anything is replaced. Originals are kept
by their hash. Each file is replaced by a rename, so it is the old or the new one at every moment; a patch of several
files that was cut off is taken back by the next command that looks.
"""

import contextlib
import difflib
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from eagle3ops.eagle3.durable import sha256_of
from eagle3ops.errors import Eagle3opsError, RequestError
from eagle3ops.patching.edit import apply_edits
from eagle3ops.patching.recipe import Recipe
from eagle3ops.patching.trial import try_import
from eagle3ops.runs.files import explain_os_error, write_whole

Standing = Literal["applied", "drifted", "cut off"]
MOST_SOURCE = 32 << 20


@dataclass(frozen=True, slots=True)
class FileChange:
    """One file as it is and as it would be."""

    file: Path
    module: str
    before: bytes
    after: bytes

    @property
    def diff(self) -> str:
        """For people."""
        old, new = (text.decode("utf-8", "replace").splitlines(keepends=True) for text in (self.before, self.after))
        return "".join(difflib.unified_diff(old, new, str(self.file), f"{self.file} (patched)"))


@dataclass(frozen=True, slots=True)
class Applied:
    """A patch that the journal knows, and how it stands."""

    recipe: str
    site: str
    applied: float
    """Seconds since 1970."""
    files: tuple[tuple[str, str, str], ...]
    """File, hash of the original, hash of the patched one."""
    standing: Standing
    drifted: tuple[str, ...]
    """Files that are neither: an upgrade, or somebody's editor, replaced them."""
    version: str = ""
    """Of the engine, when it was patched."""
    under: str = ""
    """The patch that was applied over this one, to the same file, and has to be taken back first."""


@dataclass(frozen=True, slots=True)
class Deed:
    """One line of the journal: what was done to which source."""

    at: float
    """Seconds since 1970."""
    what: str
    """`applied`, `reverted`, `forgotten`, `failed`, `taken back`, or `prepared`: cut off, and not taken back yet."""
    recipe: str
    site: str
    version: str
    files: tuple[str, ...]


def plan(recipe: Recipe, site: Path) -> list[FileChange]:
    """What a recipe would change; empty where all of it is there already.

    Raises:
        RequestError: the package is not there.
        PatchError: the recipe does not fit.
    """
    if not (site / recipe.package).is_dir():
        raise RequestError(
            f"{site}: holds no package {recipe.package!r}", remedy="name the folder site-packages of the engine"
        )
    changes = []
    for each in recipe.files:
        file = site / each.path
        try:
            if file.stat().st_size > MOST_SOURCE:
                raise RequestError(f"{file}: far too large for a source file")
            before = file.read_bytes()
            text = before.decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise RequestError(
                f"{file}: cannot be read: {getattr(error, 'strerror', None) or error}",
                remedy="the recipe does not fit this version of the engine",
            ) from error
        edited = apply_edits(text, each.edits, str(each.path))
        if edited.fresh:
            changes.append(FileChange(file, each.module, before, edited.text.encode("utf-8")))
    return changes


class Journal:
    """What was patched, below one root."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "patches"
        self.file = self.folder / "journal.jsonl"
        self.originals = self.folder / "originals"

    @contextmanager
    def alone(self) -> Iterator[None]:
        """One change at a time; a patch that was cut off is taken back first.

        Raises:
            Eagle3opsError: the folder cannot be written.
        """
        try:
            self.originals.mkdir(parents=True, exist_ok=True, mode=0o700)
            with (self.folder / "lock").open("a+b") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                self._mend()
                yield
        except OSError as error:
            raise explain_os_error(error, self.folder) or Eagle3opsError(f"{self.folder}: {error}") from error

    def apply(
        self, recipe: Recipe, site: Path, python: Path, *, timeout_s: float = 600.0, version: str | None = None
    ) -> list[FileChange]:
        """Change the source; returns what was changed. The `version` of the engine is put down with it.

        Raises:
            PatchError: the recipe does not fit.
            TrialFailed: the result does not import.
            Eagle3opsError: a file cannot be written; then all are as they were.
        """
        with self.alone():
            changes = plan(recipe, site)
            if not changes:
                return []
            changed = {one.module: (one.file, one.after.decode("utf-8")) for one in changes}
            try_import(site, python, changed, timeout_s)
            entry = {
                "event": "prepared",
                "recipe": recipe.name,
                "site": str(site),
                **({"version": version} if version else {}),
                "files": [[str(one.file), self._keep(one.before), _digest(one.after)] for one in changes],
            }
            self._write(entry)
            try:
                for one in changes:
                    _replace(one.file, one.after)
            except OSError:
                for one in changes:
                    with contextlib.suppress(OSError):
                        _replace(one.file, one.before)
                self._write(entry | {"event": "failed"})
                raise
            self._write(entry | {"event": "applied"})
            return changes

    def revert(self, name: str, site: Path | None = None) -> list[str]:
        """Put the originals back, byte by byte; returns the files.

        Raises:
            RequestError: it is not applied, or a file is neither the patched nor the original one.
        """
        with self.alone():
            found = [one for one in self.standing() if one.recipe == name and site in (None, Path(one.site))]
            if not found:
                raise RequestError(f"{name} is not applied", remedy="eagle3ops patch status shows what is")
            if len(found) > 1:
                raise RequestError(f"{name} is applied in {len(found)} places", remedy="say which with --path")
            one = found[0]
            if one.under:
                raise RequestError(
                    f"{one.under} was applied over {name}, to the same file",
                    remedy=f"take that one back first: eagle3ops patch revert {one.under}",
                )
            if one.drifted:
                raise RequestError(
                    f"{', '.join(one.drifted)}: not what was patched: an upgrade or somebody's editor replaced it",
                    remedy="nothing is changed; install the engine again, then `eagle3ops patch forget`",
                )
            back = []
            for file, before, _ in one.files:
                _replace(Path(file), self._original(before))
                back.append(file)
            self._write({"event": "reverted", "recipe": name, "site": one.site, "files": [list(f) for f in one.files]})
            return back

    def forget(self, name: str) -> list[str]:
        """Take a patch out of the journal whose files an upgrade replaced; no file is touched; returns the files.

        Raises:
            RequestError: it is not applied, or its files are still the patched ones.
        """
        with self.alone():
            found = [one for one in self.standing() if one.recipe == name]
            if not found or not any(one.drifted for one in found):
                raise RequestError(f"{name}: nothing to forget", remedy="revert it: eagle3ops patch revert")
            for one in found:
                if one.drifted:
                    files = [list(each) for each in one.files]
                    self._write({"event": "forgotten", "recipe": name, "site": one.site, "files": files})
            return [file for one in found if one.drifted for file, _, _ in one.files]

    def standing(self) -> list[Applied]:
        """Every patch that is applied as far as the journal knows, and how its files stand now."""
        last: dict[tuple[str, str], dict[str, Any]] = {}
        for entry in self.entries():
            last[str(entry["recipe"]), str(entry["site"])] = entry
        found = [entry for entry in last.values() if entry["event"] in ("applied", "prepared")]
        return [self._stand(entry, [other for other in found if other is not entry]) for entry in found]

    def deeds(self) -> list[Deed]:
        """What was done, oldest first; what was only begun stands there where nothing tells how it ended."""
        found: list[Deed] = []
        for entry in self.entries():
            at, files = entry.get("at"), tuple(str(file) for file, _, _ in entry["files"])
            known = isinstance(at, int | float) and not isinstance(at, bool)
            deed = Deed(
                float(at) if known else 0.0,  # type: ignore[arg-type]
                entry["event"],
                entry["recipe"],
                entry["site"],
                _version(entry),
                files,
            )
            begun = next((n for n, one in enumerate(found) if one.what == "prepared" and _same(one, deed)), None)
            if begun is not None:
                found.pop(begun)
            found.append(deed)
        return found

    def entries(self) -> list[dict[str, Any]]:
        """The journal, oldest first; torn and foreign lines are passed over."""
        found = []
        with contextlib.suppress(FileNotFoundError):
            for line in self.file.read_bytes().splitlines():
                with contextlib.suppress(ValueError, RecursionError):
                    entry = json.loads(line)
                    if isinstance(entry, dict) and _whole(entry):
                        found.append(entry)
        return found

    def _stand(self, entry: dict[str, Any], others: list[dict[str, Any]]) -> Applied:
        drifted, count, under = [], 0, ""
        for file, before, after in entry["files"]:
            now = _digest_of(Path(file))
            over = _over(file, after, now, others)
            under = over or under
            count += now == after or over != ""
            if now not in (before, after) and not over:
                drifted.append(file)
        standing: Standing = "drifted" if drifted else "applied" if count == len(entry["files"]) else "cut off"
        files = tuple((str(a), str(b), str(c)) for a, b, c in entry["files"])
        at = entry.get("at")
        when = float(at) if isinstance(at, int | float) else 0.0
        version = _version(entry)
        return Applied(str(entry["recipe"]), str(entry["site"]), when, files, standing, tuple(drifted), version, under)

    def _mend(self) -> None:
        """Take back what was cut off: the journal says `prepared`, and no later word."""
        last: dict[tuple[str, str], dict[str, Any]] = {}
        for entry in self.entries():
            last[str(entry["recipe"]), str(entry["site"])] = entry
        for entry in last.values():
            if entry["event"] != "prepared":
                continue
            for file, before, after in entry["files"]:
                if _digest_of(Path(file)) == after:
                    _replace(Path(file), self._original(before))
            self._write(entry | {"event": "taken back"})

    def _keep(self, content: bytes) -> str:
        digest = _digest(content)
        kept = self.originals / digest
        if _digest_of(kept) != digest:
            _replace(kept, content)
        return digest

    def _original(self, digest: str) -> bytes:
        content = (self.originals / digest).read_bytes()
        if _digest(content) != digest:
            raise Eagle3opsError(
                f"{self.originals / digest}: is damaged",
                remedy="install the engine again: its source cannot be put back",
            )
        return content

    def _write(self, entry: dict[str, Any]) -> None:
        line = json.dumps({"at": round(time.time(), 3)} | {k: v for k, v in entry.items() if k != "at"})
        with self.file.open("ab") as file:
            # After a torn line a new one is begun, which makes the torn one a line that is passed over.
            begin = b"" if not file.tell() or self._ends_whole() else b"\n"
            file.write(begin + line.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def _ends_whole(self) -> bool:
        with self.file.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) == b"\n"


def _over(file: str, digest: str, now: str | None, others: list[dict[str, Any]]) -> str:
    """The topmost of the patches that lead, one over the other, from a file's patched state to what it is now."""
    steps = {before: (after, str(one["recipe"])) for one in others for f, before, after in one["files"] if f == file}
    top = ""
    while digest != now and digest in steps:
        digest, top = steps.pop(digest)
    return top if digest == now else ""


def _version(entry: dict[str, Any]) -> str:
    version = entry.get("version")
    return version[:80] if isinstance(version, str) else ""


def _same(one: Deed, other: Deed) -> bool:
    return (one.recipe, one.site) == (other.recipe, other.site)


def _whole(entry: dict[str, Any]) -> bool:
    files = entry.get("files")
    return (
        all(isinstance(entry.get(key), str) for key in ("event", "recipe", "site"))
        and isinstance(files, list)
        and all(isinstance(one, list) and len(one) == 3 and all(isinstance(x, str) for x in one) for one in files)
    )


def _replace(path: Path, content: bytes) -> None:
    """Replace a file by a rename, with the permissions it had; a link is followed to what it points to."""
    path = Path(os.path.realpath(path))
    mode = path.stat().st_mode & 0o7777 if path.exists() else 0o600
    write_whole(path, lambda fresh: fresh.write_bytes(content), mode=mode)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _digest_of(path: Path) -> str | None:
    try:
        return sha256_of(path)
    except OSError:
        return None
