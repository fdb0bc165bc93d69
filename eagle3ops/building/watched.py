"""How does a build program run to its end, telling how far it is, and why it failed?"""

import asyncio
import contextlib
import time
from collections.abc import Mapping
from pathlib import Path

from eagle3ops.building.explain import failure
from eagle3ops.building.progress import BuildWatch
from eagle3ops.runs.context import Context
from eagle3ops.telemetry.cgroup import read_cgroup

_POLL_S = 0.3


async def watched(ctx: Context, argv: list[str], role: str, variables: Mapping[str, str], jobs: int) -> int:
    """Run a program to its end and tell how far it is; the byte of its log at which it began.

    Raises:
        Eagle3opsError: it failed.
    """
    log = ctx.run_dir / "logs" / f"{role}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    begin = log.stat().st_size if log.exists() else 0
    kills = read_cgroup()["oom_kills"] or 0
    watch, tail, phase = BuildWatch(), Tail(log, begin), ""
    async with ctx.spawn(argv, role=role, env=variables) as process:
        ended = False
        while not ended:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), _POLL_S)
                ended = True
            now = time.monotonic()
            for line in tail.lines():
                watch.feed(line, now)
            if watch.phase != phase:
                phase = watch.phase
                ctx.info(f"{phase}{f': {watch.current}' if watch.current else ''}")
            if watch.total is not None:
                ctx.progress(watch.done, watch.total, watch.phase)
                left = watch.seconds_left(now)
                if left is not None:
                    ctx.metric("seconds_left", round(left, 1))
    if process.returncode != 0:
        more = (read_cgroup()["oom_kills"] or 0) - kills
        raise await asyncio.to_thread(
            failure, ctx.run_dir, log.name, begin, code=process.returncode, jobs=jobs, oom_kills=max(0, more)
        )
    return begin


class Tail:
    """The whole lines that were added to a file since the last look."""

    def __init__(self, path: Path, begin: int) -> None:
        self._path, self._at, self._rest = path, begin, b""

    def lines(self) -> list[str]:
        """Those lines; a carriage return ends one, too, as progress bars write it."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._at)
                more = file.read(8 << 20)
        except OSError:
            return []
        self._at += len(more)
        *whole, rest = (self._rest + more).replace(b"\r", b"\n").split(b"\n")
        # What never ends is no line.
        self._rest = rest[-(1 << 16) :]
        return [line[:4096].decode("utf-8", "replace") for line in whole]
