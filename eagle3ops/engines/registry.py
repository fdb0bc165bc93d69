"""Which engine has which adapter, and which client asks it? Imported only when asked for: each brings its own needs."""

from collections.abc import Callable
from pathlib import Path

from eagle3ops.engines.base import Adapter
from eagle3ops.engines.client import EngineClient
from eagle3ops.errors import RequestError


def _reference() -> Adapter:
    from eagle3ops.engines.reference.adapter import ReferenceAdapter

    return ReferenceAdapter()


def _sglang() -> Adapter:
    from eagle3ops.engines.sglang.adapter import SglangAdapter

    return SglangAdapter()


def _vllm() -> Adapter:
    from eagle3ops.engines.vllm.adapter import VllmAdapter

    return VllmAdapter()


_ADAPTERS: dict[str, Callable[[], Adapter]] = {"reference": _reference, "sglang": _sglang, "vllm": _vllm}


def adapter(name: str) -> Adapter:
    """The adapter called `name`; raises RequestError with the known names."""
    try:
        return _ADAPTERS[name]()
    except KeyError:
        raise RequestError(
            f"no adapter for engine {name!r}", remedy="known engines: " + ", ".join(sorted(_ADAPTERS))
        ) from None


def client(name: str, url: str, *, log: Path | None = None) -> EngineClient:
    """What asks a server of the engine called `name` at `url`; see `EngineClient`."""
    if name == "vllm":
        from eagle3ops.engines.vllm.client import VllmClient

        return VllmClient(url, log=log)
    return EngineClient(url, log=log)
