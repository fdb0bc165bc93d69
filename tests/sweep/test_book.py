"""Does a sweep's book hold every finished row, whatever a kill leaves behind it?"""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from eagle3ops.sweep.book import ROWS, Book


def row(number: int) -> dict[str, Any]:
    blocks = {"baseline": [[12, 0.5]], f"{number}": [[12, 0.25]]}
    return {"kind": "measured", "point": f"{number}", "rung": 0, "blocks": blocks}


@given(st.integers(0, 4), st.integers(0, 400), st.binary(max_size=40))
def test_a_torn_end_costs_the_torn_row_only(rows: int, cut: int, rubbish: bytes) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        book = Book.open(folder)
        for number in range(rows):
            book.add(row(number))
        book.add({"kind": "failure", "subject": "x", "rung": 0, "what": "died"})
        path = folder / ROWS
        whole = path.read_bytes() if path.exists() else b""
        torn = whole[: max(0, len(whole) - cut)]
        path.write_bytes(torn + rubbish.replace(b"\n", b""))
        again = Book.open(folder)
        kept = torn.count(b"\n")
        assert len(again.measured) + len(again.failures) == kept
        assert path.read_bytes() == b"".join(torn.splitlines(keepends=True)[:kept])
        again.add(row(99))
        assert ("99", "0") in Book.open(folder).measured


@given(st.binary(max_size=200))
def test_a_file_of_anything_is_no_reason_to_fail(content: bytes) -> None:
    with TemporaryDirectory() as name:
        (Path(name) / ROWS).write_bytes(content)
        Book.open(Path(name)).add(row(1))
        assert ("1", "0") in Book.open(Path(name)).measured


def test_failures_are_found_by_their_subject(tmp_path: Path) -> None:
    book = Book.open(tmp_path)
    for subject in ("3/1/4 @1", "3/1/4", "3/1/4 @8"):
        book.add({"kind": "failure", "subject": subject, "rung": 0, "what": "died"})
    assert len(Book.open(tmp_path).failures_of("3/1/4 @1", "3/1/4")) == 2
