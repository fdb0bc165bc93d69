"""Stand-ins that the tests of telemetry share."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_driver import Clock, FakeDriver, build


@pytest.fixture(scope="session")
def driver_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled library."""
    return build(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def driver(driver_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """A driver with two GPUs."""
    folder = tmp_path / "driver"
    folder.mkdir()
    return FakeDriver(driver_library, folder, monkeypatch)


@pytest.fixture
def clock() -> Clock:
    """Time that the test moves."""
    return Clock()


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A runtime folder of the test's own."""
    folder = tmp_path / "runtime"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("EAGLE3OPS_RUNTIME", str(folder))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
