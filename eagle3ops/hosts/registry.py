"""Which hosts does this user know, and how is each reached? `hosts.yaml` in the user's configuration folder."""

import contextlib
import difflib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from eagle3ops.errors import RequestError, SpecError
from eagle3ops.hosts.address import Address, is_url, parse_address
from eagle3ops.locations import config_folder as config_folder
from eagle3ops.runs.files import explain_os_error, write_atomic
from eagle3ops.spec.load import spec_error
from eagle3ops.spec.yamltree import Tree, dotted, read_tree

LOCAL = "local"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,62}")


def own_known_hosts() -> Path:
    """The file of host keys that were trusted through eagle3ops."""
    return config_folder() / "known_hosts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One host of hosts.yaml."""

    name: str
    address: Address
    python: str | None = None
    """Interpreter on the host; None looks in the usual places."""
    root: str | None = None
    """Root of runs on the host; None is the host's usual one."""


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid")

    address: str
    python: str | None = None
    root: str | None = None


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    version: Literal[1] = Field(alias="schema")
    hosts: dict[str, _Entry] = Field(default_factory=dict)


def check_name(name: str) -> str:
    """Refuse what cannot be the name of a host.

    Raises:
        RequestError: with what is allowed.
    """
    if name == LOCAL:
        raise RequestError("the name 'local' stands for this machine", remedy="choose another name")
    if not _NAME.fullmatch(name):
        raise RequestError(
            f"{name[:80]!r} is not a name for a host",
            remedy="a letter, then letters, digits, - and _ (at most 63 characters)",
        )
    return name


def check_remote_path(path: str | None, what: str) -> str | None:
    """Refuse a path on the host that cannot be sent to it safely.

    Raises:
        RequestError: not absolute, nor below the home folder, or with control characters.
    """
    if path is None:
        return None
    if not path or any(ord(character) < 32 or ord(character) == 127 for character in path):
        raise RequestError(f"{what} {path!r}: empty, or with a control character in it", remedy="give a plain path")
    if not path.startswith(("/", "~/")):
        raise RequestError(f"{what} {path!r}: not an absolute path", remedy="begin with / or ~/")
    return path


class Registry:
    """hosts.yaml, read afresh at every question."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or config_folder() / "hosts.yaml"

    def hosts(self) -> dict[str, Host]:
        """Every host by its name; none when there is no file.

        Raises:
            SpecError: the file is wrong, with line and column.
        """
        return _parse(self._read(), str(self.path))[0]

    def find(self, name: str) -> Host:
        """One host.

        Raises:
            RequestError: there is no such host; says which there are and how to add one.
        """
        hosts = self.hosts()
        if name in hosts:
            return hosts[name]
        near = difflib.get_close_matches(name, [LOCAL, *hosts], n=1)
        known = ", ".join([LOCAL, *sorted(hosts)])
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise RequestError(
            f"unknown host {name[:80]!r}; known: {known}",
            remedy=f"{hint}add it: eagle3ops hosts add NAME ssh://user@host:port, or give ssh://user@host:port itself",
        )

    def add(self, host: Host) -> bool:
        """Add a host, or give one of that name its new address; True when it is new. Other entries stay as they are."""
        check_name(host.name)
        check_remote_path(host.python, "python")
        check_remote_path(host.root, "root")
        entry = {"address": str(host.address)}
        entry |= {key: value for key, value in (("python", host.python), ("root", host.root)) if value is not None}
        with self._locked():
            text = self._read()
            hosts, data, tree = _parse(text, str(self.path))
            wanted = {**data, "schema": 1, "hosts": {**(data.get("hosts") or {}), host.name: entry}}
            kept = text.decode("utf-8-sig")
            if host.name in hosts:
                kept = _without(kept, tree, host.name)
                tree = read_tree(kept, str(self.path))
            self._write(_with(kept, tree, host.name, entry), wanted)
        return host.name not in hosts

    def remove(self, name: str) -> None:
        """Take a host out.

        Raises:
            RequestError: there is no such host.
        """
        with self._locked():
            text = self._read()
            hosts, data, tree = _parse(text, str(self.path))
            if name not in hosts:
                self.find(name)
            left = {key: value for key, value in data["hosts"].items() if key != name}
            self._write(_without(text.decode("utf-8-sig"), tree, name), {**data, "hosts": left})

    def _read(self) -> bytes:
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise SpecError(f"{self.path}: cannot be read: {error.strerror}") from error

    def _write(self, text: str, wanted: dict[str, Any]) -> None:
        """Write the edited text; where editing did not come to what is wanted, write the data afresh."""
        try:
            right = _normal(read_tree(text, str(self.path)).data) == _normal(wanted)
        except SpecError:
            right = False
        if not right:
            text = yaml.safe_dump(wanted, sort_keys=False, allow_unicode=True)
        try:
            # Through a link: people keep such files in a repository of their own.
            write_atomic(Path(os.path.realpath(self.path)), text)
        except OSError as error:
            raise explain_os_error(error, self.path) or error from error

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """One writer at a time; who holds it for ever is named."""
        from eagle3ops.runs.starts import locked

        with contextlib.ExitStack() as stack:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                stack.enter_context(locked(self.path.with_name(".hosts.lock"), str(self.path)))
            except OSError as error:
                raise explain_os_error(error, self.path.parent) or error from error
            yield


def _normal(data: Any) -> Any:
    return {**data, "hosts": data.get("hosts") or {}} if isinstance(data, dict) else data


def _parse(text: bytes, source: str) -> tuple[dict[str, Host], dict[str, Any], Tree]:
    tree = read_tree(text, source)
    if tree.data is None:
        return {}, {}, tree
    if not isinstance(tree.data, dict):
        raise SpecError(f"{tree.place(())}: expected a map with schema and hosts", remedy="write: schema: 1")
    data = _normal(tree.data)
    try:
        checked = _File.model_validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        for problem in error.errors(include_url=False):
            path = tuple(problem["loc"])
            if problem["type"] == "extra_forbidden" and len(path) == 3:
                near = difflib.get_close_matches(str(path[2]), list(_Entry.model_fields), n=1, cutoff=0.5)
                remedy = f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(_Entry.model_fields)}"
                at = tree.place(path, of_key=True)
                raise SpecError(f"{at}: {dotted(path)}: unknown key", remedy=remedy) from error
        tree.data = data
        raise spec_error(error, tree, _File) from error
    hosts: dict[str, Host] = {}
    for name, entry in checked.hosts.items():
        try:
            where: tuple[str, ...] = ("hosts", name)
            check_name(name)
            where = ("hosts", name, "address")
            address = parse_address(entry.address)
            where = ("hosts", name, "python")
            python = check_remote_path(entry.python, "python")
            where = ("hosts", name, "root")
            root = check_remote_path(entry.root, "root")
        except RequestError as error:
            at = tree.place(where, of_key=len(where) == 2)
            raise SpecError(f"{at}: {dotted(where)}: {error.what}", remedy=error.remedy) from error
        hosts[name] = Host(name=name, address=address, python=python, root=root)
    return hosts, data, tree


def _with(text: str, tree: Tree, name: str, entry: dict[str, str]) -> str:
    """The text with one more host at its end, comments and all."""
    hosts = tree.data.get("hosts") if isinstance(tree.data, dict) else None
    indent = "  "
    if hosts:
        indent = " " * (tree.keys[("hosts", next(iter(hosts)))].column - 1)
    dumped = yaml.safe_dump({name: entry}, sort_keys=False, allow_unicode=True, width=1 << 16)
    block = "".join(f"{indent}{line}\n" for line in dumped.splitlines())
    if text and not text.endswith("\n"):
        text += "\n"
    if not isinstance(tree.data, dict):
        return f"{text}schema: 1\nhosts:\n{block}"
    if not hosts:
        lines = text.splitlines(keepends=True)
        at = tree.keys.get(("hosts",))
        if at is None:
            return f"{text}hosts:\n{block}"
        return "".join([*lines[: at.line - 1], "hosts:\n", block, *lines[at.line :]])
    last = list(tree.data)[-1]
    if last == "hosts":
        return text + block
    lines = text.splitlines(keepends=True)
    after = tree.keys[(list(tree.data)[list(tree.data).index("hosts") + 1],)].line
    return "".join([*lines[: after - 1], block, *lines[after - 1 :]])


def _without(text: str, tree: Tree, name: str) -> str:
    """The text without the lines of one host."""
    lines = text.splitlines(keepends=True)
    first = tree.keys[("hosts", name)]
    starts = [place.line for path, place in tree.keys.items() if len(path) <= 2 and place.line > first.line]
    end = min(starts, default=len(lines) + 1)
    while end - 1 > first.line and lines[end - 2].lstrip().startswith("#"):
        end -= 1  # a comment above the next entry belongs to that one
    return "".join([*lines[: first.line - 1], *lines[end - 1 :]])


def find_host(name: str) -> Host:
    """A host of hosts.yaml, or one from an address written out.

    Raises:
        RequestError: an unknown host (lists the known ones), or not an address.
    """
    if is_url(name):
        address = parse_address(name)
        return Host(name=name, address=address)
    return Registry().find(name)
