"""A machine with toy GPUs for the leases: `python lease_world.py NAME WANTED FILE [inherit]` takes some and waits.

FILE says what the driver would: a list of {"index", "uuid", "processes", "total", "used"}. It is read again each time,
as the driver would be asked again. With `inherit`, a child is started that inherits the locks and outlives its parent.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from eagle3ops.errors import Eagle3opsError
from eagle3ops.runs import leases
from eagle3ops.runs.directory import RunDirectory
from eagle3ops.telemetry.gpus import GpuFacts, GpuProcess

FILE_VARIABLE = "TOY_GPUS"


def write_gpus(path: Path, count: int, **changes: dict[str, Any]) -> Path:
    """Describe `count` GPUs; `gpu1={...}` changes one of them."""
    gpus = []
    for index in range(count):
        gpu = {"index": index, "uuid": f"GPU-{index:04d}-toy", "processes": [], "total": 80 << 30, "used": 1 << 30}
        gpus.append(gpu | changes.get(f"gpu{index}", {}))
    partial = path.with_suffix(".tmp")
    partial.write_text(json.dumps(gpus))
    partial.replace(path)
    return path


def look(path: Path) -> list[GpuFacts]:
    """What the driver says."""
    return [
        GpuFacts(
            index=gpu["index"],
            uuid=gpu["uuid"],
            name="Toy",
            memory_total=gpu["total"],
            pci_bus_id=None,
            processes=tuple(GpuProcess(**process) for process in gpu["processes"]),
            memory_used=gpu["used"],
        )
        for gpu in json.loads(path.read_text())
    ]


def memory_used(path: Path, indices: list[int]) -> dict[int, int]:
    """Bytes in use, by GPU."""
    return {gpu["index"]: gpu["used"] for gpu in json.loads(path.read_text()) if gpu["index"] in indices}


def main() -> None:
    """Take leases, say which on standard output, and wait to be killed or for the end of standard input."""
    name, wanted, gpus = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    run = RunDirectory(Path("/toy/runs") / name)
    try:
        held = leases.acquire(wanted, run, look=lambda: look(gpus), wait_s=0.0)
    except Eagle3opsError as error:
        sys.stdout.write(json.dumps({"refused": error.what}) + "\n")
        return
    found: dict[str, Any] = {"gpus": [gpu.index for gpu in held.gpus] if held else None}
    if held is not None:
        found |= {"environment": held.environment(), "notes": held.notes}
        if "inherit" in sys.argv:
            for _, lock in held._locks:
                os.set_inheritable(lock.fileno(), True)
            child = subprocess.Popen(
                ["sleep", "3600"], close_fds=False, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL
            )
            found["child"] = child.pid
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()
    sys.stdin.read()
    if held is not None:
        held.release()
        sys.stdout.write("released\n")
        sys.stdout.flush()
    time.sleep(0)


if __name__ == "__main__":
    main()
