"""Can there be runs below this root, and if not, what is in the way?

A root that is not there yet is a good one: the first run makes it. What is there and is no folder that can be read must
not look like a root without runs.
"""

import errno
import os
import shlex
import stat
from pathlib import Path

from eagle3ops.errors import RequestError

_ANOTHER = "give another folder with --root or EAGLE3OPS_ROOT"


def require_root(root: Path) -> None:
    """Refuse a root below which no runs can be read. Changes nothing.

    Raises:
        RequestError: it is a file, a link that leads nowhere, or a folder that may not be read; names it.
    """
    for folder in (root, root / "runs"):
        if not _is_there(root, folder):
            return
    try:
        with os.scandir(root / "runs"):
            pass
    except OSError as error:
        raise unreadable(root, error) from error


def unreadable(root: Path, error: OSError) -> RequestError:
    """What an error of the file system says of a root."""
    where = _named(root, Path(error.filename or root))
    what = f"{where} cannot be read ({os.strerror(error.errno or 0)})"
    if error.errno in (errno.EACCES, errno.EPERM):
        return RequestError(what, remedy=f"change its permissions (ls -ld {shlex.quote(str(root))}), or {_ANOTHER}")
    return RequestError(what, remedy=f"is its disk mounted? Or {_ANOTHER}")


def _is_there(root: Path, folder: Path) -> bool:
    """Whether a folder is there; False when it may still be made."""
    try:
        if stat.S_ISDIR(os.stat(folder).st_mode):
            return True
        raise RequestError(f"{_named(root, folder)} is a file, not a folder", remedy=_ANOTHER)
    except FileNotFoundError:
        _refuse_dangling(root, folder)
        return False
    except NotADirectoryError as error:
        file = next(place for place in folder.parents if os.path.lexists(place))
        raise RequestError(f"{_named(root, file)} is a file, not a folder", remedy=_ANOTHER) from error
    except OSError as error:
        if error.errno == errno.ELOOP:
            what = f"{_named(root, folder)} is a link that leads back to itself"
            raise RequestError(what, remedy=f"mend the link, or {_ANOTHER}") from error
        raise unreadable(root, error) from error


def _refuse_dangling(root: Path, folder: Path) -> None:
    """Nothing may be made through a link whose end is not there: it may be on a disk that is not mounted now."""
    place = next((place for place in (folder, *folder.parents) if os.path.lexists(place)), folder)
    if os.path.islink(place) and not os.path.exists(place):
        raise RequestError(
            f"{_named(root, place)} is a link to {os.readlink(place)}, which is not there",
            remedy=f"is its disk mounted? Mend the link, or {_ANOTHER}",
        )


def _named(root: Path, place: Path) -> str:
    return f"root {root}" if place == root else f"root {root}: {place}"
