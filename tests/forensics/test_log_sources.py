"""Are packed, rotated, huge and odd files read, each within its bounds, and is what was left out said?"""

import bz2
import gzip
import lzma
import os
import random
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3ops.errors import RequestError
from eagle3ops.forensics import sources
from eagle3ops.forensics.diagnosis import Diagnosis, diagnose_files, judge
from eagle3ops.forensics.records import Reader
from eagle3ops.forensics.scan import TAIL
from eagle3ops.forensics.sources import Bounds, open_file, read_log, rotated

FAILED = b"[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 7.42 GiB.\n"
QUIET = b"".join(b"[launcher] preflight %d: fine\n" % n for n in range(60_000))


def bounded(path: Path, bounds: Bounds, begin: int = 0) -> tuple[Diagnosis, tuple[str, ...]]:
    reader = Reader()
    with open_file(path) as stream:
        notes = read_log(stream, str(path), reader, begin=begin, bounds=bounds)
    return judge([(str(path), reader)]), notes


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_packed_logs_are_read_by_what_they_hold(pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    text = QUIET + FAILED + b"after\n"
    path = tmp_path / "a.log"
    path.write_bytes(pack(text))
    found = diagnose_files([path])
    assert found.root is not None
    assert (found.root.offset, found.root.line_no) == (len(QUIET), 60_001)
    assert found.notes == []


def test_a_packed_log_that_is_still_being_written(tmp_path: Path) -> None:
    data = random.Random(1).randbytes(300).hex().encode()
    whole = gzip.compress(FAILED + b"".join(data[n % 500 :] + b"\n" for n in range(300)))
    (tmp_path / "a.log.gz").write_bytes(whole[: len(whole) // 2])
    found = diagnose_files([tmp_path / "a.log.gz"])
    assert found.root is not None
    assert found.root.category == "cuda_oom"
    assert "cut off or damaged" in found.notes[0]


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_a_packed_log_without_its_end(pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(pack(QUIET)[:-20])
    assert "cut off or damaged" in diagnose_files([tmp_path / "a"]).notes[0]


def test_xz_may_not_ask_for_much_memory(tmp_path: Path) -> None:
    packer = lzma.LZMACompressor(filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 4096}])
    small = packer.compress(FAILED) + packer.flush()
    # The size of the dictionary is the byte behind the id and the length of the filter's properties.
    at = small.index(b"\x21\x01") + 2
    header = bytearray(small)
    header[at] = 38
    crc = zlib.crc32(bytes(header[12 : 12 + header[12] * 4]))
    header[12 + header[12] * 4 : 16 + header[12] * 4] = crc.to_bytes(4, "little")
    (tmp_path / "a.xz").write_bytes(bytes(header))
    found = diagnose_files([tmp_path / "a.xz"])
    assert found.root is None
    assert "damaged" in found.notes[0]


def test_members_after_one_another_and_bytes_behind_them(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    for pack in (gzip.compress, bz2.compress, lzma.compress):
        path.write_bytes(pack(b"step 1 loss 2\n") + pack(FAILED) + b"garbage")
        found = diagnose_files([path])
        assert found.root is not None
        assert found.root.offset == 14


def test_zstd_without_a_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str) -> object:
        raise ImportError(name)

    monkeypatch.setattr(sources, "import_module", none)
    (tmp_path / "a.log.zst").write_bytes(b"\x28\xb5\x2f\xfd" + bytes(20))
    with pytest.raises(RequestError, match="compressed with zstd"):
        diagnose_files([tmp_path / "a.log.zst"])


def test_the_newest_part_only(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"ValueError: long ago\n" + QUIET + FAILED + QUIET)
    found, notes = bounded(path, Bounds(most=len(QUIET) + 500))
    assert found.root is not None
    assert found.root.category == "cuda_oom"
    assert found.root.line_no == 60_002
    assert "were not read" in notes[0]
    packed = tmp_path / "b.log.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    again, _ = bounded(packed, Bounds(most=len(QUIET) + 500))
    assert again.root is not None
    assert (again.root.offset, again.root.line_no) == (found.root.offset, found.root.line_no)


def test_from_a_byte_on(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"ValueError: of the attempt before\nstarted again\n" + FAILED)
    found, notes = bounded(path, Bounds(), begin=path.read_bytes().index(b"started"))
    assert found.root is not None
    assert (found.root.category, found.root.line_no) == ("cuda_oom", 3)
    assert notes == ()


def test_when_time_is_over_the_end_is_still_read(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"ValueError: at the beginning\n" + QUIET * 3 + FAILED)
    moments = iter([False] * 2 + [True] * 100)

    class Late(Bounds):
        def late(self) -> bool:
            return next(moments)

    found, notes = bounded(path, Late())
    assert found.root is not None
    assert found.root.text.endswith("7.42 GiB.")
    assert found.root.line_no == 180_002
    assert "time was over" in notes[0]
    found, notes = bounded(path, Bounds(until=time.monotonic() - 1))
    assert found.root is not None
    assert found.root.line_no == 180_002
    assert f"the first {(path.stat().st_size - TAIL) / 2**20:.1f} MiB" in notes[0]


def test_a_bomb_is_not_unpacked_where_an_answer_may_not_take_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "INFLATED", 3 << 20)
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(bytes(20 << 20)))
    _, notes = bounded(path, Bounds(most=1 << 20))
    assert any("only the first" in note for note in notes)


def test_parts_of_a_rotated_log() -> None:
    assert rotated(["a.log", "b.log", "a.log.1", "a.log.10.gz", "a.log.2.gz"]) == [
        ["a.log.10.gz", "a.log.2.gz", "a.log.1", "a.log"],
        ["b.log"],
    ]
    assert rotated(["x.log-20261130", "x.log", "x.log-20261129.gz"]) == [
        ["x.log-20261129.gz", "x.log-20261130", "x.log"]
    ]
    assert rotated(["worker-0", "worker-1", "worker-1"]) == [["worker-0"], ["worker-1"]]


def test_a_traceback_goes_through_a_rotation(tmp_path: Path) -> None:
    (tmp_path / "a.log.1").write_text(
        'step 1 loss 2\nTraceback (most recent call last):\n  File "/srv/x.py", line 1, in f\n'
    )
    (tmp_path / "a.log").write_text("    assert n > 0\nAssertionError\n")
    found = diagnose_files([tmp_path / "a.log", tmp_path / "a.log.1"])
    assert found.root is not None
    assert (found.root.file, found.root.line_no) == (str(tmp_path / "a.log"), 1)
    assert found.root.text.strip() == "assert n > 0"


@settings(max_examples=60)
@given(st.sampled_from([b"\x1f\x8b\x08\0\0\0\0\0", b"BZh9", b"\xfd7zXZ\x00"]), st.binary(max_size=200))
def test_damaged_files(tmp_path_factory: pytest.TempPathFactory, magic: bytes, rest: bytes) -> None:
    path = tmp_path_factory.mktemp("log") / "a"
    path.write_bytes(magic + rest)
    assert diagnose_files([path]).verdict in ("unknown", "no_failure", "failure", "hang")


def made(kind: str, path: Path) -> None:
    """A file of an odd kind that holds a failure where it can hold one."""
    text = b"step 1 loss 2\n" + FAILED
    ways: dict[str, Callable[[], object]] = {
        "empty": lambda: path.write_bytes(b""),
        "one byte": lambda: path.write_bytes(b"x"),
        "only a line end": lambda: path.write_bytes(b"\n"),
        "only line ends": lambda: path.write_bytes(b"\n" * 3_000_000),
        "only CR": lambda: path.write_bytes(b"\r" * 3_000_000),
        "only escapes": lambda: path.write_bytes(b"\x1b[31m" * 500_000),
        "only spaces": lambda: path.write_bytes(b" " * 2_000_000 + b"\n"),
        "only NUL": lambda: path.write_bytes(bytes(2_000_000)),
        "random": lambda: path.write_bytes(random.Random(1).randbytes(2_000_000)),
        "all bytes": lambda: path.write_bytes(bytes(range(256)) * 4000),
        "no line end at the end": lambda: path.write_bytes(text.rstrip()),
        "Windows": lambda: path.write_bytes(text.replace(b"\n", b"\r\n")),
        "NUL between": lambda: path.write_bytes(text[:14] + bytes(500_000) + b"\n" + text[14:]),
        "UTF-8 with BOM": lambda: path.write_bytes(b"\xef\xbb\xbf" + FAILED),
        "UTF-16 LE": lambda: path.write_bytes(text.decode().encode("utf-16-le")),
        "UTF-16 with BOM": lambda: path.write_bytes((QUIET + text).decode().encode("utf-16")),
        "UTF-16 BE with BOM": lambda: path.write_bytes(b"\xfe\xff" + text.decode().encode("utf-16-be")),
        "Latin-1": lambda: path.write_bytes("Größe\n".encode("latin-1") * 1000 + FAILED),
        "half a character": lambda: path.write_bytes(b"\xe2\x82\n" + FAILED + b"\xf0\x9f"),
        "a long line before": lambda: path.write_bytes(b"x" * 9_000_000 + b"\n" + text),
        "a bar written over": lambda: path.write_bytes(b"\r 42%|###" * 300_000 + b"\r" + FAILED),
        "right to left": lambda: path.write_bytes("\u202e\u2066\u200f".encode() * 1000 + b"\n" + FAILED),
        "very deep": lambda: path.write_bytes(b"  | " * 5000 + b"\n" + b"[rank0]: " * 3000 + b"\n" + text),
        "brackets": lambda: path.write_bytes(b"[(" * 100_000 + b"\n" + b"{" * 100_000 + b"\n" + text),
        "heads without ends": lambda: path.write_bytes(b"Traceback (most recent call last):\n" * 30_000),
        "chains without ends": lambda: path.write_bytes(
            b"ValueError: x\nDuring handling of the above exception, another exception occurred:\n" * 10_000
        ),
        "huge numbers": lambda: path.write_bytes(
            b"[rank" + b"9" * 5000 + b"]: ValueError: x\nworld_size=" + b"9" * 500 + b"\n"
        ),
        "wild times": lambda: path.write_bytes(b"[9999-99-99 99:99:99 TP0] ERROR x\n[0000-00-00 00:00:00] Error: y\n"),
        "a program": lambda: path.write_bytes(Path("/proc/self/exe").read_bytes()[:3_000_000]),
        "packed twice": lambda: path.write_bytes(gzip.compress(gzip.compress(text))),
        "sparse": lambda: os.truncate(os.open(path, os.O_CREAT | os.O_WRONLY), 60_000_000),
    }  # fmt: skip
    ways[kind]()


HOLDS = (
    "no line end at the end", "Windows", "NUL between", "UTF-8 with BOM", "UTF-16 LE", "UTF-16 with BOM",
    "UTF-16 BE with BOM", "Latin-1", "half a character", "a long line before", "a bar written over", "right to left",
    "very deep", "brackets",
)  # fmt: skip
NOTHING = (
    "empty", "one byte", "only a line end", "only line ends", "only CR", "only escapes", "only spaces", "only NUL",
    "random", "all bytes", "heads without ends", "chains without ends", "huge numbers", "wild times", "a program",
    "packed twice", "sparse",
)  # fmt: skip


@pytest.mark.parametrize("kind", HOLDS + NOTHING)
def test_odd_files(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "a"
    made(kind, path)
    found = diagnose_files([path])
    if kind in HOLDS:
        assert found.root is not None, found
        assert found.root.category == "cuda_oom"
        assert found.root.text.isprintable()
    elif kind.startswith(("only", "empty", "one", "sparse")):
        assert found.root is None
        assert found.verdict in ("unknown", "no_failure")


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), Path("/dev/null")):
        with pytest.raises(RequestError, match="no regular file"):
            diagnose_files([path])
    with pytest.raises(RequestError, match="cannot be read"):
        diagnose_files([tmp_path / "a\x1b[31mb"])


def test_lines_of_many_megabytes(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    with path.open("wb") as file:
        for _ in range(100):
            file.write(b"x" * 1_000_000)
        file.write(b"\n" + FAILED)
    found = diagnose_files([path])
    assert found.root is not None
    assert (found.root.offset, found.root.line_no) == (100_000_001, 2)
