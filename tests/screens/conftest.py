"""A console with settings of its own, whose event loop must never wait for a disk, a socket or a sleep."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import textual._wait
from blockbuster import BlockBuster, blockbuster_ctx
from forked import ForkedTransport, nursery
from snapshots import FOLDER, Snapshots

from eagle3ops.hosts.prompts import Prompts
from eagle3ops.hosts.reach import transport_for
from eagle3ops.hosts.transport import Transport
from eagle3ops.screens import app


@pytest.fixture(autouse=True)
def _own_settings(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    folder: Path = tmp_path_factory.mktemp("console")
    monkeypatch.setenv("EAGLE3OPS_CONFIG", str(folder / "config"))
    monkeypatch.setenv("EAGLE3OPS_STATE", str(folder / "state"))
    for name in ("EAGLE3OPS_THEME", "EAGLE3OPS_ASCII", "EAGLE3OPS_READ_ONLY", "EAGLE3OPS_REFRESH", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def agents() -> Iterator[str]:
    """Where agents are forked."""
    with nursery() as address:
        yield address


@pytest.fixture(autouse=True)
def _forked_agents(agents: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Consoles on this machine get agents that start in no time."""

    def forked(host: str, prompts: Prompts) -> Transport:
        return ForkedTransport(agents) if host == "local" else transport_for(host, prompts)

    monkeypatch.setattr(app, "transport_for", forked)


@pytest.fixture(autouse=True)
def _short_breaths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two keys a pilot waits until nothing is going on; it looks more often than by itself."""
    monkeypatch.setattr(textual._wait, "SLEEP_GRANULARITY", 0.005)
    monkeypatch.setattr(textual._wait, "SLEEP_IDLE", 0.001)


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
