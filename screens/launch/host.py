"""What does the form ask of the host, and what does the answer come to?"""

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from eagle3ops.errors import Eagle3opsError, HostUnreachable, RequestError, SpecError
from eagle3ops.locations import expanded
from eagle3ops.screens.launch.form import Problem
from eagle3ops.spec.yamltree import MAX_BYTES
from eagle3ops.words import plain

Ask = Callable[..., Awaitable[dict[str, Any]]]

SOURCE = "text"
"""Names the form's text in the loader's messages; taken off before they are shown."""

_PLACE = re.compile(rf"{SOURCE}:(?:\d+:\d+:)? ?")
_KEYS = re.compile(r"([A-Za-z_][\w-]*(?:(?:\.[A-Za-z_][\w-]*)|\[\d+\])*): ")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the host said of one text and job."""

    text: str
    job: str
    at: float
    """When, in seconds since 1970."""
    problems: tuple[Problem, ...] = ()
    left_out: int = 0
    plan: Mapping[str, Any] | None = None
    trouble: Problem | None = None
    """Why there is neither."""

    @property
    def refused(self) -> bool:
        """A forecast does not fit."""
        return bool(self.plan is not None and self.plan.get("refused"))


async def judge(ask: Ask, text: str, job: str, clock: Callable[[], float], *, ready: str | None = None) -> Verdict:
    """Have a text checked, and planned where it is right.

    Args:
        ask: asks the host.
        text: the pipeline file.
        job: what of it is to run.
        clock: seconds since 1970.
        ready: the text as the host needs it, where that is another one: with files of this machine sent there.

    Raises:
        Eagle3opsError: the host cannot be asked at all.
    """
    answer = await ask("spec.check", spec_text=text, source=SOURCE)
    problems = problems_of(answer)
    left_out = answer.get("left_out")
    if problems:
        return Verdict(text, job, clock(), tuple(problems), left_out if isinstance(left_out, int) else 0)
    try:
        plan = await ask("runs.plan", spec_text=text if ready is None else ready, job=job, source=SOURCE)
    except HostUnreachable:
        raise
    except Eagle3opsError as error:
        problem = problem_of(error)
        if problem.path:
            return Verdict(text, job, clock(), (problem,))
        return Verdict(text, job, clock(), trouble=problem)
    return Verdict(text, job, clock(), plan=plan)


def problems_of(answer: Mapping[str, Any]) -> list[Problem]:
    """From the answer of `spec.check`."""
    found = answer.get("problems")
    problems = []
    for one in found if isinstance(found, list) else ():
        if not isinstance(one, Mapping):
            continue
        path = one.get("path")
        keys = tuple(key for key in path if isinstance(key, str | int)) if isinstance(path, list) else ()
        line, column = one.get("line"), one.get("column")
        problems.append(
            Problem(
                what=bare(one.get("what", "wrong")),
                remedy=plain(one.get("remedy") or ""),
                path=keys,
                line=line if isinstance(line, int) else None,
                column=column if isinstance(column, int) else None,
            )
        )
    return problems


def problem_of(error: Eagle3opsError) -> Problem:
    """An error of the loader or of a stage's plan, with the keys that it begins with."""
    what = bare(error.what)
    keys = _KEYS.match(what)
    path: list[str | int] = []
    if keys is not None and "." in keys[1]:
        parts = re.findall(r"[A-Za-z_][\w-]*|\[\d+\]", keys[1])
        path = [int(part[1:-1]) if part.startswith("[") else part for part in parts]
    return Problem(what, plain(error.remedy or ""), tuple(path))


def bare(what: object) -> str:
    """A message without the name of the text."""
    return _PLACE.sub("", plain(what), count=1)


async def as_the_host_needs_it(caller: Any, text: str, label: str, tell: Callable[[str], None]) -> str:
    """The text for another machine: files of this one that it names are sent there, and named as they are there.

    Raises:
        Eagle3opsError: a file cannot be sent.
    """
    from eagle3ops.hosts.uploads import with_files_there
    from eagle3ops.runs.job import load_registry
    from eagle3ops.spec.load import dump_pipeline, parse_pipeline

    def read() -> Any:
        return parse_pipeline(text, label, load_registry().specs())

    try:
        pipeline = await asyncio.to_thread(read)
    except SpecError:
        # The host knows settings that this version does not; it has found them right.
        return text
    ready = await with_files_there(caller, pipeline, tell)
    return text if ready == pipeline else dump_pipeline(ready)


def read_file(path: str) -> tuple[str, str]:
    """A pipeline file of this machine: its full path and its text.

    Raises:
        RequestError: it cannot be read, or is none.
    """
    full = expanded(path).absolute()
    try:
        if full.is_dir():
            raise RequestError(f"{full}: a folder; a pipeline file is wanted")
        with full.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise RequestError(f"{full}: cannot be read: {error.strerror}") from error
    if len(data) > MAX_BYTES:
        raise RequestError(f"{full}: larger than {MAX_BYTES:,} bytes; a pipeline file is a few kilobytes")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RequestError(f"{full}: not UTF-8 text (byte {error.start})") from error
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        odd = next((one for one in line if one != "\t" and not one.isprintable()), None)
        if odd is not None:
            raise RequestError(
                f"{full}:{number}: holds the character U+{ord(odd):04X}, which a form cannot show",
                remedy='take it out, or write it as an escape within quotation marks, such as "\\u200b"',
            )
    return str(full), text


def save_file(path: str, text: str, *, replace: bool) -> str | None:
    """Write a pipeline file; returns its full path, or None where there is one already and it is not to be replaced.

    Raises:
        RequestError: it cannot be written.
    """
    full = expanded(path).absolute()
    partial = full.with_name(f".{full.name}.{os.getpid()}.tmp")
    try:
        partial.write_text(text, encoding="utf-8")
        try:
            if replace:
                partial.replace(full)
                return str(full)
            # Unlike a look beforehand, this cannot replace a file that came in between.
            os.link(partial, full)
        except FileExistsError:
            return None
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise RequestError(f"{full}: cannot be written: {error.strerror}", remedy="choose another path") from error
    return str(full)
