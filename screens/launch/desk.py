"""What is being filled in, what does the host say of it, and how does it become a run exactly once?"""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from uuid import uuid4

from eagle3ops.errors import Eagle3opsError, HostUnreachable
from eagle3ops.hosts.transport import ConnectionRefusedForGood
from eagle3ops.screens.launch.draft import Draft, Drafts
from eagle3ops.screens.launch.fields import sections
from eagle3ops.screens.launch.form import Form, Origin, Problem, job_section
from eagle3ops.screens.launch.host import Ask, Verdict, as_the_host_needs_it, judge, read_file, save_file
from eagle3ops.words import plain

FIRST = "demo"
"""The bundled pipeline that a form begins with, as the command line does."""
RUNS_LISTED = 100


@dataclass(frozen=True, slots=True)
class Start:
    """One thing that a form can be started from."""

    kind: str
    """`bundled`, `run`, `draft`, or `file`."""
    name: str
    """Name, run id, number of the draft, or path."""
    label: str
    what: str = ""


@dataclass(slots=True)
class Desk:
    """The form of one console, for one host and root."""

    ask: Ask
    host: str
    root: str | None
    clock: Callable[[], float]
    drafts: Drafts
    form: Form | None = None
    verdict: Verdict | None = None
    """The last answer of the host; of an earlier text, perhaps."""
    trouble: Eagle3opsError | None = None
    """Why the host could not be asked."""
    asking: bool = False
    placing: bool = False
    """A start is under way."""
    bundled: dict[str, str] = field(default_factory=dict)
    asked_at: float = 0.0
    """When the host was last asked, in seconds since 1970."""
    taken_up: float | None = None
    """When the draft was saved that the form began with; None when it began with something else."""
    _key: tuple[str, str, str] | None = None
    """Text, job and idempotency key of a start whose outcome is not known."""
    _ready: tuple[str, str] | None = None
    """A text, and what it is for the host: with files of this machine sent there, and named as they are there."""
    _keeping: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def fresh(self) -> Verdict | None:
        """The host's answer about exactly what the form holds now."""
        form, verdict = self.form, self.verdict
        if form is None or verdict is None or (verdict.text, verdict.job) != (form.text, form.job):
            return None
        return verdict

    async def open(self) -> None:
        """Ask the host what may stand in a pipeline file, and take up what was left.

        Raises:
            Eagle3opsError: the host does not answer, or does not know the question.
        """
        answer = await self.ask("spec.schema")
        found = answer.get("bundled")
        for one in found if isinstance(found, list) else ():
            if isinstance(one, dict) and isinstance(one.get("name"), str) and isinstance(one.get("text"), str):
                self.bundled[one["name"]] = one["text"]
        jobs = answer.get("jobs")
        known = [plain(job) for job in jobs if isinstance(job, str)] if isinstance(jobs, list) else []
        parts = [job_section(known or ["pipeline"]), *sections(answer.get("schema"))]
        left = await asyncio.to_thread(self.drafts.take_up)
        if left is not None:
            self.taken_up = left.saved
            self.form = Form(parts, left.origin, left.text, left.job)
            if left.key:
                self._key = (left.text, left.job, left.key)
            return
        name = FIRST if FIRST in self.bundled or not self.bundled else next(iter(self.bundled))
        origin = self._bundled(name) if name in self.bundled else Origin("none", "", "a new pipeline", "schema: 1\n")
        self.form = Form(parts, origin, origin.text, origin.job)

    def _bundled(self, name: str) -> Origin:
        return Origin("bundled", name, f"{name}.yaml (comes with eagle3ops)", self.bundled[name])

    async def check(self) -> None:
        """Have the host judge what the form holds now."""
        form = self.form
        if form is None:
            return
        text, job = form.text, form.job
        self.asking, self.asked_at = True, self.clock()
        try:
            verdict = await judge(self.ask, text, job, self.clock, ready=self._ready_for(text))
        except Eagle3opsError as error:
            self.trouble = error
        else:
            if self.host != "local" and any("no such file" in problem.what for problem in verdict.problems):
                verdict = replace(verdict, problems=tuple(map(_sent_by_start, verdict.problems)))
            self.trouble, self.verdict = None, verdict
            if form.text == text:
                form.problems = list(verdict.problems)
        finally:
            self.asking = False

    def _ready_for(self, text: str) -> str | None:
        return self._ready[1] if self._ready is not None and self._ready[0] == text else None

    async def send_files(self, tell: Callable[[str], None]) -> None:
        """Send files of this machine that the form names to the host, where that is another one.

        Raises:
            Eagle3opsError: one cannot be sent.
        """
        form = self.form
        if form is not None and self.host != "local" and not form.broken and self._ready_for(form.text) is None:
            text = form.text
            ready = await as_the_host_needs_it(_Caller(self.ask), text, form.origin.label, tell)
            self._ready = text, ready

    def _draft(self) -> Draft | None:
        form = self.form
        if form is None:
            return None
        key = self._key[2] if self._key is not None and self._key[:2] == (form.text, form.job) else ""
        return Draft(form.text, form.job, form.origin, self.clock(), key)

    async def keep(self, *, leave: bool = False) -> None:
        """Write down what the form holds, so that nothing that was typed is lost; `leave` when the form is closed.

        Raises:
            OSError: it cannot be written.
        """
        async with self._keeping:
            draft = self._draft()
            if draft is not None:
                await asyncio.to_thread(partial(self.drafts.save, draft, leave=leave))

    async def starts(self, runs: Sequence[Any]) -> list[Start]:
        """What a form can be started from."""
        earlier = await asyncio.to_thread(self.drafts.earlier)
        found = [
            Start("draft", str(number), f"{draft.origin.label or 'a new pipeline'}, changed", _when(draft.saved))
            for number, draft in enumerate(earlier)
        ]
        found += [Start("bundled", name, name, _remark(text)) for name, text in self.bundled.items()]
        found += [Start("run", row.run_id, row.run_id, row.status) for row in runs[:RUNS_LISTED]]
        return found

    async def begin(self, start: Start) -> None:
        """Start from something else; what was typed is put away, and can be taken up again.

        Raises:
            Eagle3opsError: it cannot be read.
        """
        form = self.form
        assert form is not None
        text = None
        if start.kind == "file":
            path, read = await asyncio.to_thread(read_file, start.name)
            origin = Origin("file", path, os.path.basename(path), read)
        elif start.kind == "run":
            answer = await self.ask("spec.of_run", run=start.name)
            job = str(answer.get("job") or "pipeline")
            label = f"the pipeline of {plain(answer.get('run', start.name))}"
            origin = Origin("run", str(answer.get("path", "")), label, str(answer.get("text", "")), job)
        elif start.kind == "draft":
            earlier = await asyncio.to_thread(self.drafts.earlier)
            number = int(start.name)
            if number >= len(earlier):
                return
            origin, text = earlier[number].origin, earlier[number].text
        else:
            origin = self._bundled(start.name)
        await self.put_away()
        job = earlier[number].job if start.kind == "draft" else origin.job
        self.form = Form(form.sections, origin, origin.text if text is None else text, job)
        self.taken_up, self._key = None, None

    async def put_away(self) -> None:
        """Keep what was typed beside the draft."""
        draft = self._draft()
        if draft is not None:
            with contextlib.suppress(OSError):
                await asyncio.to_thread(self.drafts.put_away, draft)

    async def save(self, path: str, *, replace: bool) -> str | None:
        """Write the text to a file of this machine, which the form is of from then on; None where one is there.

        Raises:
            Eagle3opsError: it cannot be written.
        """
        form = self.form
        assert form is not None
        text = form.text
        full = await asyncio.to_thread(save_file, path, text, replace=replace)
        if full is not None:
            now, job = form.text, form.job
            self.form = Form(
                form.sections, Origin("file", full, os.path.basename(full), text, job), now, job, form.problems
            )
            with contextlib.suppress(OSError):
                await self.keep()
        return full

    async def place(self, *, forced: bool) -> dict[str, Any]:
        """Start what the form holds, once, however often this is asked for: the key goes with the text.

        Raises:
            Eagle3opsError: it was refused; nothing was started.
            HostUnreachable: whether it was started is not known; asking again finds out and starts nothing twice.
        """
        form = self.form
        assert form is not None
        text, job = form.text, form.job
        if self._key is None or self._key[:2] != (text, job):
            self._key = (text, job, uuid4().hex)
        with contextlib.suppress(OSError):
            # Before it is asked: a console that is killed meanwhile must not ask under another key.
            await self.keep()
        came_from = form.origin.name if form.origin.kind == "file" else form.origin.label
        source = came_from + ("" if form.untouched else ", changed in the console")
        ready = self._ready_for(text) or text
        self.placing = True
        try:
            answer = await self.ask(
                "runs.place", spec_text=ready, key=self._key[2], job=job, source=plain(source), forced=forced
            )
        except (HostUnreachable, ConnectionRefusedForGood):
            raise
        except Eagle3opsError:
            # It was heard, and nothing was started under this key.
            self._key = None
            raise
        finally:
            self.placing = False
        # What was started is no draft any more: from now on, changes are counted from there.
        begun = Origin(
            "run", f"{answer.get('path', '')}/spec.yaml", f"the pipeline of {plain(answer['run'])}", text, job
        )
        self._key, self.taken_up = None, None
        self.form = Form(form.sections, begun, form.text, form.job, form.problems)
        with contextlib.suppress(OSError):
            await self.keep()
        return answer


@dataclass(frozen=True, slots=True)
class _Caller:
    """Asks as the console does, for what wants to call."""

    ask: Ask

    async def call(self, op: str, /, **args: Any) -> dict[str, Any]:
        """The host's answer about the console's root."""
        return await self.ask(op, **args)


def _sent_by_start(problem: Problem) -> Problem:
    if "no such file" not in problem.what:
        return problem
    return replace(problem, remedy=f"where it is a file of this machine, S sends it there first; else {problem.remedy}")


def _remark(text: str) -> str:
    """The first line of a file, where it says what the file is for."""
    first = text.partition("\n")[0]
    return plain(first.lstrip("# ")) if first.startswith("#") else ""


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
