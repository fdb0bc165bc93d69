"""The same log as another run would have written it: lines lost, out of order, coloured, from other hosts."""

import bz2
import gzip
import lzma
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path

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


def windows(chance: random.Random, lines: list[bytes], is_root: Callable[[bytes], bool]) -> list[bytes]:
    """A machine that ends lines its own way."""
    return [line + b"\r" for line in lines]


def other_stamps(chance: random.Random, lines: list[bytes], is_root: Callable[[bytes], bool]) -> list[bytes]:
    """Times are written otherwise."""
    way = chance.choice([rb"\1T\2.123456Z", rb"\1T\2+01:00", rb"\1 \2,123", rb"\1_\2.5"])
    slashes = chance.random() < 0.5

    def stamp(found: re.Match[bytes]) -> bytes:
        said = found.expand(way)
        return said.replace(b"-", b"/", 2) if slashes else said

    pattern = rb"(?<![\d-])(20\d\d-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:[.,]\d+)?"
    return [line if is_root(line) else re.sub(pattern, stamp, line) for line in lines]


LAUNCHERS = (
    b"[pod/trainer-0/main] ",
    b"worker-1   | ",
    b"3: ",
    b"Nov 30 04:05:06 gpu-7 python3[4711]: ",
    b"2026-11-30T04:05:06.123456789Z stderr F ",
    b"(TrainWorker pid=4711, ip=10.0.0.2) ",
    b"[1,3]<stderr>:",
    b"04:05:06 engine.1  | ",
    b"[default0]:",
    b"gpu-7: ",
    b"10.0.0.7: ",
)


def other_launcher(chance: random.Random, lines: list[bytes], is_root: Callable[[bytes], bool]) -> list[bytes]:
    """Another launcher, a scheduler or a collector of logs puts its own prefix before every line."""
    way = chance.choice(LAUNCHERS)
    return [way + line for line in lines]


def healthy(engine: str, count: int) -> list[bytes]:
    """So many lines of another process of the same engine to which nothing happens."""
    if engine == "sglang":
        begin = [b"[2026-03-11 09:13:01 TP9] Load weight begin. avail mem=138.69 GB"]
        said = [b"[2026-03-11 09:14:%02d TP9] Decode batch, #running-req: 4, #token: %d, token usage: 0.01, "
                b"gen throughput (token/s): 412.10, #queue-req: 0" % (n % 60, n) for n in range(count)]  # fmt: skip
    elif engine == "vllm":
        begin = [b"(APIServer pid=991) INFO:     Application startup complete."]
        said = [b'(APIServer pid=991) INFO:     127.0.0.1:%d - "POST /v1/completions HTTP/1.1" 200 OK' % (4000 + n)
                for n in range(count)]  # fmt: skip
    else:
        begin = [b"[default9]:loading the data"]
        said = [b"[default9]:step %d loss 2.%d" % (n, n) for n in range(count)]
    return (begin + said)[:count]


def appended(chance: random.Random, lines: list[bytes], is_root: Callable[[bytes], bool]) -> list[bytes]:
    """The log of a run before it, to which nothing happened, stands in the same file."""
    return healthy(_engine(lines), 60) + lines


def interleaved(chance: random.Random, *logs: list[bytes]) -> list[bytes]:
    """Several logs that were written into one, each in its own order."""
    mixed = [(chance.random(), log) for log in logs for _ in log]
    rest = {id(log): iter(log) for log in logs}
    return [next(rest[id(log)]) for _, log in sorted(mixed, key=lambda one: one[0])]


def beside_a_healthy_one(chance: random.Random, lines: list[bytes]) -> list[bytes]:
    """Another process writes into the same log, and has no trouble; it goes on for a while after the last line."""
    other = healthy(_engine(lines), max(12, len(lines) // 3))
    return interleaved(chance, lines, other[:-6]) + other[-6:]


MUTATIONS: dict[str, Mutation] = {
    found.__name__: found
    for found in (
        dropped, reordered, cut, coloured, elsewhere, other_ranks, wrapped, windows, other_stamps, other_launcher,
        appended,
    )
}  # fmt: skip

Files = Callable[[random.Random, list[bytes]], dict[str, list[bytes]]]


def _engine(lines: list[bytes]) -> str:
    text = b"\n".join(lines)
    return "vllm" if b"EngineCore" in text or b"vllm" in text else "sglang" if b"sglang" in text else "trainer"


def twice(chance: random.Random, lines: list[bytes]) -> dict[str, list[bytes]]:
    """The same log under two names."""
    return {"a.log": lines, "copy of a.log": lines}


def rotated(chance: random.Random, lines: list[bytes]) -> dict[str, list[bytes]]:
    """The log was rotated somewhere, twice, and the shell named the newest first."""
    one, two = sorted(chance.randrange(1, max(2, len(lines))) for _ in range(2))
    return {"a.log": lines[two:], "a.log.1": [*lines[one:two], b""], "a.log.2.gz": [*lines[:one], b""]}


def beside_a_healthy_log(chance: random.Random, lines: list[bytes]) -> dict[str, list[bytes]]:
    """A log in which nothing happened is read together with it."""
    return {"a.log": healthy(_engine(lines), 40), "b.log": lines}


def compressed(chance: random.Random, lines: list[bytes]) -> dict[str, list[bytes]]:
    """The log was packed."""
    return {chance.choice(["a.log.gz", "a.log.bz2", "a.log.xz"]): lines}


FILES: dict[str, Files] = {found.__name__: found for found in (twice, rotated, beside_a_healthy_log, compressed)}


def write(folder: Path, files: dict[str, list[bytes]]) -> list[Path]:
    """Writes them as their names say."""
    pack: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
    for name, lines in files.items():
        data = b"\n".join(lines)
        path = folder / name
        path.write_bytes(pack[path.suffix](data) if path.suffix in pack else data)
    return [folder / name for name in files]
