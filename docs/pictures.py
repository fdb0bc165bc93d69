"""Make the pictures of the documentation: the real console, on a real run, room by room.

    make demo pictures
    .venv/bin/python docs/pictures.py --root demo --run last --telemetry live --only bench wiring

What is on them is what the console shows, but for names: the root is called /data/eagle3ops and the machine gpu1,
wherever they were made, and it is always a few minutes after the run ended. The GPUs are played back from what
`eagle3ops telemetry record` wrote down on a machine that has some.
"""

import argparse
import asyncio
import os
import platform
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

HERE = Path(__file__).resolve().parent
# The stage that the tests of screens use, too.
sys.path[:0] = [str(HERE), str(HERE.parent / "tests" / "screens")]

from screen_text import shown  # noqa: E402
from snapshots import settled  # noqa: E402
from stage import staged, still  # noqa: E402
from svg import svg  # noqa: E402
from textual.pilot import Pilot  # noqa: E402

from eagle3ops import locations  # noqa: E402
from eagle3ops.errors import Eagle3opsError, RequestError  # noqa: E402
from eagle3ops.runs.ledger import Ledger  # noqa: E402
from eagle3ops.screens.app import ConsoleApp  # noqa: E402
from eagle3ops.screens.rooms import ROOMS  # noqa: E402
from eagle3ops.telemetry.recording import Player  # noqa: E402
from eagle3ops.telemetry.sampler import Sampler  # noqa: E402

SIZE = (120, 36)
LATER_S = 260.0
"""After the end of the run, its pictures are taken."""
MOST_BYTES = 150_000
LOOKS = 12
"""Samples of this machine, half a second apart, where no recording is played."""
RECORDING = HERE / "pictures" / "two-gpus.jsonl.gz"
"""Two H200s at a training whose ranks wait for each other in different collectives: one is busy with it, one idle."""


@dataclass(frozen=True, slots=True)
class Picture:
    """One file: a room, what is pressed there, and the words that have to be there by then."""

    name: str
    room: str
    keys: Sequence[str] = ()
    words: Sequence[str] = ()
    what: str = ""


MORE = (
    Picture("metrics", "run", ["m"], ["loss"], "What the training says of itself"),
    Picture("help", "overview", ["question_mark"], ["search: a key"], "Every key, and what it does"),
    Picture("palette", "overview", ["ctrl+p"], ["Search for commands"], "The command palette"),
)
"""Pictures of more than a room as it opens."""


def pictures() -> list[Picture]:
    """One of each room, and some more; rooms that come later are in the table, and so are here."""
    rooms = [Picture(entry.name, entry.name, what=f"{entry.label}: {entry.what}") for entry in ROOMS]
    return [*rooms, *MORE]


async def take(
    root: Path, run: str, samples: Sequence[Mapping[str, Any]], wanted: Iterable[Picture], out: Path
) -> None:
    """Open the console and go from room to room.

    Raises:
        RequestError: there is no such run, or it has not ended.
    """
    run_id, ended = _find(root, run)
    app = staged(root, samples, names=_names(), clock=ended + LATER_S)
    async with app.run_test(size=SIZE) as pilot:
        await _until(pilot, lambda: app.runs.rows is not None)
        app.runs.select(run_id)
        await _until(pilot, lambda: app.runs.detail is not None and app.runs.selected == run_id)
        for picture in wanted:
            await app.action_room(picture.room)
            await _rest(pilot)
            for key in picture.keys:
                await pilot.press(key)
                await pilot.pause(0.2)
            await _until(pilot, lambda words=picture.words: all(word in shown(app) for word in words))
            still(app)
            await _rest(pilot)
            file = out / f"{picture.name}.svg"
            text = svg(app.screen._compositor.render_strips(), SIZE[0], f"eagle3ops, {picture.what}", _ground(app))
            await asyncio.to_thread(file.write_text, text, encoding="utf-8")
            _say(f"{file}: {len(text) / 1000:.0f} kB" + ("  TOO LARGE" if len(text) > MOST_BYTES else ""))
            while app.screen.is_modal:
                await pilot.press("escape")
                await pilot.pause(0.2)


def _find(root: Path, run: str) -> tuple[str, float]:
    rows = [row for row in Ledger(root).runs() if row.ended is not None]
    if run != "last":
        rows = [row for row in rows if run in row.run_id]
    if not rows:
        raise RequestError(
            f"{root}: no run that has ended{'' if run == 'last' else f' is called {run}'}", remedy="make demo"
        )
    # The one with most stages: a demo is followed by tries of single jobs.
    row = max(rows, key=lambda one: (len(one.stages), one.ended))
    return row.run_id, float(row.ended or 0.0)


def _names() -> dict[str, str]:
    """What is this machine's own and on nobody's picture, longest first."""
    names = {
        str(locations.cache()): "/data/cache",
        sys.executable: "/opt/eagle3ops/bin/python",
        sys.prefix: "/opt/eagle3ops",
        str(HERE.parent): "/opt/eagle3ops/src",
        str(Path.home()): "/home/me",
        f'.{platform.node()}"': '.gpu1"',
    }
    return dict(
        sorted(((real, called) for real, called in names.items() if len(real) > 2), key=lambda one: -len(one[0]))
    )


async def _until(pilot: "Pilot[int]", condition: Any, patience_s: float = 60.0) -> None:
    for _ in range(int(patience_s / 0.1)):
        if pilot.app._exception is not None:
            raise pilot.app._exception
        if condition():
            return
        await pilot.pause(0.1)
    raise RequestError(f"what was waited for did not come:\n{shown(pilot.app)}")


async def _rest(pilot: "Pilot[int]") -> None:
    """Until all is read, and nothing changes any more."""
    await pilot.pause(0.4)
    await _until(pilot, lambda: "Reading " not in shown(pilot.app))
    await settled(pilot)


def _ground(app: ConsoleApp) -> str:
    return str(app.theme_variables.get("background", "#121212"))[:7]


def _samples(recording: Path) -> Sequence[Mapping[str, Any]]:
    if recording != Path("live"):
        return list(Player(recording))
    sampler = Sampler(interval_s=0.5)
    found = []
    for _ in range(LOOKS):
        found.append(sampler.sample())
        time.sleep(0.5)
    sampler.close()
    return found


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")


def main() -> int:
    """Returns an exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path("demo"), help="where the run is (demo)")
    parser.add_argument("--run", default="last", help="id, or a part of it; otherwise the last whole one")
    parser.add_argument(
        "--telemetry", type=Path, default=RECORDING, help="a recording to play; `live` looks at this machine instead"
    )
    parser.add_argument("--out", type=Path, default=HERE / "pictures", help="(docs/pictures)")
    parser.add_argument("--only", nargs="+", metavar="NAME", default=[], help="these pictures only")
    args = parser.parse_args()
    known = pictures()
    if unknown := set(args.only) - {picture.name for picture in known}:
        parser.error(f"no such picture: {', '.join(sorted(unknown))}; there are {', '.join(one.name for one in known)}")
    os.environ["TZ"] = "UTC"
    time.tzset()
    args.out.mkdir(parents=True, exist_ok=True)
    wanted = [picture for picture in known if not args.only or picture.name in args.only]
    try:
        with TemporaryDirectory() as own:
            # Not with the settings of whoever makes them.
            os.environ["EAGLE3OPS_CONFIG"] = own
            asyncio.run(take(args.root.resolve(), args.run, _samples(args.telemetry), wanted, args.out))
    except Eagle3opsError as error:
        _say(str(error))
        return int(error.exit_code)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
