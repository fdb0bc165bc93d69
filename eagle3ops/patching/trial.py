"""Does changed source import? Tried in a process of its own, before anything is replaced.

The child imports the modules with the changed text in place of what is on the disk, by an import hook; the files
themselves are not touched.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from eagle3ops.errors import Eagle3opsError

TRIAL_S = 600.0
"""Importing an engine may take minutes on a cold disk."""

_CHILD = """
import importlib, importlib.abc, importlib.util, json, sys
told = json.load(sys.stdin)
sys.path.insert(0, told["site"])
class Changed(importlib.abc.MetaPathFinder, importlib.abc.SourceLoader):
    def find_spec(self, name, path=None, target=None):
        if name not in told["modules"]:
            return None
        file = told["files"][name]
        package = file.endswith("__init__.py")
        return importlib.util.spec_from_file_location(
            name, file, loader=self, submodule_search_locations=[file.rpartition("/")[0]] if package else None)
    def get_filename(self, name):
        return told["files"][name]
    def get_data(self, path):
        for name, file in told["files"].items():
            if file == path:
                return told["modules"][name].encode()
        raise OSError(path)
    def path_stats(self, path):
        raise OSError(path)
sys.dont_write_bytecode = True
sys.meta_path.insert(0, Changed())
for name in told["modules"]:
    importlib.import_module(name)
"""


class TrialFailed(Eagle3opsError):
    """The changed source does not import."""


def try_import(site: Path, python: Path, changed: Mapping[str, tuple[Path, str]], timeout_s: float = TRIAL_S) -> None:
    """Import modules as they would be.

    Args:
        site: the site-packages folder.
        python: the interpreter that the engine runs with.
        changed: module -> its file, and its text.

    Raises:
        TrialFailed: one of them does not import, with the last words of the traceback.
    """
    told = {
        "site": str(site),
        "modules": {name: text for name, (_, text) in changed.items()},
        "files": {name: file.as_posix() for name, (file, _) in changed.items()},
    }
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    try:
        done = subprocess.run(
            [str(python), "-c", _CHILD],
            input=json.dumps(told),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            env=environment | {"CUDA_VISIBLE_DEVICES": ""},
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise TrialFailed(f"importing {', '.join(changed)} took longer than {timeout_s:.0f} s") from error
    except OSError as error:
        raise TrialFailed(
            f"{python}: cannot be run: {error.strerror}", remedy="name the engine's interpreter with --python"
        ) from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or [f"exit code {done.returncode}"]
        raise TrialFailed(
            f"{', '.join(changed)} would not import: {lines[-1][:500]}",
            remedy="nothing was changed; does it import without the patch?",
        )


def interpreter_of(site: Path) -> Path:
    """The interpreter of the environment that a site-packages folder belongs to; this one where it has none."""
    for parent in site.parents:
        candidate = parent / "bin" / "python"
        if candidate.exists():
            return candidate
    return Path(sys.executable)
