"""Can this SGLang serve what is asked? Found out before anything starts, with what to do where it cannot."""

import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from eagle3ops.errors import Eagle3opsError, RequestError

OLDEST, BEFORE = (0, 5, 14), (0, 6)
"""Versions whose flags are known: this one or newer, and older than that one."""
ON_CPU = (0, 5, 14)
"""The one version known to serve on a CPU as it is installed: later ones want kernels that no package on PyPI has."""

_INSTALL = "python3 -m venv /opt/sglang && /opt/sglang/bin/pip install sglang==0.5.14"
_ASK = """\
import importlib.metadata as m, json, sys
found = {"python": ".".join(map(str, sys.version_info[:3]))}
for name in ("sglang", "torch", "sglang-kernel", "transformers"):
    try:
        found[name] = m.version(name)
    except m.PackageNotFoundError:
        continue
sys.stdout.write(json.dumps(found))
"""
_ASK_TIMEOUT_S = 30.0
_ANSWER_BYTES = 4096


def interpreter(python: str | None) -> str:
    """The Python that SGLang is installed in: the one named, or our own.

    The path is not resolved further: a virtual environment is told by the name under which its Python is called.
    """
    return sys.executable if python is None else str(Path(python).expanduser())


def check(*, python: str | None, variables: Mapping[str, str], on_gpu: bool, drafter: bool, aux_layers: bool) -> str:
    """The version that would serve.

    Args:
        python: see `interpreter`.
        variables: of the engine's environment; its PYTHONPATH is where SGLang may be found.
        on_gpu: whether a GPU computes.
        drafter: whether it is to speculate.
        aux_layers: whether it is to feed other layers than the drafter's config names.

    Raises:
        RequestError: it cannot; with the reason and what to do.
    """
    path = interpreter(python)
    version = installed(path, variables).get("sglang")
    if version is None:
        raise RequestError(
            f"engine sglang: not installed for {path}",
            remedy=f"install it ({_INSTALL}) and name that Python: engine.python: /opt/sglang/bin/python",
        )
    number = numbers(version)
    if not OLDEST <= number < BEFORE:
        raise RequestError(
            f"engine sglang: version {version} of {path} is not known to eagle3ops",
            remedy=f"use 0.5.14 or a later 0.5 ({_INSTALL}), and name its Python as engine.python",
        )
    if not on_gpu and number != ON_CPU:
        raise RequestError(
            f"engine sglang: version {version} does not serve on a CPU as it is installed",
            remedy=f"use 0.5.14 there ({_INSTALL}), or a machine with a GPU",
        )
    if drafter and not on_gpu:
        raise RequestError(
            f"engine sglang: {version} cannot speculate on a CPU: its EAGLE-3 workers launch Triton and CUDA kernels",
            remedy="run --job generate only, serve with engine.name: reference, or use a machine with a GPU",
        )
    if aux_layers:
        raise RequestError(
            "engine sglang: it feeds the drafter the layers that the drafter's config names, and no others",
            remedy="leave stages.serve.aux_layers out, or set engine.name: reference",
        )
    return version


def installed(python: str, variables: Mapping[str, str] | None = None) -> Mapping[str, str]:
    """Versions of SGLang and what it computes with, by package, as that Python has them.

    Raises:
        RequestError: there is no such program, or it is no Python that answers.
    """
    try:
        # Another program under the same name, or another installation into the same environment, is asked anew.
        program = Path(python)
        marks = tuple(_mark(place) for place in (program, program.parent, *_site_packages(program)))
    except OSError as error:
        raise RequestError(
            f"engine.python: {python}: {error.strerror}",
            remedy="name the Python of the environment that holds SGLang, such as /opt/sglang/bin/python",
        ) from error
    if not os.access(python, os.X_OK) or Path(python).is_dir():
        raise RequestError(
            f"engine.python: {python} is not a program", remedy="name a Python, such as /opt/sglang/bin/python"
        )
    return _ask(python, tuple(sorted((variables or {}).items())), marks)


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
    return {name: value[:64] for name, value in raw.items() if isinstance(value, str)}


def _site_packages(python: Path) -> list[Path]:
    return sorted(python.parent.parent.glob("lib/python3*/site-packages"))[:4]


def _mark(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_ino, status.st_mtime_ns


@functools.lru_cache(maxsize=8)
def _ask(python: str, variables: tuple[tuple[str, str], ...], marks: object) -> Mapping[str, str]:
    try:
        done = subprocess.run(
            # As the server will be started: what its environment finds counts, and not what lies in this folder.
            [python, "-P", "-c", _ASK],
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
        raise RequestError(
            f"engine.python: {python} is no Python that can say what is installed: {type(error).__name__}",
            remedy=f"try it: {python} -c 'import sglang'",
        ) from error
