"""Is what the file system refuses told with the path and what to do?"""

from collections.abc import Callable
from pathlib import Path

import pytest

from eagle3ops.runs.files import explain_os_error


def a_folder(place: Path) -> None:
    place.open("w")


def below_a_file(place: Path) -> None:
    (place / "file").write_text("")
    (place / "file" / "below").mkdir()


def missing(place: Path) -> None:
    (place / "no" / "such").write_text("")


@pytest.mark.parametrize(
    ("deed", "told"),
    [
        (a_folder, "a folder stands where a file is needed"),
        (below_a_file, "a file stands where a folder is needed"),
        (missing, "cannot be created"),
    ],
)
def test_it_is_told_in_words(tmp_path: Path, deed: Callable[[Path], None], told: str) -> None:
    with pytest.raises(OSError) as caught:  # noqa: PT011 - of any kind: which, is what is asked here
        deed(tmp_path)
    found = explain_os_error(caught.value)
    assert found is not None
    assert told in found.what
    assert str(tmp_path) in found.what
    assert found.remedy


def test_what_is_no_matter_of_files_is_left_to_others() -> None:
    assert explain_os_error(OSError(None, "x")) is None
    assert explain_os_error(ConnectionResetError(104, "reset")) is None
