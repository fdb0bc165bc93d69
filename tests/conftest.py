"""What every test may ask for: the recordings of a real GPU host, and the switches for slow and GPU tests."""

import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

# Shared machines stall: a slow example is no failure, and pytest's own time-out ends what hangs.
settings.register_profile("eagle3ops", deadline=None)
settings.load_profile("eagle3ops")


def pytest_configure() -> None:
    """Let Ctrl-C be tried also where the shell that started the tests in the background had it ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run tests that take minutes")
    parser.addoption("--snapshot-update", action="store_true", help="write what is on the screens as their snapshots")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("slow") and not config.getoption("--slow"):
            item.add_marker(pytest.mark.skip(reason="takes minutes; run with --slow"))
        if item.get_closest_marker("gpu") and not _has_gpu():
            item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU here"))
        if item.get_closest_marker("sglang") and not os.environ.get("EAGLE3OPS_SGLANG_PYTHON"):
            item.add_marker(pytest.mark.skip(reason="EAGLE3OPS_SGLANG_PYTHON names no Python that has SGLang"))
        if item.get_closest_marker("vllm") and not os.environ.get("EAGLE3OPS_VLLM_PYTHON"):
            item.add_marker(pytest.mark.skip(reason="EAGLE3OPS_VLLM_PYTHON names no Python that has vLLM"))
        if item.get_closest_marker("recordings") and _recordings() is None:
            item.add_marker(pytest.mark.skip(reason="EAGLE3OPS_RECORDINGS does not name a folder of recordings"))
        if item.get_closest_marker("cases") and _cases() is None:
            item.add_marker(pytest.mark.skip(reason="EAGLE3OPS_CASES does not name a folder of logs with known causes"))
    # The longest files first: where several processes share the tests, none is left alone with one of them at the end.
    items.sort(key=lambda item: item.path.parent.name != "system")


def _has_gpu() -> bool:
    return Path("/dev/nvidia0").exists()


def _recordings() -> Path | None:
    folder = os.environ.get("EAGLE3OPS_RECORDINGS")
    return Path(folder) if folder and Path(folder).is_dir() else None


def _cases() -> Path | None:
    folder = os.environ.get("EAGLE3OPS_CASES")
    if folder:
        return Path(folder) if Path(folder).is_dir() else None
    # They lie beside the recordings, where those are at hand.
    recordings = _recordings()
    beside = recordings.parent / "cases" / "logs" if recordings is not None else None
    return beside if beside is not None and beside.is_dir() else None


@pytest.fixture(scope="session")
def cases() -> Path:
    """Logs with known causes: NAME.log, and beside it NAME.json with what is true about it."""
    folder = _cases()
    if folder is None:
        pytest.skip("EAGLE3OPS_CASES does not name a folder of logs with known causes")
    return folder


@pytest.fixture(scope="session")
def recordings() -> Path:
    """Recordings of real engines: `gpu/drafter`, `gpu/answers.jsonl.gz`, ..."""
    folder = _recordings()
    if folder is None:
        pytest.skip("EAGLE3OPS_RECORDINGS does not name a folder of recordings")
    return folder
