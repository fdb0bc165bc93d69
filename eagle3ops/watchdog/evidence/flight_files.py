"""Where do the records of NCCL's flight recorder lie, and what is put into the dossier of them?"""

import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from eagle3ops.watchdog.evidence import flight
from eagle3ops.watchdog.evidence.patience import ask_each

VARIABLES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
"""Where torch is told the beginning of the files' names; the second is the older one."""
LAST = 20
"""Collectives of a group that are told of each rank."""
_EACH_S = 25.0


def find_records(folder: Path | None, prefixes: Iterable[str]) -> list[tuple[int, Path]]:
    """(rank, file) of the records in a folder, or that begin with one of the prefixes torch was given.

    Blocks where the folder does: to be asked with patience.
    """
    found: dict[int, Path] = {}
    places = [(folder, "")] if folder is not None else []
    places += [(Path(prefix).parent, Path(prefix).name) for prefix in prefixes]
    for place, beginning in places:
        try:
            names = sorted(path.name for path in place.iterdir())[:100_000]
        except OSError:
            continue
        for name in names:
            rank = re.fullmatch(r"(?:.*\D)?([0-9]{1,6})(?:\.(?:json|pkl|pickle))?", name)
            if rank and name.startswith(beginning) and len(found) < flight.MOST_RANKS:
                found.setdefault(int(rank[1]), place / name)
    return sorted(found.items())


def read_all(
    found: Sequence[tuple[int, Path]], *, oldest: float, until: float
) -> tuple[dict[int, list[flight.GroupRecord]], list[str]]:
    """What the files hold, by rank, and what could not be read and why.

    Args:
        found: (rank, file).
        oldest: seconds since 1970; a file from before that was left by an earlier run.
        until: `time.monotonic()` at which it has to be over.
    """

    def read(item: tuple[int, Path]) -> list[flight.GroupRecord]:
        info = item[1].stat()
        # The beginning of the name comes from the processes: what it leads to may be a device, or a pipe.
        if not stat.S_ISREG(info.st_mode):
            raise ValueError("no ordinary file")
        if info.st_mtime < oldest:
            raise ValueError("left by an earlier run")
        with item[1].open("rb") as file:
            return flight.read_record(file.read(flight.FILE_BYTES + 1))

    answers = list(zip(found, ask_each(found, read, each_s=_EACH_S, until=until, at_once=2), strict=True))
    missing = [f"{item[1]}: {answer.missing}" for item, answer in answers if answer.missing]
    return {item[0]: answer.value for item, answer in answers if answer.value is not None}, missing


def as_json(
    found: Sequence[tuple[int, Path]],
    records: Mapping[int, Sequence[flight.GroupRecord]],
    verdicts: Sequence[flight.Verdict],
) -> dict[str, Any]:
    """For a file: not all that was recorded, but the end of it."""
    return {
        "files": {str(rank): str(path) for rank, path in found},
        "ranks": {
            str(rank): [
                {
                    "group": one.group,
                    "enqueued": one.enqueued,
                    "completed": one.completed,
                    "last": [str(one.collectives[number]) for number in sorted(one.collectives)[-LAST:]],
                }
                for one in groups
            ]
            for rank, groups in records.items()
        },
        "verdicts": [
            {"group": one.group, "words": one.words, "blamed": list(one.blamed), "silent": list(one.silent)}
            for one in verdicts
        ],
    }
