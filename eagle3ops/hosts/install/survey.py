"""Which Python on a host can carry eagle3ops, and can its home folder?"""

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from eagle3ops.errors import Eagle3opsError
from eagle3ops.hosts.ssh.bootstrap import MINIMUM, quote
from eagle3ops.words import human_bytes

MARK = "eagle3ops-survey:"
LEAST_ROOM = 400 * 1024**2
"""Bytes that the core and what it needs take, with pip's scratch space."""
TRAIN_ROOM = 8 * 1024**3
"""... and with torch's CUDA build."""
ALWAYS = 64 * 1024**2
"""... and where that Python shares what it has."""
HEAVY = frozenset({"train", "sglang", "vllm"})
TELLING = ("torch", "sglang", "vllm")
"""Packages worth sharing: whoever has them in their Python wants runs to use them."""

# Any Python 3, however old, must be able to read this.
_PROBE = """
import sys, json
found = {"version": list(sys.version_info[:3]), "prefix": sys.prefix, "base": getattr(sys, "base_prefix", sys.prefix)}
try:
    import importlib.util
    for name in ("venv", "ensurepip"):
        found[name] = importlib.util.find_spec(name) is not None
    import site, sysconfig
    sites = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    if getattr(site, "ENABLE_USER_SITE", False):
        sites.append(site.getusersitepackages())
    sites += [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    found["sites"] = [path for number, path in enumerate(sites) if path and path not in sites[:number]]
    from importlib import metadata
    has = {}
    for name in ("torch", "sglang", "vllm"):
        try:
            has[name] = metadata.version(name)
        except Exception:
            pass
    found["has"] = has
except Exception as error:
    found["error"] = repr(error)
print("eagle3ops-survey:python " + json.dumps(found))
"""

_SCRIPT = r"""
survey() {
PATH="$PATH:$HOME/.local/bin:/usr/local/bin:/usr/bin:/bin"
base="$HOME/.local/share/eagle3ops"
printf '\neagle3ops-survey:home %s\n' "$HOME"
printf 'eagle3ops-survey:system %s\n' "$(uname -s 2>/dev/null)"
said=$(mkdir -p "$base/wheels" 2>&1 && printf '#!/bin/sh\nexit 0\n' 2>&1 >"$base/.probe.$$")
if [ $? -eq 0 ] && [ -s "$base/.probe.$$" ]; then
  printf 'eagle3ops-survey:writable yes\n'
  chmod 700 "$base/.probe.$$"
  "$base/.probe.$$" 2>/dev/null && printf 'eagle3ops-survey:executable yes\n'
else
  printf 'eagle3ops-survey:refused %s\n' "$(printf %s "$said" | tr '\n' ' ')"
fi
rm -f "$base/.probe.$$" 2>/dev/null
printf 'eagle3ops-survey:free %s\n' "$(df -Pk "$base" 2>/dev/null | tail -n 1)"
printf 'eagle3ops-survey:current %s\n' "$(readlink "$base/env" 2>/dev/null)"
printf 'eagle3ops-survey:receipt %s\n' "$(tr -d '\n' <"$base/env/eagle3ops-receipt.json" 2>/dev/null)"
kept=$(sed -n 's/^ *"python": "\([^"]*\)".*/\1/p' "$base/env/eagle3ops-receipt.json" 2>/dev/null)
seen=:
for name in @CANDIDATES@; do
  path=$(command -v "$name" 2>/dev/null) || continue
  [ -f "$path" ] && [ -x "$path" ] || continue
  case "$seen" in *":$path:"*) continue;; esac
  seen="$seen$path:"
  printf 'eagle3ops-survey:trying %s\n' "$path"
  "$path" -c @PROBE@ 2>/dev/null
done
printf 'eagle3ops-survey:end\n'
}
survey </dev/null
"""

_USUAL = (
    '"$kept"',
    "python3",
    "python3.14",
    "python3.13",
    "python3.12",
    "python3.11",
    "/opt/conda/bin/python3",
    '"$HOME"/miniconda3/bin/python3',
    '"$HOME"/miniforge3/bin/python3',
    '"$HOME"/.pyenv/versions/*/bin/python3',
    '"$HOME"/.local/share/uv/python/*/bin/python3',
)


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python on the host."""

    path: str
    version: tuple[int, ...] = ()
    """Empty: it did not run."""
    venv: bool = False
    """Can it make environments with pip in them?"""
    sites: tuple[str, ...] = ()
    has: dict[str, str] = field(default_factory=dict)
    """Versions of `TELLING` packages."""

    def __str__(self) -> str:
        return f"{self.path} ({'.'.join(str(part) for part in self.version) or 'does not run'})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What the script found."""

    home: str
    system: str
    refused: str | None
    """Why nothing can be written below the home folder; None: it can."""
    executable: bool
    """Do programs run from there?"""
    free: int | None
    """Bytes."""
    current: str
    """The folder that the link `env` points at; empty when there is none."""
    receipt: dict[str, Any]
    """What the present environment was made of; empty when there is none."""
    pythons: tuple[Interpreter, ...]

    @property
    def base(self) -> str:
        """The folder of environments and wheels."""
        return f"{self.home}/.local/share/eagle3ops"


def script(python: str | None = None) -> bytes:
    """What `sh` on the host is given to read.

    Args:
        python: the only interpreter to look at; None looks in the usual places.
    """
    candidates = quote(python) if python is not None else " ".join(_USUAL)
    text = _SCRIPT.replace("@CANDIDATES@", candidates).replace("@PROBE@", shlex.quote(_PROBE))
    return text.encode()


def parse(output: str, host: str) -> Survey:
    """Read what the script said; lines of banners and start-up files are passed over.

    Raises:
        Eagle3opsError: it did not come to its end.
    """
    said: dict[str, str] = {}
    pythons: list[Interpreter] = []
    for line in output.splitlines():
        if not line.startswith(MARK):
            continue
        key, _, value = line.removeprefix(MARK).partition(" ")
        if key == "trying":
            pythons.append(Interpreter(value))
        elif key == "python" and pythons:
            pythons[-1] = _interpreter(pythons[-1].path, value)
        else:
            said[key] = value
    if "end" not in said or not said.get("home", "").startswith("/"):
        raise Eagle3opsError(
            f"{host}: looking around there did not come to its end",
            remedy=f"log in by hand and look at its start-up files: ssh {host} sh -c true",
        )
    return Survey(
        home=said["home"].rstrip("/"),
        system=said.get("system", ""),
        refused=None if "writable" in said else said.get("refused", "") or "no reason given",
        executable="executable" in said,
        free=_free(said.get("free", "")),
        current=said.get("current", ""),
        receipt=_object(said.get("receipt", "")),
        pythons=tuple(pythons),
    )


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _free(line: str) -> int | None:
    """The fourth field of `df -Pk`."""
    fields = line.split()
    return int(fields[3]) * 1024 if len(fields) >= 4 and fields[3].isascii() and fields[3].isdigit() else None


def _interpreter(path: str, text: str) -> Interpreter:
    found = _object(text)
    version, sites, has = found.get("version"), found.get("sites"), found.get("has")
    if not isinstance(version, list) or not version or not all(isinstance(part, int) for part in version):
        return Interpreter(path)
    return Interpreter(
        path,
        tuple(version),
        found.get("venv") is True and found.get("ensurepip") is True,
        tuple(str(site) for site in sites) if isinstance(sites, list) else (),
        {str(name): str(value) for name, value in has.items()} if isinstance(has, dict) else {},
    )


def choose(survey: Survey, host: str, *, extras: Sequence[str], python: str | None) -> Interpreter:
    """The interpreter to build on, after making sure that the home folder can carry an environment.

    Of several that will do, the one that the present environment was built on comes first, then one with torch or an
    engine, then the order of the search.

    Raises:
        Eagle3opsError: none will do, or the home folder will not; with what to do.
    """
    if survey.system != "Linux":
        raise Eagle3opsError(
            f"{host}: runs live on Linux; this is {survey.system or 'unknown'}", remedy="add a Linux host"
        )
    _check_home(survey, host)
    wanted = ".".join(str(part) for part in MINIMUM)
    if not survey.pythons:
        if python is not None:
            raise Eagle3opsError(
                f"{host}: {python}, named by hosts.yaml, is not there or not executable", remedy="mend python: there"
            )
        raise Eagle3opsError(
            f"{host} has no Python",
            remedy=f"install Python {wanted} or newer there (with its venv module) and try again",
        )
    new = [found for found in survey.pythons if found.version >= MINIMUM]
    shown = ", ".join(str(found) for found in survey.pythons)
    if not new:
        raise Eagle3opsError(
            f"{host}: Python {wanted} or newer is needed; found {shown}",
            remedy="install one there; without root: `curl -LsSf https://astral.sh/uv/install.sh | sh`, "
            "then `uv python install 3.12`",
        )
    able = [found for found in new if found.venv]
    if not able:
        version = ".".join(str(part) for part in new[0].version[:2])
        raise Eagle3opsError(
            f"{host}: {new[0]} cannot make environments: its venv or ensurepip module is missing",
            remedy=f"Debian and Ubuntu split it off: apt install python{version}-venv",
        )
    kept = [found for found in able if found.path == survey.receipt.get("python")]
    chosen = next((found for found in [*kept, *able] if found in kept or found.has), able[0])
    _check_room(survey, host, 0 if chosen.has else TRAIN_ROOM if HEAVY.intersection(extras) else LEAST_ROOM)
    return chosen


def _check_home(survey: Survey, host: str) -> None:
    if survey.refused is not None:
        if survey.free is not None and survey.free < 1024**2:
            raise Eagle3opsError(
                f"{host}: its home folder is full ({survey.base}: {survey.refused})", remedy="free some space there"
            )
        raise Eagle3opsError(
            f"{host}: {survey.base} cannot be written: {survey.refused}",
            remedy="make it writable, or a link to a folder that is",
        )
    if not survey.executable:
        raise Eagle3opsError(
            f"{host}: programs may not run from {survey.base} (mounted noexec?)",
            remedy=f"make {survey.base} a link to a folder on another disk, or have the disk mounted with exec",
        )


def _check_room(survey: Survey, host: str, least: int) -> None:
    least = max(least, ALWAYS)
    if survey.free is not None and survey.free < least:
        raise Eagle3opsError(
            f"{host}: {human_bytes(survey.free)} are free in {survey.base}; the environment needs {human_bytes(least)}",
            remedy="free some space there, or make the folder a link to a larger disk",
        )
