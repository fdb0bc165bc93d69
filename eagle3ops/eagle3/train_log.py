"""Where do a training's numbers go? To a file of its own, to TensorBoard's event files and to the caller.

`metrics.jsonl` holds one JSON object a line: step, name, value. After a resume, lines beyond the step that training
goes on from are dropped, so the file reads as if it had never been interrupted.
"""

import json
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from tensorboardX import SummaryWriter

from eagle3ops.eagle3.durable import write_bytes_durably


class TrainLog:
    """Numbers of one training; used as a context manager."""

    def __init__(self, out: Path, step: int, metric: Callable[[str, float, int | None], None]) -> None:
        """Open `out/metrics.jsonl` and `out/tensorboard` to go on after `step` steps."""
        path = out / "metrics.jsonl"
        kept = [line for line in _lines(path) if _step(line) <= step]
        write_bytes_durably(path, b"".join(line + b"\n" for line in kept))
        self._file = path.open("a", encoding="utf-8")
        self._events = SummaryWriter(str(out / "tensorboard"), purge_step=step + 1 if step else None)
        self._metric = metric

    def add(self, step: int, values: dict[str, float]) -> None:
        """Record values after `step` steps."""
        for name, value in values.items():
            self._file.write(json.dumps({"step": step, "name": name, "value": value}) + "\n")
            self._events.add_scalar(name, value, step)
            self._metric(name, value, step)
        self._file.flush()

    def __enter__(self) -> "TrainLog":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        self._events.close()


def _lines(path: Path) -> list[bytes]:
    return path.read_bytes().split(b"\n")[:-1] if path.exists() else []


def _step(line: bytes) -> int:
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        # A line that a kill has cut: drop it with those that are too new.
        return 1 << 62
