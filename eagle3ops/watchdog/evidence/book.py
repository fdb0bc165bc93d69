"""Who keeps account of the parts of a collection: what was written, found, suspected, missing, and how long it took?"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from eagle3ops.runs.redact import redact
from eagle3ops.watchdog.evidence.dossier import MANIFEST, Step, set_aside
from eagle3ops.watchdog.evidence.patience import ask_once
from eagle3ops.watchdog.evidence.writer import Writer
from eagle3ops.watchdog.incidents.incident import Evidence

SCHEMA = 1
MOST_FINDINGS = 40
_ENOUGH_S = 0.3


class Book:
    """Of one collection; a part reports here, and what goes wrong in it stays in it."""

    def __init__(self, title: str, folder: Path, limit_s: float) -> None:
        self.title, self.folder = title, folder
        self.began = time.monotonic()
        self.until = self.began + limit_s
        self.kept_s = 0.0
        """Seconds that are not to be used up yet: what comes later needs them."""
        self.writer: Writer | None = None
        self.steps: list[Step] = []
        self.names: dict[int, str] = {}
        """What to call the processes."""
        self._findings: list[tuple[int, Evidence]] = []
        self._suspects: list[tuple[int, int]] = []

    def open(self) -> None:
        """Make the folder; what lies there of an earlier collection is set aside."""

        def prepare() -> Writer:
            set_aside(self.folder)
            return Writer(self.folder)

        prepared = ask_once(prepare, limit_s=10.0)
        self.writer = prepared.value
        if self.writer is None:
            self.steps.append(
                Step(name="folder", what="where the evidence goes", took_s=0.0, missing=(prepared.missing,))
            )

    def step(self, name: str, what: str, take: Callable[[float], list[str]], limit_s: float) -> None:
        """Do one part. It returns what is missing; whatever it raises is missing, too."""
        began = time.monotonic()
        before = list(self.writer.files) if self.writer else []
        missing: list[str] = []
        until = min(began + limit_s, self.until - self.kept_s)
        if until - began < _ENOUGH_S:
            missing = ["no time was left for it"]
        else:
            try:
                missing = take(until)
            except Exception as error:  # noqa: BLE001 - half the evidence is better than none
                missing = [f"{type(error).__name__}: {error}"[:300]]
        files = [file for file in self.writer.files if file not in before] if self.writer else []
        self.steps.append(
            Step(
                name=name,
                what=what,
                took_s=time.monotonic() - began,
                files=tuple(files),
                missing=tuple(self.clean(words) for words in missing),
            )
        )

    def finish(self, *, intrusive: bool) -> tuple[tuple[str, ...], tuple[Evidence, ...], tuple[int, ...], float]:
        """Write the manifest. Returns files, findings, suspects and seconds."""
        findings = [one for _, one in sorted(self._findings, key=lambda pair: pair[0])][:MOST_FINDINGS]
        suspects = tuple(dict.fromkeys(pid for _, pid in sorted(self._suspects, key=lambda pair: pair[0])))
        took = time.monotonic() - self.began
        manifest = {
            "schema": SCHEMA,
            "at": time.time(),
            "subject": self.title,
            "intrusive": intrusive,
            "took_s": round(took, 3),
            "findings": [{"what": one.what, "log": one.log, "offset": one.offset} for one in findings],
            "suspects": [{"pid": pid, "name": self.names.get(pid, "")} for pid in suspects],
            "steps": [step.as_json() for step in self.steps],
        }
        files: tuple[str, ...] = ()
        if self.writer:
            writer = self.writer
            # The disk may have died meanwhile.
            ask_once(lambda: writer.json(MANIFEST, manifest), limit_s=10.0)
            files = tuple(writer.files)
        return files, tuple(findings), suspects, took

    def tell(self, rank: int, found: Sequence[Evidence]) -> None:
        """A finding; the smaller the rank, the more telling. Secrets in it are masked."""
        self._findings += [
            (rank, Evidence(self.clean(one.what), self.clean(one.log) if one.log else None, one.offset))
            for one in found
        ]

    def suspect(self, rank: int, pids: Sequence[int]) -> None:
        """Processes that stand out; the smaller the rank, the more suspicious."""
        self._suspects += [(rank, pid) for pid in pids]

    def clean(self, text: str) -> str:
        """The text without secrets."""
        return self.writer.clean(text) if self.writer else redact(text)

    def json(self, name: str, data: Any) -> list[str]:
        """Write an object. Returns what is missing: nothing, or why it could not be written."""
        why = self.writer.json(name, data) if self.writer else "there is no folder"
        return [f"{name}: {why}"] if why else []

    def text(self, name: str, text: str) -> list[str]:
        """Write a text. Returns as `json`."""
        why = self.writer.text(name, text) if self.writer else "there is no folder"
        return [f"{name}: {why}"] if why else []
