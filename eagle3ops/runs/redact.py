"""Is there a secret in this text? It is taken out where texts are written, so that no reader has to think of it.

Raw output of programs is not touched: what an engine prints stands in its log. Secrets are given to programs by
environment or file, never by argument; this is the net below that rule.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

GONE = "[redacted]"

_OF_WHAT = (
    "api", "auth", "access", "private", "secret", "signing", "account", "hf", "wandb", "bearer", "session", "refresh",
)  # fmt: skip
_NAMES = (
    r"(?:[a-z0-9_-]{0,40}(?:password|passwd|passphrase|secret|credentials?)"
    rf"|[a-z0-9_-]{{0,40}}(?:{'|'.join(_OF_WHAT)})[_-]?(?:key|token))"
)
_VALUE = r"""(?:\[redacted\]|"(?:[^"\\\n]|\\.)*"?|'(?:[^'\\\n]|\\.)*'?|[^\s"',;&)}\]]+)"""

_WHOLE = re.compile(
    r"""
    -----BEGIN[ ](?:[A-Z0-9 ]+[ ])?PRIVATE[ ]KEY-----.*?(?:-----END[ ][A-Z0-9 ]*PRIVATE[ ]KEY-----|\Z)
    | (?:(?<![A-Za-z0-9])|(?<=\\[nrt]))(?:
        hf_[A-Za-z0-9]{16,}
      | sk-[A-Za-z0-9_-]{16,}
      | gh[pousr]_[A-Za-z0-9]{16,}
      | github_pat_[A-Za-z0-9_]{16,}
      | glpat-[A-Za-z0-9_-]{16,}
      | xox[abeprs]-[A-Za-z0-9-]{10,}
      | (?:AKIA|ASIA)[A-Z0-9]{16}
      | eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+
    )
    """,
    re.VERBOSE | re.DOTALL,
)
"""What is a secret by its own form."""

_AFTER = (
    # Authorization: Bearer ..., whatever the quoting.
    re.compile(r"(?P<before>(?:\b|(?<=\\[nrt]))(?:bearer|basic)\s+)(?P<value>[A-Za-z0-9._~+/=-]{8,})", re.IGNORECASE),
    # scheme://user:password@host, and https://token@host; ssh://user@host names no secret.
    re.compile(r"(?P<before>\b[a-z][a-z0-9+.-]{0,20}://)(?P<value>[^\s/@:]*:[^\s/@]*)(?=@)", re.IGNORECASE),
    re.compile(r"(?P<before>\bhttps?://)(?P<value>[^\s/@:]+)(?=@)", re.IGNORECASE),
    # HF_TOKEN=..., MY_KEY=...
    re.compile(
        rf"(?P<before>(?<![A-Za-z0-9_])[A-Z][A-Z0-9_]{{0,60}}(?:TOKEN|SECRET|KEY|PASSWORD)['\"]?\s*[=:]\s*)(?P<value>{_VALUE})"
    ),
    # api_key='...', "password": "...", --password=...
    re.compile(rf"(?P<before>(?<![A-Za-z0-9]){_NAMES}['\"]?\s*[=:]\s*)(?P<value>{_VALUE})", re.IGNORECASE),
    # --api-key ..., inside of a command line that is one text.
    re.compile(rf"(?P<before>(?<!\S)--?(?:{_NAMES}|token)\s+)(?P<value>{_VALUE})", re.IGNORECASE),
)
"""What is a secret by what stands before it."""

_OPTION = re.compile(rf"--?(?:{_NAMES}|token)", re.IGNORECASE)

_HINTS = (
    "hf_", "sk-", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "_pat_", "glpat", "xox", "akia", "asia", "eyj", "bearer",
    "basic", "pass", "secret", "cred", "://",
)  # fmt: skip
_NAMED_HINTS = (*_OF_WHAT, "-token ", "-token\t", "-token\n")

_COLOUR = re.compile(r"(?:\x1b|\\x1b|\\u001b|\\033)\[[0-9;]*m")
"""Its last letter would hide that a word begins behind it."""


def _may_hold_one(text: str) -> bool:
    """False for most texts, quickly: nothing that is looked for can be in them."""
    small = text.lower()
    for hint in _HINTS:
        if hint in small:
            return True
    if "key" not in small and "token" not in small:
        return False
    return "KEY" in text or "TOKEN" in text or any(hint in small for hint in _NAMED_HINTS)


def redact(text: str) -> str:
    """The text without what looks like a secret. Redacting twice is redacting once."""
    if not _may_hold_one(text):
        return text
    text = _WHOLE.sub(GONE, _COLOUR.sub("", text))
    for pattern in _AFTER:
        text = pattern.sub(_without_value, text)
    return text


def _without_value(match: re.Match[str]) -> str:
    value = match["value"]
    quote = value[0] if value[0] in "\"'" else ""
    closed = quote if len(value) > 1 and value.endswith(quote) else ""
    return f"{match['before']}{quote}{GONE}{closed}"


def redact_argv(argv: Sequence[str]) -> list[str]:
    """Arguments without secrets, also where the name of one is an argument of its own: `--api-key X`."""
    clean: list[str] = []
    for number, argument in enumerate(argv):
        named = number > 0 and _OPTION.fullmatch(argv[number - 1])
        clean.append(GONE if named else redact(argument))
    return clean


def redact_data(value: Any) -> Any:
    """What JSON can hold, with every text in it redacted; a list under "argv" as arguments."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {
            redact(str(key)): redact_argv([str(part) for part in item])
            if key == "argv" and isinstance(item, list | tuple)
            else _named(str(key), item)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [redact_data(item) for item in value]
    return value


_SECRET_KEY = re.compile(_NAMES, re.IGNORECASE)


def _named(key: str, value: Any) -> Any:
    """The value of an entry; a text whose name says that it is a secret is one whatever it looks like."""
    if isinstance(value, str) and value and _SECRET_KEY.fullmatch(key):
        return GONE
    return redact_data(value)


_SECRET_VARIABLE = re.compile(
    r".*(?:TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|COOKIE|WEBHOOK|APIKEY)(?:_.*)?|(?:.*_)?(?:KEY|PASS|PWD)",
    re.IGNORECASE,
)
_NO_SECRET = re.compile(r".*(?:TOKENIZERS?|TOKENS)(?:_.*)?|(?:OLD)?PWD", re.IGNORECASE)


def redact_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables without secrets: those whose name says that they are one, and what looks like one in the others.

    Rather one too many than one too few: nobody starts a program from what is kept here.
    """
    clean = {}
    for name, value in environment.items():
        if value and _SECRET_VARIABLE.fullmatch(name) and not _NO_SECRET.fullmatch(name):
            clean[name] = GONE
        else:
            clean[name] = redact(value)
    return clean


def secret_values(environment: Mapping[str, str]) -> set[str]:
    """The values of those variables whose name says that they are secrets: to be masked wherever else they appear."""
    return {
        value
        for name, value in environment.items()
        if value and _SECRET_VARIABLE.fullmatch(name) and not _NO_SECRET.fullmatch(name)
    }


def secret_arguments(argv: Sequence[str]) -> set[str]:
    """The values of those arguments whose name says that they are secrets: `--api-key X`, `--token=X`."""
    found = set()
    for number, argument in enumerate(argv):
        name, equals, value = argument.partition("=")
        if equals and _OPTION.fullmatch(name):
            found.add(value)
        elif number > 0 and _OPTION.fullmatch(argv[number - 1]):
            found.add(argument)
    return found - {""}


SHORTEST_SECRET = 8
"""Characters: a shorter value would be found by chance in texts that have nothing to do with it."""


class Secrets:
    """Values that are known to be secret: they are masked wherever they appear."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._values: set[str] = set()
        self._any = re.compile(r"(?!)")
        self.know(values)

    def know(self, values: Iterable[str]) -> None:
        """From now on these are secrets, too."""
        fresh = {value for value in values if len(value) >= SHORTEST_SECRET} - self._values
        if fresh:
            self._values |= fresh
            # As they are, and as they stand inside of a JSON text; a longer one before one that it begins with.
            ordered = sorted(self._values, key=len, reverse=True)
            forms = dict.fromkeys(form for value in ordered for form in (value, json.dumps(value)[1:-1]))
            self._any = re.compile("|".join(map(re.escape, forms)))

    def mask(self, text: str) -> str:
        """The text without them."""
        return self._any.sub(GONE, text)
