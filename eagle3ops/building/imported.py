"""Which files does a Python really import for a package, and what else of that name lies there? It says so itself."""

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eagle3ops.errors import Eagle3opsError, RequestError

_ASK = r"""
import glob, importlib, importlib.machinery as machinery, importlib.metadata as metadata, importlib.util as util
import json, os, site, sys
name, answer, really = sys.argv[1:4]
def told(spec, by):
    places = [os.path.abspath(p) for p in spec.submodule_search_locations or ()]
    origin = spec.origin if spec.origin and os.path.exists(spec.origin) else None
    return {"origin": origin and os.path.abspath(origin), "places": places, "by": by}
def asked(find, by):
    try:
        spec = find()
    except Exception:
        return None
    return told(spec, by) if spec else None
found = {"python": ".".join(map(str, sys.version_info[:3])), "prefix": sys.prefix, "first": None}
try:
    spec = util.find_spec(name)
except Exception as error:
    spec, found["error"] = None, type(error).__name__ + ": " + str(error)
if spec:
    found["first"] = told(spec, "")
found["copies"] = []
for finder in sys.meta_path:
    if finder is not machinery.PathFinder and hasattr(finder, "find_spec"):
        by = getattr(finder, "__module__", "") + "." + getattr(finder, "__name__", type(finder).__name__)
        found["copies"].append(asked(lambda: finder.find_spec(name, None), "finder " + by))
    elif finder is machinery.PathFinder:
        for entry in sys.path:
            found["copies"].append(asked(lambda: machinery.PathFinder.find_spec(name, [entry]), "path " + entry))
found["copies"] = [copy for copy in found["copies"] if copy]
found["links"] = []
places = getattr(site, "getsitepackages", list)() + [site.getusersitepackages()]
for link in [link for place in places for link in sorted(glob.glob(os.path.join(place, "*.pth")))]:
    try:
        with open(link, encoding="utf-8", errors="replace") as lines:
            for line in lines.read(65536).splitlines():
                if line.strip() and not line.startswith("#"):
                    folder = os.path.abspath(os.path.join(os.path.dirname(link), line.strip()))
                    found["links"].append([link, line.strip()[:1000], folder])
    except OSError:
        continue
found["distributions"] = []
for one in metadata.distributions():
    record, top, direct = (one.read_text(part) or "" for part in ("RECORD", "top_level.txt", "direct_url.json"))
    begins = ("\n" + name + "/", "\n" + name + ".", '\n"' + name + "/")
    owns = any(begin in "\n" + record for begin in begins)
    if owns or name in top.split():
        try:
            editable = bool(json.loads(direct or "{}").get("dir_info", {}).get("editable"))
        except (ValueError, AttributeError):
            editable = False
        found["distributions"].append({"name": one.metadata["Name"], "version": one.version, "editable": editable,
            "record": str(getattr(one, "_path", "")), "root": str(one.locate_file(""))})
if really == "import" and found["first"]:
    try:
        module = importlib.import_module(name)
        found["imported"] = getattr(module, "__file__", None)
    except BaseException as error:
        found["error"] = type(error).__name__ + ": " + str(error)
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            fields = (line.split(None, 5) for line in maps)
            found["mapped"] = sorted({f[5].strip() for f in fields if len(f) == 6 and f[5].startswith("/")})
    except OSError:
        pass
with open(answer, "w", encoding="utf-8", errors="replace") as file:
    json.dump(found, file)
os._exit(0)
"""
_LIMIT_S = 60.0
IMPORT_LIMIT_S = 300.0
_ANSWER_BYTES = 4 << 20
_INSTALL = "name another Python with --python, or install it there"


@dataclass(frozen=True, slots=True)
class Copy:
    """A place where something of that name lies."""

    origin: Path | None
    """The file that is run; None for a folder without `__init__.py`."""
    places: tuple[Path, ...]
    """Folders of a package; empty for a single file."""
    by: str
    """What leads there: a folder of `sys.path`, or a finder that an editable install put before it."""

    @property
    def folder(self) -> Path:
        """Where it is."""
        if self.places:
            return self.places[0]
        return self.origin or Path()


@dataclass(frozen=True, slots=True)
class Distribution:
    """An installed distribution that claims the name."""

    name: str
    version: str
    editable: bool
    record: Path
    """Folder of its metadata."""
    root: Path
    """What the paths of its RECORD start from."""


@dataclass(frozen=True, slots=True)
class Imported:
    """What one Python answered."""

    python: str
    version: str
    package: str
    first: Copy | None
    """The one that is imported; None: there is none."""
    copies: tuple[Copy, ...]
    """All of that name, in the order in which they are looked for."""
    links: tuple[tuple[Path, str, Path], ...] = ()
    """Lines of `.pth` files: the file, the line, and the folder where it names one."""
    distributions: tuple[Distribution, ...] = ()
    mapped: frozenset[Path] = frozenset()
    """Files in the memory of a process that had imported it; empty where that was not tried, or failed at once."""
    imported: bool = False
    error: str | None = None
    """Why the import failed, or the name could not be looked up."""
    others: tuple[Copy, ...] = field(default=())
    """Those of `copies` that are never reached."""


def ask(python: str, package: str, *, variables: Mapping[str, str] | None = None, load: bool = False) -> Imported:
    """What that Python imports under that name.

    Args:
        python: a program.
        package: a top-level name.
        variables: set for it besides those of this process.
        load: import it for real, to see which libraries are loaded; code of the package is run.

    Raises:
        RequestError: there is no such program, or the name is none.
        Eagle3opsError: it does not answer.
    """
    if not package.isidentifier():
        raise RequestError(
            f"{package!r} is no name of a package", remedy="the name that is imported, such as sgl_kernel"
        )
    if not os.access(python, os.X_OK) or Path(python).is_dir():
        raise RequestError(f"{python} is no program", remedy="name a Python, such as /opt/sglang/bin/python")
    limit = IMPORT_LIMIT_S if load else _LIMIT_S
    with tempfile.TemporaryDirectory(prefix="eagle3ops-") as folder:
        answer = Path(folder, "answer.json")
        try:
            done = subprocess.run(
                # -P: not from the folder that this happens to be started in.
                [python, "-P", "-c", _ASK, package, str(answer), "import" if load else "look"],
                env={**os.environ, **(variables or {})},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=limit,
                check=False,
            )
            with answer.open("rb") as file:
                return parse_answer(file.read(_ANSWER_BYTES), python, package)
        except subprocess.TimeoutExpired as error:
            what = "import it" if load else "say where it is"
            raise Eagle3opsError(
                f"{python} does not {what} within {limit:.0f} s", remedy=f"try it: import {package}"
            ) from error
        except OSError as error:
            if load:
                # A library that ends the process when it is loaded: what is known without loading it still counts.
                return _crashed(ask(python, package, variables=variables), done.returncode, done.stderr)
            last = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or [str(error)]
            raise RequestError(
                f"{python} is no Python that answers: {last[0][:300]}",
                remedy="name a Python, such as /opt/sglang/bin/python",
            ) from error
        except ValueError as error:
            raise Eagle3opsError(f"{python}: not the answer to what was asked: {error}") from error


def _crashed(found: Imported, code: int, said: bytes) -> Imported:
    last = said.decode("utf-8", "replace").strip().splitlines()[-1:] or [""]
    how = f"signal {-code}" if code < 0 else f"exit {code}"
    return Imported(
        found.python, found.version, found.package, found.first, found.copies, found.links, found.distributions,
        error=f"the import ended the process ({how}) {last[0][:300]}".rstrip(), others=found.others,
    )  # fmt: skip


def parse_answer(raw: bytes, python: str, package: str) -> Imported:
    """What the child wrote.

    Raises:
        ValueError: that is no answer.
    """
    try:
        data = json.loads(raw)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(data, dict):
        raise ValueError("no object")
    first = _copy(data["first"]) if isinstance(data.get("first"), dict) else None
    copies = tuple(_copy(one) for one in _list(data, "copies") if isinstance(one, dict))
    seen = {first.folder} if first is not None else set()
    others = []
    for one in copies:
        if one.folder not in seen:
            seen.add(one.folder)
            others.append(one)
    links = [tuple(map(str, one)) for one in _list(data, "links") if isinstance(one, list) and len(one) == 3]
    return Imported(
        python=python,
        version=str(data.get("python")),
        package=package,
        first=first,
        copies=copies,
        links=tuple((Path(link), line, Path(folder)) for link, line, folder in links),
        distributions=tuple(_distribution(one) for one in _list(data, "distributions") if isinstance(one, dict)),
        mapped=frozenset(Path(str(one)) for one in _list(data, "mapped")),
        imported="imported" in data,
        error=str(data["error"])[:2000] if data.get("error") else None,
        others=tuple(others),
    )


def _list(data: Mapping[str, Any], key: str) -> list[Any]:
    found = data.get(key)
    return found if isinstance(found, list) else []


def _copy(data: Mapping[str, Any]) -> Copy:
    origin = data.get("origin")
    return Copy(
        Path(origin) if isinstance(origin, str) else None,
        tuple(Path(str(place)) for place in _list(data, "places")),
        str(data.get("by") or ""),
    )


def _distribution(data: Mapping[str, Any]) -> Distribution:
    return Distribution(
        str(data.get("name")),
        str(data.get("version")),
        data.get("editable") is True,
        Path(str(data.get("record"))),
        Path(str(data.get("root"))),
    )


def way(found: Imported, copy: Copy) -> str:
    """What leads Python to a copy, in words, with what to remove where it should not."""
    by = next((one.by for one in found.copies if one.folder == copy.folder), copy.by)
    if by.startswith("finder "):
        hook = by.removeprefix("finder ").partition(".")[0]
        link = next((f", loaded by {link}" for link, line, _ in found.links if hook in line), "")
        return f"the import hook {hook}{link}"
    entry = by.removeprefix("path ")
    # A line that begins with `import` is code, and may put the folder anywhere.
    link = next(
        (
            f", named in {link}"
            for link, line, folder in found.links
            if entry and (str(folder) == os.path.abspath(entry) or (line.startswith("import") and entry in line))
        ),
        "",
    )
    if not link and entry and entry in os.environ.get("PYTHONPATH", "").split(os.pathsep):
        link = ", named in PYTHONPATH"
    return f"{entry or 'the current folder'}{link}"
