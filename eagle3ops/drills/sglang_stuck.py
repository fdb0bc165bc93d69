"""How does a real SGLang hang while it starts? By its own switch for tests, in the phase that its watchdog is blind to.

Run as a module with `FOLDER LEAD`. EAGLE3OPS_SGLANG_PYTHON names a python that has SGLang (this
one, if it is empty), EAGLE3OPS_SGLANG_MODEL a model of any size. It runs on a CPU.
"""

import json
import os
import socket
import sys
import time
from pathlib import Path

STUCK_S = 3600


def main(folder: Path) -> None:
    """Become the server; a child waits for the sign that it hangs by now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        "SGLANG_USE_CPU_ENGINE": "1",
        "SGLANG_TEST_STUCK_SCHEDULER_INIT": str(STUCK_S),
        "HOME": str(folder),
        "OMP_NUM_THREADS": "1",
    }
    python = os.environ.get("EAGLE3OPS_SGLANG_PYTHON") or sys.executable
    options = ("--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch")
    more = ("--grammar-backend", "none", "--disable-overlap-schedule", "--skip-tokenizer-init")
    facts = {"fault_at": time.monotonic(), "pid": os.getpid(), "url": f"http://127.0.0.1:{port}"}
    new = folder / "ready.json.part"
    new.write_text(json.dumps(facts))
    new.rename(folder / "ready.json")
    # On a CPU it would take most of the machine's memory for its cache, by default.
    small = ("--max-total-tokens", "2048", "--context-length", "1024")
    argv = [python, "-m", "sglang.launch_server", "--model-path", os.environ["EAGLE3OPS_SGLANG_MODEL"]]
    os.execve(python, [*argv, "--host", "127.0.0.1", "--port", str(port), *options, *more, *small], environment)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
