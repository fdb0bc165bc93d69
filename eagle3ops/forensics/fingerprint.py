"""Is this the same failure as another time? A short name of it that does not change with rank, process, host or time.

Made of the type of the exception, its message without what differs from run to run, and the innermost frames of the
program's own code. Line numbers, sizes, addresses and paths are left out.
"""

import hashlib
import re
from collections.abc import Sequence

from eagle3ops.runs.redact import redact

FRAMES = 3
"""Innermost frames that count."""

_FRAME = re.compile(r'File "([^"\n]{1,500})", line \d+, in (\S{1,200})')
_LIBRARY = re.compile(
    r"(?:^|/)(?:torch|triton|multiprocess|uvloop|asyncio|concurrent|importlib)/|^<|/python3(?:\.\d+)?/"
)
_PACKAGES = re.compile(r"^.*/(?:site|dist)-packages/")
_TYPE = re.compile(r"\W{0,3}((?:[A-Za-z_]\w*\.)*[A-Z]\w*)(?::|$)")
_VARIES = (
    (re.compile(r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b"), "<id>"),
    (re.compile(r"\b0x[0-9a-fA-F]+\b|\b[0-9a-f]{12,64}\b"), "<hex>"),
    (re.compile(r"\[?\b\d{1,3}(?:\.\d{1,3}){3}\b\]?(?::\d{1,5})?"), "<host>"),
    (re.compile(r"\b[A-Za-z][\w-]{0,63}(?:\.[\w-]{1,63}){0,4}:\d{2,5}\b"), "<host>"),
    (re.compile(r"(?i)\b(host|node|hostname|server)([ =:]{1,3}['\"]?)[\w.-]+"), r"\1\2<host>"),
    (re.compile(r"(?:/[\w.+@~-]+)+/(?=[\w.+@~-])"), ".../"),
    (re.compile(r"\d+(?:[.,:]\d+)*"), "<n>"),
    (re.compile(r"\s+"), " "),
)


def frame_of(body: str) -> str | None:
    """`folder/file.py:function` of a line of a traceback; None: it is none, or of a library below the program."""
    found = _FRAME.search(body)
    if found is None:
        return None
    path = _PACKAGES.sub("", found[1])
    if _LIBRARY.search(path) is not None:
        return None
    return "/".join(path.split("/")[-2:]) + ":" + found[2]


def normal(text: str) -> str:
    """A message without what differs between two runs of the same failure."""
    text = redact(text)[:1000]
    for pattern, instead in _VARIES:
        text = pattern.sub(instead, text)
    return text.strip()[:300]


def fingerprint(body: str, category: str, frames: Sequence[str]) -> str:
    """16 hexadecimal digits, from a line without its prefixes and the frames of its traceback, innermost last."""
    body = body.strip()
    raised = _TYPE.match(body)
    kind = raised[1].rpartition(".")[2] if raised is not None else category
    message = normal(body[raised.end() :] if raised is not None else body)
    words = "\n".join((kind, message, *frames[-FRAMES:]))
    return hashlib.sha1(words.encode("utf-8", "replace"), usedforsecurity=False).hexdigest()[:16]
