"""How is a drafter trained from folders of features?"""

import hashlib
from pathlib import Path

from eagle3ops.eagle3.conclusion import TrainResult
from eagle3ops.eagle3.listener import SILENT, Listener
from eagle3ops.eagle3.target_head import TargetHead
from eagle3ops.eagle3.train_config import TrainConfig
from eagle3ops.eagle3.training import train_rows
from eagle3ops.features.format import FeatureError
from eagle3ops.features.reader import FeatureReader


def _data_key(readers: list[FeatureReader]) -> str:
    hashes = [(r.header, [(record.shard, record.sha256) for record in r.shards]) for r in readers]
    return hashlib.sha256(repr(hashes).encode()).hexdigest()


def train(
    features: Path | FeatureReader,
    heldout: Path | FeatureReader | None,
    head: TargetHead,
    out: Path,
    config: TrainConfig,
    *,
    listener: Listener = SILENT,
    init_from: Path | None = None,
) -> TrainResult:
    """Train a drafter, or go on where a killed training stopped; blocks until the export is checked.

    Args:
        features: what is trained on; heldout: what the accept length is predicted on.
        out: gets `checkpoint/`, `metrics.jsonl`, `tensorboard/` and at last `drafter/`.
        init_from: an exported drafter to go on from.

    Raises:
        FeatureError: a shard is damaged (it is named), or the features are of another target.
        Eagle3opsError: settings or an earlier checkpoint do not fit; the message says which.
        OSError: `out` cannot be written.
    """
    readers = [features if isinstance(features, FeatureReader) else FeatureReader(features)]
    if heldout is not None:
        readers.append(heldout if isinstance(heldout, FeatureReader) else FeatureReader(heldout))
    header = readers[0].header
    for reader in readers:
        if reader.header != header:
            raise FeatureError(f"{reader.folder}: its header differs from that of {readers[0].folder}")
        if problems := reader.verify():
            raise FeatureError(f"{reader.folder}: " + "; ".join(map(str, problems)), remedy="run the extract job again")
    shape = head.shape
    if (header.hidden_size, header.aux_layers.num_layers) != (shape.hidden_size, shape.num_layers):
        raise FeatureError(
            f"{readers[0].folder}: features of a target with {header.aux_layers.num_layers} layers of "
            f"{header.hidden_size}; this one has {shape.num_layers} of {shape.hidden_size}"
        )
    return train_rows(
        list(readers[0].rows()),
        list(readers[1].rows()) if len(readers) > 1 else [],
        header.aux_layers,
        head,
        out,
        config,
        data_key=_data_key(readers),
        listener=listener,
        init_from=init_from,
    )
