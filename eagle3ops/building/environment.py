"""What has the Python that it is built for: pip, packages, headers, torch? It says so itself, and imports nothing."""

import json
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from eagle3ops.building.toolchain import torch_cuda
from eagle3ops.errors import Eagle3opsError, RequestError

_ASK = """\
import importlib.metadata as m, importlib.util as u, json, os, sys, sysconfig
names = {}
for one in m.distributions():
    name = one.metadata["Name"]
    if name and name not in names:
        names[name] = one.version
spec = u.find_spec("torch")
at = os.path.dirname(os.path.dirname(spec.origin)) if spec and spec.origin else ""
sys.stdout.write(json.dumps({"version": ".".join(map(str, sys.version_info[:3])), "packages": names, "torch": at,
    "include": sysconfig.get_path("include"), "pip": bool(u.find_spec("pip")), "site": sysconfig.get_path("platlib")}))
"""
_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Environment:
    """A Python and what is installed for it."""

    path: str
    version: str
    pip: str | None
    """Version of pip; None: there is none."""
    packages: Mapping[str, str]
    """Normalised name -> version."""
    include: str
    """Folder of Python.h."""
    torch: str | None
    torch_cuda: str | None
    """The CUDA that torch was built with."""


def read_environment(python: str, variables: Mapping[str, str]) -> Environment:
    """What that Python says.

    Raises:
        RequestError: there is no such program, or it is no Python that answers.
        Eagle3opsError: it does not answer in time.
    """
    if not os.access(python, os.X_OK) or Path(python).is_dir():
        raise RequestError(f"stages.build.python: {python} is no program", remedy="name the Python to build for")
    try:
        done = subprocess.run(
            [python, "-P", "-c", _ASK],
            env=dict(variables),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_LIMIT_S,
            check=True,
        )
        return parse_environment(done.stdout, python)
    except subprocess.TimeoutExpired as error:
        raise Eagle3opsError(
            f"{python} does not answer within {_LIMIT_S:.0f} s", remedy="is its disk reachable?"
        ) from error
    except (OSError, subprocess.CalledProcessError, ValueError) as error:
        raise RequestError(
            f"stages.build.python: {python} is no Python that answers: {type(error).__name__}",
            remedy=f"try it: {python} -c 'import sysconfig'",
        ) from error


def parse_environment(raw: bytes, python: str) -> Environment:
    """What it answered.

    Raises:
        ValueError: that is no answer.
    """
    try:
        data = json.loads(raw)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(data, dict) or not isinstance(data.get("packages"), dict):
        raise ValueError("no answer")
    packages = {normalised(str(name)): str(version) for name, version in data["packages"].items()}
    at = data.get("torch")
    torch, cuda = torch_cuda(Path(at)) if isinstance(at, str) and at else (None, None)
    return Environment(
        path=python,
        version=str(data.get("version")),
        pip=packages.get("pip", "version unknown") if data.get("pip") is True else None,
        packages=packages,
        include=str(data.get("include")),
        torch=torch,
        torch_cuda=cuda,
    )


def normalised(name: str) -> str:
    """A distribution's name as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()
