"""What does `eagle3ops doctor` print?"""

import asyncio
import json as jsonlib
import os
import shutil
import sys
import textwrap
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from eagle3ops import locations
from eagle3ops.errors import ExitCode, HostUnreachable
from eagle3ops.hosts.doctor.finding import Finding, Status, from_json
from eagle3ops.words import plain

GROUPS = {
    "system": "System",
    "limits": "Limits",
    "numa": "NUMA",
    "disk": "Disks",
    "gpu": "GPUs",
    "cuda": "CUDA",
    "python": "Python",
    "engine": "Engines",
    "tool": "Tools",
    "network": "Network",
    "hub": "Model hub",
    "can": "What this host can do now",
}
MARKS: dict[Status, str] = {"ok": "✓", "warn": "!", "bad": "✗", "absent": "–"}
ASCII_MARKS: dict[Status, str] = {"ok": "+", "warn": "!", "bad": "x", "absent": "-"}
COLOURS: dict[Status, str] = {"ok": "32", "warn": "33", "bad": "1;31", "absent": "2"}
WIDEST = 100
ANSWER_LIMIT_S = 150.0
"""Importing torch on a busy host takes a minute."""


def doctor(args: Namespace, root: str | None, *, json: bool) -> int:
    """`eagle3ops doctor [--host NAME]`: 0 when nothing is bad, 1 when something is.

    Raises:
        RequestError: an unknown host.
        HostUnreachable: no connection.
    """
    name = getattr(args, "doctor_host", None) or "local"
    findings = asyncio.run(_ask(name, root)) if name != "local" else _look_here(root)
    if json:
        text = jsonlib.dumps([finding.as_json() for finding in findings], indent=2, ensure_ascii=False)
        sys.stdout.write(text + "\n")
    else:
        width = min(shutil.get_terminal_size((80, 24)).columns, WIDEST)
        coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        sys.stdout.write(told(findings, width=width, coloured=coloured, marks=_marks(sys.stdout.encoding)))
    sys.stdout.flush()
    return ExitCode.FAILED if any(finding.status == "bad" for finding in findings) else ExitCode.DONE


def _look_here(root: str | None) -> list[Finding]:
    from eagle3ops.hosts.doctor.examination import examine

    return examine(locations.root(root), locations.cache())


async def _ask(name: str, root: str | None) -> list[Finding]:
    from eagle3ops.commands.hosts import TerminalPrompts, patiently
    from eagle3ops.hosts.client import AgentClient
    from eagle3ops.hosts.reach import transport_for

    transport = transport_for(name, TerminalPrompts())
    client = await patiently(transport, AgentClient.connect(transport))
    try:
        async with asyncio.timeout(ANSWER_LIMIT_S):
            answer = await client.call("doctor", **({} if root is None else {"root": root}))
        return read_findings(answer)
    except TimeoutError as error:
        raise HostUnreachable(
            f"{name}: no answer to doctor within {ANSWER_LIMIT_S:.0f} s", remedy="try again; the host may be overloaded"
        ) from error
    except ValueError as error:
        raise HostUnreachable(
            f"{name}: its answer to doctor cannot be read: {plain(error)}",
            remedy=f"bring eagle3ops there to this version: eagle3ops hosts install {name}",
        ) from error
    finally:
        await client.close()


def read_findings(answer: Any) -> list[Finding]:
    """The findings in an agent's answer.

    Raises:
        ValueError: there are none in it.
    """
    rows = answer.get("findings") if isinstance(answer, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError("no list of findings")
    return [from_json(row) for row in rows]


def _marks(encoding: str | None) -> dict[Status, str]:
    try:
        "".join(MARKS.values()).encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII_MARKS
    return MARKS


def told(
    findings: Sequence[Finding], *, width: int, coloured: bool = False, marks: dict[Status, str] | None = None
) -> str:
    """The findings by group, one mark and line each, remedies below what needs one; wrapped at `width` columns."""
    marks = marks or MARKS
    labels = {finding.name: plain(finding.name.partition(".")[2] or finding.name) for finding in findings}
    column = min(max((len(label) for label in labels.values()), default=0), 20)
    lines: list[str] = []
    for group in dict.fromkeys([*GROUPS, *(finding.name.partition(".")[0] for finding in findings)]):
        members = [finding for finding in findings if finding.name.partition(".")[0] == group]
        if members:
            lines += ["", _painted(plain(GROUPS.get(group, group)), "1", coloured)]
        for finding in members:
            mark = _painted(marks[finding.status], COLOURS[finding.status], coloured)
            head = f"  {mark} {labels[finding.name].ljust(column)}  "
            indent = " " * (column + 6)
            shown = _wrapped(plain(finding.value), width - len(indent))
            lines += [head + shown[0], *(indent + line for line in shown[1:])]
            if finding.remedy is not None and group != "can":
                remedy = _wrapped(plain(finding.remedy), width - len(indent) - 3)
                lines += [f"{indent}-> {remedy[0]}", *(f"{indent}   {line}" for line in remedy[1:])]
    counts = {status: sum(finding.status == status for finding in findings) for status in MARKS}
    told_counts = (
        f"{marks['ok']} {counts['ok']} fine  {marks['warn']} {counts['warn']} to mind  "
        f"{marks['bad']} {counts['bad']} bad  {marks['absent']} {counts['absent']} not there, not needed for the rest"
    )
    return "\n".join([*lines[1:], "", told_counts]) + "\n"


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, max(width, 20), break_on_hyphens=False) or [""]


def _painted(text: str, colour: str, coloured: bool) -> str:
    return f"\x1b[{colour}m{text}\x1b[0m" if coloured else text
