"""How much disk do hidden states take, and do they fit a quota?

All figures are upper bounds known before anything is extracted, so that a plan made of them is never exceeded: a row's
states, token ids and mask, its id in the shard and, should the scan reject it, in the manifest.
"""

import json
from collections.abc import Iterable
from pathlib import Path

FOLDER_BYTES = 4096
"""`header.json` of one folder, and the temporary file that it is written as."""
SHARD_BYTES = 2048
"""A shard's own header and its line in the manifest."""
_ROW_BYTES = 160
"""Offsets, and the reason should the row be rejected."""


def bytes_per_token(hidden_size: int, aux_layers: int, width: int, scale: int = 0) -> int:
    """Of aux and final states (`width` bytes a number, `scale` more a state), token id and mask."""
    return (aux_layers + 1) * (hidden_size * width + scale) + 5


def row_bytes(tokens: int, row_id: str, per_token: int) -> int:
    """Upper bound of what one row adds to a shard and the manifest."""
    # The id stands in a JSON string inside a JSON header, and once more in the manifest.
    return tokens * per_token + _ROW_BYTES + 3 * len(json.dumps(row_id))


def split_bytes(rows: Iterable[int], rows_per_shard: int) -> int:
    """Upper bound of a folder with rows of these sizes."""
    sizes = list(rows)
    return FOLDER_BYTES + sum(sizes) + SHARD_BYTES * -(-len(sizes) // rows_per_shard)


def used_bytes(*folders: Path) -> int:
    """Bytes of the files in these feature folders; files that vanish meanwhile count as gone."""
    total = 0
    for folder in folders:
        for path in folder.rglob("*") if folder.is_dir() else ():
            try:
                total += 0 if path.is_dir() else path.lstat().st_size
            except FileNotFoundError:
                continue
    return total
