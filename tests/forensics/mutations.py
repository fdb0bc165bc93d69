"""The same log as another run would have written it: lines lost, out of order, coloured, from other hosts."""

import random
import re
from collections.abc import Callable, Sequence

Mutation = Callable[[random.Random, list[bytes], Callable[[bytes], bool]], list[bytes]]


def dropped(chance: random.Random, lines: list[bytes], is_root: Callable[[bytes], bool]) -> list[bytes]:
    """One line in ten is missing."""
    return [line for line in lines if is_root(line) or chance.random() > 0.1]


def reordered(chance: random.Random, lines: list[bytes], is_root: Callable[[bytes], bool]) -> list[bytes]:
    """Lines come up to three places early or late."""
    places = [(number + chance.uniform(0, 3), line) for number, line in enumerate(lines)]
    return [line for _, line in sorted(places, key=lambda item: item[0])]


def cut(chance: random.Random, lines: list[bytes], is_root: Callable[[bytes], bool]) -> list[bytes]:
    """The first third is gone, or as much of it as stands before the cause."""
    first = next((number for number, line in enumerate(lines) if is_root(line)), len(lines))
    return lines[min(len(lines) // 3, first) :]


def coloured(chance: random.Random, lines: list[bytes], is_root: Callable[[bytes], bool]) -> list[bytes]:
    """Colours around some lines, carriage returns at the ends or of a progress bar before."""
    ways: Sequence[Callable[[bytes], bytes]] = (
        lambda line: b"\x1b[31m" + line + b"\x1b[0m\r",
        lambda line: line + b"\r",
        lambda line: b"  3%|#   | 1/30\r" + line,
        lambda line: b"\x1b[2K\x1b[1;36m" + line[:6] + b"\x1b[0;0m" + line[6:],
        lambda line: line,
    )
    return [chance.choice(ways)(line) for line in lines]


def elsewhere(chance: random.Random, lines: list[bytes], is_root: Callable[[bytes], bool]) -> list[bytes]:
    """Other hosts, process ids and times."""
    pids: dict[bytes, bytes] = {}
    hours = chance.randint(0, 13)

    def pid(found: re.Match[bytes]) -> bytes:
        return found[1] + pids.setdefault(found[2], b"%d" % chance.randint(300, 4_000_000))

    def time(found: re.Match[bytes]) -> bytes:
        return b"%02d" % ((int(found[1]) + hours) % 24) + found[2]

    host = b"box-%d.cluster" % chance.randint(1, 99)
    changed = []
    for line in lines:
        if not is_root(line):
            line = re.sub(rb"(pid[=: ]{1,2}|process \[?)(\d{3,7})", pid, line)
            line = re.sub(rb"\b([01]\d|2[0-3])(:[0-5]\d:[0-5]\d)", time, line)
            line = (
                line.replace(b"gpu-node-a", host)
                .replace(b"127.0.0.1", b"10.11.12.13")
                .replace(b"/opt/venv", b"/usr/local")
            )
        changed.append(line)
    return changed


def other_ranks(chance: random.Random, lines: list[bytes], is_root: Callable[[bytes], bool]) -> list[bytes]:
    """The ranks that the prefixes name are others."""
    shift = chance.randint(1, 7)

    def rank(found: re.Match[bytes]) -> bytes:
        return found[1] + b"%d" % ((int(found[2]) + shift) % 16) + found[3]

    return [re.sub(rb"(^\[rank|Worker_TP| TP)(\d+)(\]| pid)", rank, line) for line in lines]


def wrapped(chance: random.Random, lines: list[bytes], is_root: Callable[[bytes], bool]) -> list[bytes]:
    """A launcher puts its own prefix before every line."""
    way = chance.choice([b"[node b] ", b"2026-11-30T04:05:06.123Z ", b"trainer-1  | "])
    return [way + line for line in lines]


MUTATIONS: dict[str, Mutation] = {
    found.__name__: found for found in (dropped, reordered, cut, coloured, elsewhere, other_ranks, wrapped)
}
