"""A console of its own process for the tests: follows a run on a host and writes every event down."""

import asyncio
import os
import sys
from pathlib import Path

from eagle3ops.hosts.address import parse_address
from eagle3ops.hosts.link import Link, LinkState, Pace
from eagle3ops.hosts.registry import Host
from eagle3ops.hosts.ssh.transport import Limits, SshTransport
from eagle3ops.runs.events import parse_line


def seen(out: Path) -> list[int]:
    """Numbers of the events that were written down, in the order in which they were."""
    lines = out.read_bytes().splitlines() if out.exists() else []
    return [event.seq for line in lines if (event := parse_line(line)) is not None]


def transport(address: str, python: str, keepalive: float, misses: int) -> SshTransport:
    host = Host(name="gpu", address=parse_address(address), python=python)
    return SshTransport(host, limits=Limits(keepalive=keepalive, keepalive_misses=misses, connect=5.0))


def _say(state: LinkState) -> None:
    sys.stderr.write(f"{state}\n")
    sys.stderr.flush()


async def follow(run: str, out: Path, reach: SshTransport) -> None:
    """Take up where the file ends."""
    numbers = seen(out)
    file = os.open(out, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    async with Link(reach, pace=Pace(longest=2.0), on_state=_say) as link:
        async for event in link.events(run, after=numbers[-1] if numbers else 0):
            os.write(file, event.line().encode() + b"\n")


if __name__ == "__main__":
    address, python, keepalive, misses, run, out = sys.argv[1:]
    asyncio.run(follow(run, Path(out), transport(address, python, float(keepalive), int(misses))))
