"""A console on a stage: real screens, a real agent, real operations; but a root, a clock and GPUs that do not change.

For snapshots, which compare what is on the screen with what was there before, and for the pictures of the docs.
"""

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from failing import DONE as DONE
from failing import FAILED as FAILED
from failing import fail
from textual.widgets import Input

from eagle3ops.hosts.transport import Channel, Transport
from eagle3ops.runs.directory import RunDirectory
from eagle3ops.runs.notes import FIELDS, notes_file
from eagle3ops.screens.app import ConsoleApp
from eagle3ops.screens.feeds.machine import HZ
from eagle3ops.screens.feeds.machine_feed import MachineFeed
from eagle3ops.settings import resolve

CANNED = Path(__file__).with_name("canned")
"""What a run of the pipeline `tiny` left, without tensors; its root is called `SHOWN`."""
SHOWN = "/data/eagle3ops"
"""What the root is called on the screen, wherever it is."""
NOW = 1796029200.0
"""2026-11-30 09:00 UTC, an hour after the canned run."""


class Renamed:
    """A way to an agent on which every mention of one name is another: what a machine calls its folders is its own."""

    def __init__(self, transport: Transport, names: Mapping[str, str]) -> None:
        self.name = transport.name
        self._transport = transport
        self._names = [(real.encode(), shown.encode()) for real, shown in names.items()]

    async def open(self) -> Channel:
        """Start an agent."""
        return _RenamedChannel(await self._transport.open(), self._names)


class _RenamedChannel:
    def __init__(self, channel: Channel, names: list[tuple[bytes, bytes]]) -> None:
        self._channel, self._names = channel, names
        self._rest = b""

    async def read(self) -> bytes:
        """Whole lines, so that no name is torn."""
        while True:
            data = await self._channel.read()
            if not data:
                return b""
            whole, newline, self._rest = (self._rest + data).rpartition(b"\n")
            if newline:
                for real, shown in self._names:
                    whole = whole.replace(real, shown)
                return whole + newline

    async def write(self, data: bytes) -> None:
        """Send it, with the real names."""
        for real, shown in self._names:
            data = data.replace(shown, real)
        await self._channel.write(data)

    async def close(self) -> None:
        """End the connection."""
        await self._channel.close()

    def last_words(self) -> str:
        """What the agent said last."""
        return self._channel.last_words()


class StillFeed(MachineFeed):
    """Knows the samples that it was given, and finds them fresh."""

    stale = ""

    async def run(self) -> None:
        """Nothing comes by itself."""


def staged(
    root: Path,
    samples: Iterable[Mapping[str, Any]] = (),
    *,
    names: Mapping[str, str] | None = None,
    clock: float = NOW,
    **settings: Any,
) -> ConsoleApp:
    """A console on a root, as if it stood at `SHOWN`.

    Args:
        root: where the runs are.
        samples: telemetry that the machine is known by.
        names: more names that are called otherwise on the screen.
        clock: the time that it is, in seconds since 1970, and remains.
        settings: as on the command line.
    """
    app = ConsoleApp(SHOWN, resolved=resolve({"theme": "textual-dark"} | settings), clock=lambda: clock)
    app.link.transport = Renamed(app.link.transport, {str(root): SHOWN} | dict(names or {}))
    app.feed = StillFeed(app.link)
    for sample in samples:
        app.feed.machine.take(sample, 0.0)
    return app


def canned_root(folder: Path) -> Path:
    """A root with two runs, each with a note: one that is done, and one that failed."""
    root = folder / "root"
    for file in sorted(CANNED.rglob("*")):
        if file.is_file():
            place = root / file.relative_to(CANNED)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(file.read_text(encoding="utf-8").replace(SHOWN, str(root)), encoding="utf-8")
    fail(root / "runs")
    notes = {
        DONE: ("six epochs are enough to learn one style", "", "worth it only from two correct drafts on"),
        FAILED: ("ten times as long halves the loss", "train.epochs: 60", ""),
    }
    for at, (run_id, said) in enumerate(notes.items()):
        note = {"ts": NOW - 900.0 * (2 - at)} | dict(zip(FIELDS, said, strict=True))
        notes_file(RunDirectory(root / "runs" / run_id)).write_text(json.dumps(note) + "\n", encoding="utf-8")
    return root


def eight_gpus(count: int = 160) -> list[dict[str, Any]]:
    """Samples of a machine with eight busy GPUs, of which one stands still and one is throttled."""
    return [_sample(at) for at in range(count)]


def _sample(at: int) -> dict[str, Any]:
    mono = 1000.0 + at / HZ
    gpus = []
    for index in range(8):
        wave = 0.5 + 0.5 * math.sin(at / 9 + index)
        still = index == 5 and at > 60
        gpus.append(
            {
                "i": index,
                "uuid": f"GPU-{index}",
                "name": "NVIDIA H200",
                "state": "ok",
                "util": 0.0 if still else round(70 + 29 * wave),
                "mem_used": (96 + index) * 2**30,
                "mem_total": 150754820096,
                "power_w": 117.0 if still else round(420 + 260 * wave, 1),
                "sm_mhz": 1980.0 if index != 2 else 1410.0,
                "mem_mhz": 3201.0,
                "temp_c": 34.0 if still else round(52 + 16 * wave),
                "reason_names": ["software power cap"] if index == 2 else [],
                "pcie_tx_kbs": 1200.0 + 90 * index,
                "pcie_rx_kbs": 800.0 + 40 * index,
                "nvlink_tx_kbs": 0.0 if still else 9e6 * wave,
                "nvlink_rx_kbs": 0.0 if still else 9e6 * wave,
                "procs": [{"pid": 4100 + index, "mem": (95 + index) * 2**30, "visible": True, "name": "python"}],
            }
        )
    return {
        "t": NOW - (160 - at) / HZ,
        "mono": mono,
        "boot": "b",
        "gpu": gpus,
        "procs": [_process(mono, 4000, 1, "supervisor", "S", 0.3, 40), *(_worker(mono, index) for index in range(8))],
        "host": _host(at),
    }


def _host(at: int) -> dict[str, Any]:
    pressure = {"some": {"avg10": 0.4, "avg60": 0.3, "avg300": 0.2}}
    return {
        "mono": 1000.0 + at / HZ,
        "load": [9.1, 8.7, 8.2],
        "cpu": {"count": 128},
        "memory": {"total": 2 * 2**40, "free": 2**40, "available": int(1.4 * 2**40)},
        "shm": {"total": 2**40, "free": 900 * 2**30},
        "disks": {SHOWN: {"total": 30 * 2**40, "free": 11 * 2**40}},
        "psi": {"cpu": pressure, "io": pressure, "memory": pressure},
        "rates": {
            "cpu_percent": 7.4,
            "iowait_percent": 0.2,
            "devices": {"nvme0n1": {"read_s": 2.1e9, "written_s": 3.4e8, "busy_ms_s": 400.0}},
            "network": {"eth0": {"received_s": 1.2e6, "sent_s": 3.0e5}},
        },
    }


def _worker(mono: float, index: int) -> dict[str, Any]:
    return _process(
        mono, 4100 + index, 4000, f"train rank {index}", "R", 0.0 if index == 5 else 98.0 + index / 10, 9100
    )


def _process(mono: float, pid: int, parent: int, label: str, state: str, cpu: float, mib: int) -> dict[str, Any]:
    return {
        "pid": pid,
        "ppid": parent,
        "start": 100.0 + pid / 1000,
        "run": DONE,
        "label": label,
        "name": "python",
        "cmd": f"python -m eagle3ops.runs.stage {SHOWN}/runs/{DONE} {label.split()[0]}",
        "state": state,
        "cpu": cpu,
        "threads": 12,
        "rss": mib * 2**20,
        "read_bytes_s": 0.0,
        "write_bytes_s": 2048.0,
        "wakeups_s": 40.0,
        "stat_mono": mono,
        "detail_mono": mono,
        "wchan": "0",
        "syscall": "running",
    }


def still(app: ConsoleApp) -> None:
    """No cursor blinks."""
    for field in app.screen.query(Input):
        field.cursor_blink = False
