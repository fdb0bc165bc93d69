"""Where does the source of an engine lie, and what does one of its modules say, read without importing it?

An engine is a package below a folder such as `site-packages`. Files are read as text and parsed; nothing is run. What
cannot be read or is no Python counts as absent and is remembered in `Tree.damaged`.
"""

import ast
import importlib.util
import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path

from eagle3ops.errors import RequestError
from eagle3ops.locations import expanded

LARGEST = 16 << 20
"""Bytes of one source file that are read; the largest of today's engines has 0.3 MB."""
_REGISTRIES = {"vllm": "model_executor/models/registry.py", "sglang": "srt/models/registry.py"}
ENGINES = tuple(_REGISTRIES)
_VERSION = re.compile(r"""^(?:\w+\s*=\s*)*__version__\s*(?:=\s*\w+\s*)*=\s*["']([^"'\n]{1,80})["']""", re.MULTILINE)
_METADATA = re.compile(r"^Version:\s*(\S{1,80})\s*$", re.MULTILINE)


@dataclass(slots=True)
class Tree:
    """The source of one engine."""

    engine: str
    folder: Path
    """Of the package: `.../site-packages/vllm`."""
    damaged: dict[str, str] = field(default_factory=dict)
    """Module -> why it could not be read."""
    _texts: dict[Path, str | None] = field(default_factory=dict)
    _parsed: dict[str, ast.Module | None] = field(default_factory=dict)

    def file_of(self, module: str) -> Path | None:
        """The file of a module, by its dotted name; None when the tree has none such."""
        parts = module.split(".")
        if parts[0] != self.engine or not all(part.isidentifier() for part in parts):
            return None
        base = self.folder.joinpath(*parts[1:])
        for found in (
            (base / "__init__.py", base.with_name(base.name + ".py")) if parts[1:] else (base / "__init__.py",)
        ):
            if _regular(found):
                return found
        return None

    def is_package(self, module: str) -> bool:
        """Whether a module is a folder of others."""
        found = self.file_of(module)
        if found is not None:
            return found.name == "__init__.py"
        return self.folder.joinpath(*module.split(".")[1:]).is_dir()

    def text(self, file: Path) -> str | None:
        """What a file says; None when it cannot be read or is too large."""
        if file not in self._texts:
            self._texts[file] = _read(file)
        return self._texts[file]

    def parse(self, module: str) -> ast.Module | None:
        """The syntax tree of a module; None when there is none or it is no Python."""
        if module not in self._parsed:
            self._parsed[module] = self._parse(module)
        return self._parsed[module]

    def _parse(self, module: str) -> ast.Module | None:
        file = self.file_of(module)
        if file is None:
            return None
        text = self.text(file)
        if text is None:
            self.damaged[module] = f"{self.shown(file)} cannot be read"
            return None
        found = parse(text)
        if isinstance(found, str):
            self.damaged[module] = f"{self.shown(file)} is no Python: {found}"
            return None
        return found

    def shown(self, file: Path) -> str:
        """A file as it is told: from the folder that holds the package."""
        try:
            return str(file.relative_to(self.folder.parent))
        except ValueError:
            return str(file)

    def place(self, module: str, node: ast.AST) -> str:
        """`file:line` of a piece of a module."""
        file = self.file_of(module)
        return f"{self.shown(file) if file else module}:{getattr(node, 'lineno', 1)}"

    @property
    def version(self) -> str | None:
        """As the package says itself, else as its installer wrote down."""
        for name in ("_version.py", "version.py", "__init__.py"):
            text = self.text(self.folder / name)
            found = _VERSION.search(text) if text else None
            if found:
                return found[1]
        try:
            near = sorted(self.folder.parent.glob(f"{self.engine}-*.dist-info"))[:20]
        except OSError:
            return None
        for folder in near:
            text = self.text(folder / "METADATA")
            found = _METADATA.search(text) if text else None
            if found:
                return found[1]
        return None


def parse(text: str) -> ast.Module | str:
    """A syntax tree, or why there is none."""
    try:
        return ast.parse(text)
    except SyntaxError as error:
        return f"line {error.lineno}: {error.msg}"
    except (ValueError, RecursionError, MemoryError) as error:
        return str(error) or type(error).__name__


def find_tree(engine: str, path: str | None = None) -> Tree:
    """The source of an engine.

    Args:
        engine: `vllm` or `sglang`.
        path: the folder that holds the package (`site-packages`), the package itself, or a virtual environment. None
            means the one that this Python would import.

    Raises:
        RequestError: no such engine, or it is not there.
    """
    engine = engine.lower()
    if engine not in _REGISTRIES:
        raise RequestError(
            f"no engine {engine[:80]!r} whose source could be asked", remedy=f"one of {', '.join(ENGINES)}"
        )
    if path is None:
        return Tree(engine, _installed(engine))
    base = expanded(path)
    candidates = [base / engine, base]
    try:
        for lib in ("lib", "lib64"):
            candidates += [each / engine for each in sorted(base.glob(f"{lib}/python3*/site-packages"))]
    except OSError:
        pass
    for each in candidates:
        if each.name == engine and _regular(each / _REGISTRIES[engine]):
            return Tree(engine, each)
    raise RequestError(
        f"no {engine} in {path}: it has no {engine}/{_REGISTRIES[engine]}",
        remedy="--path names the folder that holds the package, such as VENV/lib/python3.12/site-packages",
    )


def _installed(engine: str) -> Path:
    try:
        spec = importlib.util.find_spec(engine)  # of a top-level package: finds it, imports nothing
    except (ImportError, ValueError):
        spec = None
    for place in (spec.submodule_search_locations or ()) if spec else ():
        if _regular(Path(place) / _REGISTRIES[engine]):
            return Path(place)
    raise RequestError(
        f"{engine} is not installed beside this Python",
        remedy="say where it is: --path VENV/lib/python3.12/site-packages",
    )


def _regular(file: Path) -> bool:
    try:
        return stat.S_ISREG(os.stat(file).st_mode)
    except (OSError, ValueError):
        return False


def _read(file: Path) -> str | None:
    try:
        if not _regular(file) or os.stat(file).st_size > LARGEST:
            return None
        return file.read_bytes().decode("utf-8-sig", "replace").replace("\r\n", "\n")
    except (OSError, ValueError):
        return None
