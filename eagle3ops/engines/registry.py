"""Which engine has which adapter? Imported only when asked for: each brings its own needs."""

from collections.abc import Callable

from eagle3ops.engines.base import Adapter
from eagle3ops.errors import RequestError


def _reference() -> Adapter:
    from eagle3ops.engines.reference.adapter import ReferenceAdapter

    return ReferenceAdapter()


def _sglang() -> Adapter:
    from eagle3ops.engines.sglang.adapter import SglangAdapter

    return SglangAdapter()


_ADAPTERS: dict[str, Callable[[], Adapter]] = {"reference": _reference, "sglang": _sglang}


def adapter(name: str) -> Adapter:
    """The adapter called `name`; raises RequestError with the known names."""
    try:
        return _ADAPTERS[name]()
    except KeyError:
        raise RequestError(
            f"no adapter for engine {name!r}", remedy="known engines: " + ", ".join(sorted(_ADAPTERS))
        ) from None
