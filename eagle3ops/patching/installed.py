"""Which patches does an engine have that runs with this Python?"""

import os
import shutil
import sys
from pathlib import Path

from eagle3ops.patching.transaction import Applied, Journal


def patches_of(root: Path, python: str | None) -> list[Applied]:
    """Those in the environment of an interpreter, as they stand now; of our own where it is None.

    Args:
        root: below which the journal stands.
        python: as the pipeline file names the engine's.
    """
    homes = environments(python)

    def inside(site: Path) -> bool:
        return bool(homes & {*site.parents, *_real(site).parents})

    return [one for one in Journal(root).standing() if inside(Path(one.site))]


def environments(python: str | None) -> set[Path]:
    """The folder in which an interpreter's environment lies, by its name and by where links lead.

    The interpreter itself is not followed: in a virtual environment it is a link to that of the system.
    """
    if python is None:
        return {Path(sys.prefix), _real(Path(sys.prefix))}
    found = Path(os.path.abspath(shutil.which(python) or python)).parent.parent
    return {found, _real(found)}


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))
