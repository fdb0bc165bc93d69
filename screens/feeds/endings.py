"""Which runs that were seen going on have ended, and who is told?"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from eagle3ops.errors import Eagle3opsError
from eagle3ops.runs.redact import redact
from eagle3ops.screens.feeds.watching import RunRow
from eagle3ops.words import plain

GOING_ON = frozenset({"running", "created"})
GOOD = frozenset({"done"})


@dataclass(slots=True)
class Endings:
    """Compares one reading of the runs with the one before."""

    _going: set[str] = field(default_factory=set)

    def take(self, rows: Sequence[RunRow]) -> list[RunRow]:
        """The runs that were going on when last seen, and are not any more; each is returned once."""
        ended = [row for row in rows if row.run_id in self._going and row.status not in GOING_ON]
        self._going -= {row.run_id for row in ended}
        self._going |= {row.run_id for row in rows if row.status in GOING_ON}
        return ended


def environment(row: RunRow, host: str) -> dict[str, str]:
    """What the command learns of a run that has ended."""
    return {
        "EAGLE3OPS_RUN": plain(row.run_id),
        "EAGLE3OPS_NAME": row.name,
        "EAGLE3OPS_STATUS": row.status,
        "EAGLE3OPS_HOST": plain(host),
    }


async def run_command(argv: Sequence[str], told: Mapping[str, str], timeout_s: float) -> None:
    """Run the user's command, without a shell and in a session of its own.

    Raises:
        Eagle3opsError: it cannot be started, exits non-zero, or takes too long; it is ended then.
    """
    name = plain(argv[0])
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            env={**os.environ, **told},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise Eagle3opsError(f"{name}: cannot be started: {plain(reason)}", remedy="see notify.command") from error
    try:
        async with asyncio.timeout(timeout_s):
            _, errors = await process.communicate()
    except TimeoutError as error:
        raise Eagle3opsError(f"{name}: took longer than {timeout_s:g} s and was ended") from error
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if process.returncode != 0:
        lines = errors.decode("utf-8", "replace").strip().splitlines()
        last = f": {redact(plain(lines[-1]))[:200]}" if lines else ""
        raise Eagle3opsError(f"{name}: exit code {process.returncode}{last}")
