"""What does torch say about itself and its GPUs? Run in a process of its own: it may hang, crash or take a minute.

Prints `MARK` and one JSON object. Torch is imported by the name given on the command line, so that the operations core
does not depend on it.
"""

import importlib
import json
import sys
import time
from typing import Any

MARK = "eagle3ops-torch:"


def look(name: str) -> dict[str, Any]:
    """Import the module and ask it."""
    began = time.perf_counter()
    torch = importlib.import_module(name)
    found: dict[str, Any] = {
        "version": str(torch.__version__),
        "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None),
        "import_seconds": round(time.perf_counter() - began, 2),
    }
    flags = getattr(torch._C, "_cuda_getArchFlags", None)
    found["archs"] = (flags() or "").split() if flags is not None else []
    found["available"] = bool(torch.cuda.is_available())
    found["devices"] = []
    if found["available"]:
        for index in range(torch.cuda.device_count()):
            found["devices"].append(list(torch.cuda.get_device_capability(index)))
        # The proof: a kernel runs on the first GPU and its result comes back.
        found["sum"] = float(torch.ones(8, device="cuda").sum().item())
        found["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
    return found


if __name__ == "__main__":
    try:
        answer = look(sys.argv[1])
    except Exception as error:  # noqa: BLE001  (the boundary: whatever it was is told to whoever asked)
        answer = {"error": f"{type(error).__name__}: {error}"[:2000]}
    sys.stdout.write(f"\n{MARK}{json.dumps(answer)}\n")
