"""Where do runs, downloads, the user's settings and crash reports live?"""

import os
import tempfile
from pathlib import Path

from eagle3ops.errors import Eagle3opsError, RequestError


def expanded(path: str | Path) -> Path:
    """The path with its `~` filled in; one of a user whom nobody knows stays as it stands, and is then not found."""
    return Path(os.path.expanduser(path))


def _folder(chosen: str | Path) -> Path:
    """A folder that may be made: a folder of the name `~anna` must not come into being here."""
    folder = os.path.expanduser(chosen)
    if folder.startswith("~"):
        who = folder[1:].partition("/")[0]
        raise RequestError(f"{folder}: the home folder of {who or 'this user'} is not known", remedy="write it out")
    return Path(folder).absolute()


def root(given: str | Path | None = None) -> Path:
    """Folder of runs, stage outputs and the ledger: `given`, else $EAGLE3OPS_ROOT, else the user's data folder."""
    chosen = given or os.environ.get("EAGLE3OPS_ROOT")
    if chosen:
        return _folder(chosen)
    import platformdirs

    return Path(platformdirs.user_data_dir("eagle3ops", appauthor=False))


def cache() -> Path:
    """Folder of what can be fetched or built again: $EAGLE3OPS_CACHE, else the user's cache folder."""
    chosen = os.environ.get("EAGLE3OPS_CACHE")
    if chosen:
        return _folder(chosen)
    import platformdirs

    return Path(platformdirs.user_cache_dir("eagle3ops", appauthor=False))


def config_folder() -> Path:
    """Folder of the user's settings: $EAGLE3OPS_CONFIG, else the usual place of the system."""
    chosen = os.environ.get("EAGLE3OPS_CONFIG")
    if chosen:
        return _folder(chosen)
    import platformdirs

    return Path(platformdirs.user_config_dir("eagle3ops", appauthor=False))


def crash_folder() -> Path:
    """Folder of the reports that a crashed console leaves: below $EAGLE3OPS_STATE, else the user's folder of logs."""
    chosen = os.environ.get("EAGLE3OPS_STATE")
    if chosen:
        return _folder(chosen) / "crashes"
    import platformdirs

    return Path(platformdirs.user_log_dir("eagle3ops", appauthor=False)) / "crashes"


def state_folder() -> Path:
    """Folder of what the console keeps between two times: $EAGLE3OPS_STATE, else the usual place of the system."""
    chosen = os.environ.get("EAGLE3OPS_STATE")
    if chosen:
        return _folder(chosen)
    import platformdirs

    return Path(platformdirs.user_state_dir("eagle3ops", appauthor=False))


def require_writable(folder: Path) -> None:
    """Create `folder` and prove that a file can be written there.

    Raises:
        Eagle3opsError: it cannot, with the reason.
    """
    from eagle3ops.runs.files import explain_os_error

    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"eagle3ops")
            file.flush()
    except OSError as error:
        raise explain_os_error(error, folder) or Eagle3opsError(f"{folder}: cannot be written: {error}") from error
