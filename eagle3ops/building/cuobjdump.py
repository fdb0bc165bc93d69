"""Does NVIDIA's own tool count the same code in a file? Asked where it is installed; nothing depends on it."""

import os
import re
import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from eagle3ops.building.architectures import Code
from eagle3ops.hosts.doctor.probing import MAX_OUTPUT, NoAnswer, run

_LARGEST = 128 << 20
_LIMIT_S = 20.0
_LISTED = re.compile(r"\.sm_(\d{2,3})[af]?\.cubin\s*$", re.MULTILINE | re.ASCII)


def parse_list(text: str) -> dict[str, int]:
    """Of `cuobjdump -lelf`: architecture -> cubins. It does not tell `sm_90a` from `sm_90`."""
    return dict(Counter(_LISTED.findall(text)))


def disagreement(path: Path, targets: Mapping[Code, int]) -> str | None:
    """How it counts otherwise; None where it counts the same, is not installed, or cannot say."""
    home = os.environ.get("CUDA_HOME")
    tool = (home and shutil.which(str(Path(home, "bin/cuobjdump")))) or shutil.which("cuobjdump")
    if not tool or not targets or path.stat().st_size > _LARGEST:
        return None
    try:
        ran = run([tool, "-lelf", str(path)], limit=_LIMIT_S)
    except (OSError, NoAnswer):
        return None
    if ran.code != 0 or len(ran.output) >= MAX_OUTPUT:
        return None
    ours: Counter[str] = Counter()
    for code, count in targets.items():
        if not code.ptx:
            ours[code.arch.plain.digits] += count
    theirs = parse_list(ran.output)
    if theirs == ours:
        return None
    return f"cuobjdump counts {_told(theirs)}, and here {_told(ours)} were read"


def _told(counts: Mapping[str, int]) -> str:
    return ", ".join(f"sm_{number} x{count}" for number, count in sorted(counts.items())) or "nothing"
