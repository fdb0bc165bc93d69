"""What is installed in the environment of an engine? Its own Python is asked, and nothing of the engine is imported."""

import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from eagle3ops.errors import Eagle3opsError, RequestError
from eagle3ops.locations import expanded

_VERSIONS = """\
import importlib.metadata as m, json, sys
found = {"python": ".".join(map(str, sys.version_info[:3]))}
for name in sys.argv[1:]:
    try:
        found[name] = m.version(name)
    except m.PackageNotFoundError:
        continue
sys.stdout.write(json.dumps(found))
"""
_ASK_TIMEOUT_S = 30.0
_ANSWER_BYTES = 16384


def interpreter(python: str | None) -> str:
    """The Python that an engine is installed in: the one named, or our own.

    The path is not resolved further: a virtual environment is told by the name under which its Python is called.
    """
    return sys.executable if python is None else str(expanded(python))


def versions(
    engine: str, python: str, packages: tuple[str, ...], variables: Mapping[str, str] | None = None
) -> Mapping[str, str]:
    """Versions of packages, and of Python, by name, as that Python has them; what it lacks is left out. See `ask`."""
    return ask(engine, python, (_VERSIONS, *packages), variables)


def ask(
    engine: str, python: str, script: tuple[str, ...], variables: Mapping[str, str] | None = None
) -> Mapping[str, str]:
    """What a script says that runs in that Python as the engine's server will; see `parse_versions`.

    Args:
        engine: its name, for messages.
        python: see `interpreter`.
        script: source, and its arguments. The answer is kept until the program or what is installed there changes.
        variables: of the engine's environment; its PYTHONPATH is where packages may be found.

    Raises:
        RequestError: there is no such program, or it is no Python that answers.
    """
    example = f"/opt/{engine}/bin/python"
    try:
        # Another program under the same name, or another installation into the same environment, is asked anew.
        program = Path(python)
        marks = tuple(_mark(place) for place in (program, program.parent, *_site_packages(program)))
    except OSError as error:
        raise RequestError(
            f"engine.python: {python}: {error.strerror}",
            remedy=f"name the Python of the environment that holds {engine}, such as {example}",
        ) from error
    if not os.access(python, os.X_OK) or Path(python).is_dir():
        raise RequestError(f"engine.python: {python} is not a program", remedy=f"name a Python, such as {example}")
    elsewhere = (variables or {}).get("PYTHONPATH", "").split(os.pathsep)
    marks += tuple(_mark(Path(place)) for place in elsewhere if place and Path(place).is_dir())
    return _ask(engine, python, script, tuple(sorted((variables or {}).items())), marks)


def numbers(version: str) -> tuple[int, ...]:
    """`0.5.14.post1` -> (0, 5, 14); () for what does not begin with a number."""
    found = re.match(r"\d{1,9}(?:\.\d{1,9}){0,2}", version)
    return tuple(int(part) for part in found.group().split(".")) if found else ()


def parse_versions(text: str) -> dict[str, str]:
    """What the interpreter answered.

    Raises:
        ValueError: that is no answer to the question.
    """
    try:
        raw = json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(raw, dict) or not isinstance(raw.get("python"), str):
        raise ValueError("no Python answers like that")
    return {name: value[:4096] for name, value in raw.items() if isinstance(value, str)}


def _site_packages(python: Path) -> list[Path]:
    return sorted(python.parent.parent.glob("lib/python3*/site-packages"))[:4]


def _mark(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_ino, status.st_mtime_ns


@functools.lru_cache(maxsize=8)
def _ask(
    engine: str, python: str, script: tuple[str, ...], variables: tuple[tuple[str, str], ...], marks: object
) -> Mapping[str, str]:
    try:
        done = subprocess.run(
            # As the server will be started: what its environment finds counts, and not what lies in this folder.
            [python, "-P", "-c", *script],
            env={**os.environ, "PYTHONPATH": "", **dict(variables)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_ASK_TIMEOUT_S,
            check=True,
        )
        return parse_versions(done.stdout[:_ANSWER_BYTES].decode("utf-8", "replace"))
    except subprocess.TimeoutExpired as error:
        raise Eagle3opsError(
            f"engine.python: {python} does not say within {_ASK_TIMEOUT_S:.0f} s what is installed",
            remedy="is its disk reachable?",
        ) from error
    except (OSError, subprocess.CalledProcessError, ValueError) as error:
        why = str(error)
        if isinstance(error, subprocess.CalledProcessError):
            # The last line is the one that says what went wrong, of a Python as of anything else.
            last = error.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
            why = f"exit code {error.returncode}" + "".join(f": {line[:300]}" for line in last)
        raise RequestError(
            f"engine.python: {python} is no Python that can say what is installed: {why}",
            remedy=f"try it: {python} -c 'import {engine}'",
        ) from error
