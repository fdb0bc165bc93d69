"""Does what Python imports hold code for this GPU, and is it what was built? The proof, and what stands in its way."""

import csv
import time
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3ops.building.architectures import Arch, Code
from eagle3ops.building.built import Built, is_library, sha256
from eagle3ops.building.cuobjdump import disagreement
from eagle3ops.building.fatbin import Coverage, coverage, read_images, targets
from eagle3ops.building.imported import Imported, way
from eagle3ops.errors import RequestError

_MOST = 2000
"""Files of one package that are looked at."""
_VARIANTS = ("sm90", "sm100")


@dataclass(frozen=True, slots=True)
class Held:
    """A compiled file of the package that is imported."""

    path: Path
    size: int
    modified: float
    targets: Mapping[Code, int]
    """In how many of its fat binaries each target is; empty: no GPU code."""
    coverage: Coverage | None
    """For the GPU that was asked about."""
    role: str
    """`loaded` at import, `chosen` for this GPU by its folder, `left out` for it, or `there`."""
    record: str
    """Against the RECORD of its installation: `same`, `changed`, or `unknown`."""
    damage: str | None = None

    def as_json(self) -> dict[str, Any]:
        """For `--json` and the job's result."""
        return {
            "path": str(self.path),
            "bytes": self.size,
            "modified": round(self.modified, 3),
            "targets": {str(code): count for code, count in self.targets.items()},
            "native": self.coverage.native if self.coverage else None,
            "ptx_only": self.coverage.compiled if self.coverage else None,
            "fat_binaries": self.coverage.total if self.coverage else None,
            "role": self.role,
            "record": self.record,
            "damage": self.damage,
        }


@dataclass(frozen=True, slots=True)
class Problem:
    """Why the proof does not hold."""

    code: str
    """`no_code`, `phantom`, `shadowed`, `not_importable`, `damaged`."""
    what: str
    remedy: str

    def as_json(self) -> dict[str, str]:
        """For `--json` and the job's result."""
        return {"code": self.code, "what": self.what, "remedy": self.remedy}


@dataclass(frozen=True, slots=True)
class Proof:
    """What was found."""

    imported: Imported
    arch: Arch | None
    files: tuple[Held, ...]
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Nothing speaks against it."""
        return not self.problems

    def as_json(self) -> dict[str, Any]:
        """For `--json` and the job's result."""
        first = self.imported.first
        return {
            "package": self.imported.package,
            "python": self.imported.python,
            "arch": str(self.arch) if self.arch else None,
            "passed": self.passed,
            "imported_from": str(first.folder) if first else None,
            "origin": str(first.origin) if first and first.origin else None,
            "by": way(self.imported, first) if first else None,
            "shadowed": [{"folder": str(one.folder), "by": way(self.imported, one)} for one in self.imported.others],
            "distributions": [
                {"name": one.name, "version": one.version, "editable": one.editable, "record": str(one.record)}
                for one in self.imported.distributions
            ],
            "import_error": self.imported.error,
            "files": [file.as_json() for file in self.files],
            "problems": [problem.as_json() for problem in self.problems],
            "notes": list(self.notes),
        }


def prove(imported: Imported, arch: Arch | None, built: Built | None = None) -> Proof:
    """Judge what a Python imports.

    Args:
        imported: what it says.
        arch: the GPU that code has to be there for; None: only list.
        built: what was built just now, and has to be what is imported.

    Raises:
        RequestError: nothing of that name can be imported, and nothing was built that should be.
    """
    first, python = imported.first, imported.python
    if first is None:
        why = f": {imported.error}" if imported.error else ""
        what = f"{python} finds no {imported.package}{why}"
        if built is None:
            raise RequestError(
                what, remedy="the name is that of the import, such as sgl_kernel; --python names another Python"
            )
        missing = Problem("not_importable", what, f"{python} -m pip install --no-deps --force-reinstall {built.path}")
        return Proof(imported, arch, (), (missing,), ())
    files = tuple(_held(path, imported, arch) for path in compiled_files(imported))
    problems, notes = [], []
    problems += [
        Problem("damaged", f"{file.path}: {file.damage}", "install it again; a copy that was cut off reads like this")
        for file in files
        if file.damage
    ]
    if built is not None:
        problems += _phantoms(imported, files, built)
    if arch is not None:
        lack, told = _covered(files, arch)
        problems += lack
        notes += told
    notes += _notes(imported, files)
    return Proof(imported, arch, files, tuple(problems), tuple(notes))


def compiled_files(imported: Imported) -> list[Path]:
    """The shared libraries of the package that is imported, and of no other."""
    first = imported.first
    if first is None:
        return []
    if not first.places:
        return [first.origin] if first.origin is not None and is_library(first.origin.name) else []
    found: dict[Path, None] = {}
    for place in first.places:
        for path in sorted(place.rglob("*.so*")):
            if is_library(path.name) and path.is_file():
                found[path] = None
            if len(found) >= _MOST:
                return list(found)
    # An editable install may keep its libraries elsewhere, and redirect to them.
    for path in sorted(imported.mapped):
        if is_library(path.name) and any(path.is_relative_to(place) for place in first.places):
            found[path] = None
    return list(found)


def _held(path: Path, imported: Imported, arch: Arch | None) -> Held:
    status, damage = path.stat(), None
    try:
        images = read_images(path)
    except (OSError, ValueError) as error:
        images, damage = [], str(error)
    return Held(
        path,
        status.st_size,
        status.st_mtime,
        targets(images),
        coverage(images, arch) if arch is not None and images else None,
        _role(path, imported, arch),
        _recorded(path, imported),
        damage,
    )


def _role(path: Path, imported: Imported, arch: Arch | None) -> str:
    folder = path.parent.name
    sibling = any((path.parent.parent / one / path.name).exists() for one in _VARIANTS if one != folder)
    if arch is not None and folder in _VARIANTS and sibling:
        # sgl_kernel/load_utils.py: capability 9.0 takes `sm90/`, every other one `sm100/`.
        return "chosen" if folder == ("sm90" if arch.plain == Arch(9, 0) else "sm100") else "left out"
    return "loaded" if path.resolve() in {one.resolve() for one in imported.mapped} else "there"


def _recorded(path: Path, imported: Imported) -> str:
    for one in imported.distributions:
        if path.is_relative_to(one.root):
            expected = _hashes(one.record).get(path.relative_to(one.root).as_posix())
            if expected:
                raw = urlsafe_b64encode(bytes.fromhex(sha256(path))).decode().rstrip("=")
                return "same" if raw == expected else "changed"
    return "unknown"


def _hashes(record: Path) -> dict[str, str]:
    """Path -> SHA-256 (URL-safe base64) by the RECORD of an installation; empty where it cannot be read."""
    try:
        with (record / "RECORD").open(encoding="utf-8", errors="replace", newline="") as file:
            return parse_record(file.read(64 << 20))
    except OSError:
        return {}


def parse_record(text: str) -> dict[str, str]:
    """Path -> SHA-256 of a RECORD file; lines that are none are left out."""
    found = {}
    try:
        for row in csv.reader(text.splitlines()):
            if len(row) >= 2 and row[1].startswith("sha256="):
                found[row[0]] = row[1].removeprefix("sha256=").rstrip("=")
    except csv.Error:
        pass
    return found


def _covered(files: Sequence[Held], arch: Arch) -> tuple[list[Problem], list[str]]:
    """What lacks code for the GPU: a problem where it is needed, a note where only some kernels need it."""
    with_code = [file for file in files if file.coverage is not None and file.role != "left out"]
    if not with_code:
        if any(file.damage for file in files):
            return [], []
        what = "the package holds no GPU code at all" if files else "the package holds no compiled file"
        return [Problem("no_code", what, "is it the package that holds the kernels? a CPU build has none")], []
    # What is loaded at import is needed. The rest may be kernels for other GPUs, which are loaded when they are called.
    needed = [file for file in with_code if file.role in ("chosen", "loaded")] or with_code
    lacking = [file for file in needed if file.coverage and not file.coverage.any]
    problems, notes = [], []
    if any(file.role != "there" for file in needed) or len(lacking) == len(needed):
        for file in lacking:
            held = ", ".join(map(str, file.targets))
            problems.append(
                Problem(
                    "no_code",
                    f"{file.path} holds no code for {arch}: {held or 'only intermediate code'}",
                    f"build it for {arch} (eagle3ops --job build --set stages.build.arch={arch}), or install a build "
                    "that has it",
                )
            )
    for file in with_code:
        part = file.coverage
        assert part is not None
        if not part.any:
            if not any(str(file.path) in problem.what for problem in problems):
                notes.append(f"{file.path.name}: nothing for {arch}; what needs it fails when it is called")
        elif part.native < part.total:
            rest = part.total - part.native - part.compiled
            ptx = f", {part.compiled} as PTX that the driver compiles at the first start" if part.compiled else ""
            none = f", {rest} not at all" if rest else ""
            notes.append(f"{file.path.name}: {part.native} of {part.total} fat binaries for {arch}{ptx}{none}")
    return problems, notes


def _phantoms(imported: Imported, files: Sequence[Held], built: Built) -> list[Problem]:
    """Libraries that were built, and are not the ones that are imported."""
    first = imported.first
    assert first is not None
    package, problems = imported.package, []
    for library in built.libraries:
        top, _, rest = library.name.partition("/")
        if top.partition(".")[0] != package:
            continue
        place = first.places[0] / rest if rest and first.places else first.origin
        if place is not None and place.is_file():
            if place.stat().st_size == library.size and sha256(place) == library.sha256:
                continue
            age = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(place.stat().st_mtime))
            what = f"{place} is imported, a file of {age}, and not {library.name} as it was built"
        else:
            what = f"{library.name} was built, and {first.folder} is imported, where it is not"
        problems.append(
            Problem("phantom", f"{what}; it is found by {way(imported, first)}", _unshadow(imported, built))
        )
    if not any(library.name.partition("/")[0].partition(".")[0] == package for library in built.libraries):
        what = f"{built.path.name} holds no compiled file of {package}"
        problems.append(Problem("phantom", what, "is that the package that was built? name it with --package"))
    return problems


def _unshadow(imported: Imported, built: Built) -> str:
    first, install = imported.first, f"{imported.python} -m pip install --no-deps --force-reinstall {built.path}"
    assert first is not None
    by = way(imported, first)
    editable = [one.name for one in imported.distributions if one.editable]
    if editable and ("hook" in by or ".pth" in by):
        return f"{imported.python} -m pip uninstall {' '.join(editable)}, then {install}"
    if ".pth" in by or "PYTHONPATH" in by:
        return f"take {first.folder} off the way ({by}), then {install}"
    if imported.others:
        return f"delete or rename {first.folder}, which comes before {imported.others[0].folder}; then {install}"
    return install


def _notes(imported: Imported, files: Sequence[Held]) -> list[str]:
    notes = []
    first = imported.first
    assert first is not None
    notes += [
        f"{other.folder} has the same name and is never imported: {first.folder} comes before it"
        for other in imported.others
    ]
    if len(imported.distributions) > 1:
        named = ", ".join(f"{one.name} {one.version}" for one in imported.distributions)
        notes.append(f"several distributions claim {imported.package}: {named}; what one installs, another overwrites")
    for one in imported.distributions:
        if first.folder.is_relative_to(one.root):
            continue
        if one.editable:
            notes.append(f"{one.name} {one.version} is installed editable: what is imported is a source folder")
        else:
            notes.append(f"{one.name} {one.version}, installed in {one.root}, is not what is imported")
    notes += [
        f"{file.path} is not the file that was installed: its RECORD names another content"
        for file in files
        if file.record == "changed"
    ]
    for file in files:
        other = disagreement(file.path, file.targets)
        if other is not None:
            notes.append(f"{file.path.name}: {other}")
    if imported.error:
        notes.append(f"the import failed, so what it loads is told by names: {imported.error}")
    return notes


def lines(proof: Proof) -> list[str]:
    """The proof for a person."""
    imported, first = proof.imported, proof.imported.first
    told = []
    if first is not None:
        told.append(f"{imported.package} is imported from {first.folder}, by {way(imported, first)}")
        told += [
            f"  of {one.name} {one.version}{' (editable)' if one.editable else ''}"
            for one in imported.distributions
            if one.editable or first.folder.is_relative_to(one.root)
        ]
    for file in proof.files:
        share = ""
        if file.coverage is not None and proof.arch is not None:
            share = f"; {proof.arch}: {file.coverage.native} of {file.coverage.total}"
            if file.coverage.compiled:
                share += f", {file.coverage.compiled} more by PTX"
        role = {"loaded": "loaded, ", "chosen": "taken, ", "left out": "not taken, "}.get(file.role, "")
        held = ", ".join(f"{code} x{count}" for code, count in file.targets.items()) or "no GPU code"
        where = file.path
        if first is not None and first.places and file.path.is_relative_to(first.places[0]):
            where = file.path.relative_to(first.places[0])
        told.append(f"  {where}: {role}{held}{share}")
    told += [f"  note: {note}" for note in proof.notes]
    for problem in proof.problems:
        told += [f"{problem.code}: {problem.what}", f"  -> {problem.remedy}"]
    return told
