"""What is kept of a build, and does it still hold?"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eagle3ops.building.built import Built
from eagle3ops.building.imported import ask
from eagle3ops.building.preflight import Wanted
from eagle3ops.building.proof import Proof
from eagle3ops.building.sources import read_source
from eagle3ops.errors import Eagle3opsError


def result_of(wanted: Wanted, built: Built, proof: Proof | None) -> dict[str, Any]:
    """What `build.json` holds."""
    paths = [] if proof is None else [file.path for file in proof.files]
    imported = [
        {"path": str(path), "bytes": path.stat().st_size, "modified_ns": path.stat().st_mtime_ns} for path in paths
    ]
    return {
        "source": str(wanted.source.folder),
        "marks": wanted.source.marks,
        "python": wanted.python.path,
        "arch": str(wanted.arch) if wanted.arch else None,
        "wheel": built.path.name,
        "built": time.time(),
        "libraries": [{"name": one.name, "sha256": one.sha256, "bytes": one.size} for one in built.libraries],
        "imported": imported,
        "proof": proof.as_json() if proof is not None else None,
    }


def changed(result: Mapping[str, Any]) -> str | None:
    """Why a finished build has to be done again: its sources, or what it installed, are no longer what they were."""
    try:
        source = read_source(Path(str(result["source"])))
        if source.marks != result["marks"]:
            return f"the sources in {source.folder} have changed"
        proof = result["proof"]
        for file in result["imported"]:
            status = Path(file["path"]).stat()
            if (status.st_size, status.st_mtime_ns) != (file["bytes"], file["modified_ns"]):
                return f"{file['path']} is another file by now"
        if proof is not None:
            found = ask(str(result["python"]), str(proof["package"]), variables=dict(result["variables"]))
            at = None if found.first is None else str(found.first.folder)
            if at != proof["imported_from"]:
                return f"{proof['package']} is imported from {at} by now, and was from {proof['imported_from']}"
    except FileNotFoundError as error:
        return f"{error.filename} is gone"
    except (OSError, Eagle3opsError) as error:
        return str(error).splitlines()[0]
    except (KeyError, TypeError, ValueError) as error:
        return f"what is known of it is damaged: {error}"
    return None
