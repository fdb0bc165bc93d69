"""Which GPUs does a run have, from its first stage that needs one to its end, and is their memory given back?"""

import time
from collections.abc import Callable, Mapping
from typing import Any

from eagle3ops.runs import leases
from eagle3ops.runs.directory import RunDirectory
from eagle3ops.runs.family import family
from eagle3ops.runs.job import Job
from eagle3ops.runs.planning import wanted_gpus
from eagle3ops.spec.models import Pipeline
from eagle3ops.telemetry.gpus import gpu_memory_used
from eagle3ops.words import human_bytes

RETURN_WAIT_S = 50.0
RETURN_TOLERANCE = 512 << 20
"""Bytes: contexts of the driver and of monitoring tools come and go."""

Note = Callable[[str, Mapping[str, Any], str | None], Any]
"""Writes an event: kind, data, stage."""


class GpuShare:
    """The leases of one run."""

    def __init__(self, run: RunDirectory, pipeline: Pipeline, note: Note) -> None:
        self._run = run
        self._pipeline = pipeline
        self._note = note
        self._held: leases.Held | None = None
        self._before: dict[int, int] = {}

    def environment(self) -> dict[str, str]:
        """What stages have to be told."""
        if not wanted_gpus(self._pipeline):
            # What was not leased is not used, not even by a library that takes what it finds.
            return {"CUDA_VISIBLE_DEVICES": ""}
        return self._held.environment() if self._held else {}

    def take(self, job: type[Job], *, forced: bool) -> None:
        """Lease GPUs if this stage uses them and none are held yet.

        Raises:
            Refused: others hold or use them.
        """
        count = wanted_gpus(self._pipeline)
        if self._held is not None or not job.uses_gpu or not count:
            return
        self._held = leases.acquire(count, self._run, own=lambda: set(family(self._run.path)), forced=forced)
        if self._held is None:
            return
        indices = [gpu.index for gpu in self._held.gpus]
        self._before = gpu_memory_used(indices)
        for text in self._held.notes:
            self._note("warn", {"text": text}, job.name)
        gpus = [{"index": gpu.index, "uuid": gpu.uuid, "name": gpu.name} for gpu in self._held.gpus]
        self._note("lease", {"state": "taken", "gpus": gpus, "used_bytes": self._before}, job.name)

    def refresh(self) -> None:
        """Called now and then while they are held."""
        if self._held is not None:
            self._held.refresh()

    def give_back(self) -> None:
        """Prove that the memory is free again, then let go. Nothing of the run may be alive any more."""
        held, self._held = self._held, None
        if held is None:
            return
        try:
            self._prove(held)
        finally:
            held.release()

    def _prove(self, held: leases.Held) -> None:
        began = time.monotonic()
        indices = [gpu.index for gpu in held.gpus]
        while True:
            used = gpu_memory_used(indices)
            # A GPU that does not answer any more is not one whose memory is back.
            kept = {i: used.get(i) for i in indices if i in self._before and not self._is_back(i, used.get(i))}
            waited = time.monotonic() - began
            if not kept or waited > RETURN_WAIT_S:
                break
            time.sleep(0.25)
        data: dict[str, Any] = {"used_bytes": used, "before_bytes": self._before, "waited_s": round(waited, 2)}
        if not kept:
            self._note("lease", {"state": "returned", **data}, None)
            return
        names = {gpu.index: [str(process) for process in gpu.processes] for gpu in leases.present()}
        words = [
            f"GPU {index}: {'it does not answer' if now is None else human_bytes(now - self._before[index]) + ' more'}"
            f" than before the run, held by {', '.join(names.get(index, [])) or 'nobody that the driver names'}"
            for index, now in kept.items()
        ]
        self._note("lease", {"state": "memory kept", **data, "holders": {i: names.get(i, []) for i in kept}}, None)
        self._note("warn", {"text": f"GPU memory is not back after {RETURN_WAIT_S:.0f} s: {'; '.join(words)}"}, None)

    def _is_back(self, index: int, now: int | None) -> bool:
        return now is not None and now <= self._before[index] + RETURN_TOLERANCE
