"""How is a prompt file read? ShareGPT-style JSON or JSONL, chat messages, or plain `{"prompt": ...}` lines.

A broken row never ends a run: it is returned with its place and the reason, so that it can be put aside and mended.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3ops.errors import RequestError
from eagle3ops.prompts.prompt import Message, Prompt

_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
}
_CONVERSATION_KEYS = ("messages", "conversations", "conversation")
_TEXT_KEYS = ("prompt", "text", "instruction", "question")
_SHAPES = 'a row needs "messages", "conversations", "prompt" or "text"'


@dataclass(frozen=True, slots=True)
class BrokenRow:
    """A row that is no prompt."""

    source: str
    """File name."""
    line: int
    """Line number in a JSONL file, index (from 1) in a JSON array."""
    reason: str
    raw: str
    """How the row begins, for the quarantine file."""


@dataclass(frozen=True, slots=True)
class LoadedPrompts:
    """What a file held."""

    prompts: list[Prompt]
    broken: list[BrokenRow]


def load_prompts(path: Path) -> LoadedPrompts:
    """Read every row of `path`.

    Rows whose messages repeat those of an earlier row count as broken, so that a prompt held out cannot be trained on.

    Raises:
        RequestError: the file cannot be read, or not one row of it is usable.
    """
    try:
        data = path.expanduser().read_bytes()
    except OSError as error:
        raise RequestError(
            f"{path}: cannot be read: {error.strerror or error}", remedy="check the path of stages.generate.prompts"
        ) from error
    prompts: list[Prompt] = []
    broken: list[BrokenRow] = []
    seen: dict[str, int] = {}
    ids: set[str] = set()
    for line, raw, row in _rows(data):
        try:
            prompt = parse_row(row, f"{path.stem}:{line}", category=path.stem)
            key = json.dumps(prompt.messages, sort_keys=True)
            if key in seen:
                raise ValueError(f"the same prompt as in row {seen[key]}")
            if prompt.id in ids:
                raise ValueError(f'the id "{prompt.id}" is taken by an earlier row')
        except ValueError as error:
            broken.append(BrokenRow(path.name, line, str(error), raw[:200]))
            continue
        seen[key] = line
        ids.add(prompt.id)
        prompts.append(prompt)
    if not prompts:
        first = f"; the first: row {broken[0].line}: {broken[0].reason}" if broken else ""
        raise RequestError(f"{path}: none of {len(broken)} rows is a prompt{first}", remedy=_SHAPES)
    return LoadedPrompts(prompts, broken)


def parse_row(row: object, fallback_id: str, *, category: str = "file") -> Prompt:
    """Make a prompt of one row: everything up to the last turn of the user. A row may name its own category.

    Raises:
        ValueError: the row is no prompt; the message says why.
    """
    if isinstance(row, _Unreadable):
        raise ValueError(row.reason)
    if not isinstance(row, Mapping):
        raise ValueError(f"an object is needed, found {_kind(row)}")
    given = row.get("id")
    name = str(given) if isinstance(given, str | int) and not isinstance(given, bool) and given != "" else fallback_id
    kind = row.get("category")
    if isinstance(kind, str) and kind.strip():
        category = _text(kind, '"category"').strip()[:40]
    for key in _CONVERSATION_KEYS:
        if key in row:
            return Prompt(name, _turns(row[key], key, row.get("system")), category)
    for key in _TEXT_KEYS:
        if key in row:
            text = _text(row[key], f'"{key}"')
            return Prompt(name, (*_system(row.get("system")), {"role": "user", "content": text}), category)
    raise ValueError(_SHAPES)


def _turns(value: object, key: str, system: object) -> tuple[Message, ...]:
    """Messages up to the last one of the user."""
    if not isinstance(value, list):
        raise ValueError(f'"{key}" is {_kind(value)}, a list is needed')
    turns: list[Message] = []
    for number, item in enumerate(value, start=1):
        where = f'turn {number} of "{key}"'
        if not isinstance(item, Mapping):
            raise ValueError(f"{where} is {_kind(item)}, an object is needed")
        speaker = item.get("role", item.get("from"))
        role = _ROLES.get(speaker.lower()) if isinstance(speaker, str) else None
        if role is None:
            raise ValueError(f"{where}: {json.dumps(speaker, default=str)[:40]} is not a role")
        content = item.get("content", item.get("value"))
        if isinstance(content, list):
            content = _joined_parts(content, where)
        turns.append({"role": role, "content": _text(content, where)})
    while turns and turns[-1]["role"] != "user":
        turns.pop()
    if not turns:
        raise ValueError(f'"{key}" holds no turn of the user')
    if any(turn["role"] == "system" for turn in turns[1:]):
        raise ValueError(f'"{key}" has a system message after the first turn')
    return (*(_system(system) if turns[0]["role"] != "system" else ()), *turns)


def _joined_parts(parts: list[Any], where: str) -> str:
    """Text of a list of content parts; other kinds of parts cannot be answered by a text model."""
    texts = []
    for part in parts:
        if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise ValueError(f"{where} holds something other than text")
        texts.append(part["text"])
    return "".join(texts)


def _system(value: object) -> tuple[Message, ...]:
    return ({"role": "system", "content": _text(value, '"system"')},) if value not in (None, "") else ()


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{where} is {_kind(value)}, text is needed")
    if not value.strip():
        raise ValueError(f"{where} is empty")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"{where} holds half a surrogate pair, which is not text") from error
    return value


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "text", int: "a number", float: "a number", bool: "true or false"}
    return "missing" if value is None else names.get(type(value), type(value).__name__)


@dataclass(frozen=True, slots=True)
class _Unreadable:
    """Stands for a row that is not even JSON."""

    reason: str


def _rows(data: bytes) -> Iterator[tuple[int, str, object]]:
    """Number, beginning and content of every row of a JSON array or of JSON lines."""
    data = data.removeprefix(b"\xef\xbb\xbf")
    if data.lstrip()[:1] == b"[":
        whole = _parse(data)
        if isinstance(whole, list):
            for number, row in enumerate(whole, start=1):
                yield number, json.dumps(row, ensure_ascii=True), row
            return
    for number, line in enumerate(data.split(b"\n"), start=1):
        if line.strip():
            yield number, line.decode("utf-8", errors="replace"), _parse(line)


def _parse(data: bytes) -> object:
    try:
        return json.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        return _Unreadable(f"not UTF-8 at byte {error.start}")
    except json.JSONDecodeError as error:
        return _Unreadable(f"not JSON: {error.msg} at column {error.colno}")
    except RecursionError:
        return _Unreadable("nested too deeply")
    except ValueError as error:  # An integer with thousands of digits.
        return _Unreadable(f"not usable JSON: {error}")
