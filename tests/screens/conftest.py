"""A console with settings of its own, whose event loop must never wait for a disk, a socket or a sleep."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from blockbuster import BlockBuster, blockbuster_ctx
from snapshots import FOLDER, Snapshots


@pytest.fixture(autouse=True)
def _own_settings(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    folder: Path = tmp_path_factory.mktemp("console")
    monkeypatch.setenv("EAGLE3OPS_CONFIG", str(folder / "config"))
    monkeypatch.setenv("EAGLE3OPS_STATE", str(folder / "state"))
    for name in ("EAGLE3OPS_THEME", "EAGLE3OPS_ASCII", "EAGLE3OPS_READ_ONLY", "EAGLE3OPS_REFRESH", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)


MAY_BLOCK = {
    "<frozen importlib._bootstrap>": {"_find_and_load"},  # a module that is needed late is imported once
    "textual/screen.py": {"__init__"},  # a screen finds its style sheet ...
    "textual/css/stylesheet.py": {"read", "read_all"},  # ... and reads it, once
}


@pytest.fixture(autouse=True)
def _no_blocking(request: pytest.FixtureRequest) -> Iterator[BlockBuster]:
    """Fail where anything of eagle3ops that the event loop runs would block it; the test itself may."""
    with blockbuster_ctx("eagle3ops") as watched:
        for function in watched.functions.values():
            for file, names in MAY_BLOCK.items():
                function.can_block_in(file, names)
            function.can_block_in(request.path.name, {request.node.originalname})
        yield watched


@pytest.fixture
def snapshots(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Snapshots]:
    """Compare screens with those of before, in a place where it is always UTC."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield Snapshots(FOLDER, tmp_path, update=request.config.getoption("--snapshot-update"))
    monkeypatch.undo()
    time.tzset()
