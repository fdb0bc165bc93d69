"""Hidden-state shards: format, manifest, writer, reader."""

from eagle3ops.features.format import BadRow, FeatureError, FeatureHeader, Problem, ShardRecord
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
    "Shard",
    "ShardRecord",
]
