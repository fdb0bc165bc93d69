"""Where do runs and downloads live?"""

import os
import tempfile
from pathlib import Path

from eagle3ops.errors import Eagle3opsError


def root(given: str | Path | None = None) -> Path:
    """Folder of runs, stage outputs and the ledger: `given`, else $EAGLE3OPS_ROOT, else the user's data folder."""
    chosen = given or os.environ.get("EAGLE3OPS_ROOT")
    if chosen:
        return Path(chosen).expanduser().absolute()
    import platformdirs

    return Path(platformdirs.user_data_dir("eagle3ops", appauthor=False))


def cache() -> Path:
    """Folder of what can be fetched or built again: $EAGLE3OPS_CACHE, else the user's cache folder."""
    chosen = os.environ.get("EAGLE3OPS_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    import platformdirs

    return Path(platformdirs.user_cache_dir("eagle3ops", appauthor=False))


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
