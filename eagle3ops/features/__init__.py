"""Hidden-state shards: format, manifest, writer, reader.

What lies on disk can be understood without torch; reader and writer are imported when they are asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from eagle3ops.features.format import BadRow, FeatureError, FeatureHeader, Problem, ShardRecord

if TYPE_CHECKING:
    from eagle3ops.features.quantised import QuantisedRow, StoredRow
    from eagle3ops.features.reader import FeatureReader, Shard
    from eagle3ops.features.writer import FeatureRow, FeatureWriter

__all__ = [
    "BadRow",
    "FeatureError",
    "FeatureHeader",
    "FeatureReader",
    "FeatureRow",
    "FeatureWriter",
    "Problem",
    "QuantisedRow",
    "Shard",
    "ShardRecord",
    "StoredRow",
]

_WITH_TORCH = {
    "FeatureReader": "reader",
    "Shard": "reader",
    "FeatureRow": "writer",
    "FeatureWriter": "writer",
    "QuantisedRow": "quantised",
    "StoredRow": "quantised",
}


def __getattr__(name: str) -> Any:
    if name not in _WITH_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WITH_TORCH[name]}"), name)
