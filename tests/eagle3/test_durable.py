"""What a kill, a full disk and a library's own error leave behind."""

import errno
from pathlib import Path

import pytest

from eagle3ops.eagle3.durable import write_durably


def test_a_full_disk_inside_another_library_becomes_the_systems_error(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_text("before")

    def fail(temporary: Path) -> None:
        temporary.write_text("half")
        raise RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)")

    with pytest.raises(OSError, match="No space left") as caught:
        write_durably(path, fail)
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename == str(path)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]
