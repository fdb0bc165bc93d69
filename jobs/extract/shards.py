"""How do the rows of a split become durable shards? What verifies is kept, what is torn is made again."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from eagle3ops.answers import AnswerRow
from eagle3ops.errors import Eagle3opsError
from eagle3ops.jobs.extract.source import Source
from eagle3ops.jobs.extract.spec import ExtractSpec, stored_dtype

if TYPE_CHECKING:
    from eagle3ops.features import FeatureRow, FeatureWriter, QuantisedRow, ShardRecord


def extract_split(
    source: Source,
    rows: Sequence[AnswerRow],
    folder: Path,
    spec: ExtractSpec,
    *,
    fingerprint: str,
    advance: Callable[[int], None],
    warn: Callable[[str], None],
    skip_unsound: bool = False,
) -> None:
    """Write the shards of one split; a shard that verifies is kept, a torn one is named and made again.

    Args:
        skip_unsound: a shard without a sound row is left out instead of ending the stage.

    Raises:
        Eagle3opsError: the split has no rows, or a hidden state is not finite.
    """
    from eagle3ops.features import FeatureHeader, FeatureWriter

    if not rows:
        raise Eagle3opsError(
            f"no answers for {folder.name}", remedy="let generate answer at least one prompt of each split"
        )
    header = FeatureHeader(
        target_fingerprint=fingerprint,
        aux_layers=source.layers,
        hidden_size=source.hidden_size,
        dtype=stored_dtype(spec),
        final_state="pre_norm",
        final_tokens="taught" if spec.keep == "needed" else "all",
    )
    writer = FeatureWriter(folder, header, keep_damaged=spec.quota is None)
    kept = writer.verified()
    for problem in writer.problems:
        warn(f"{folder.name}: {problem}; it is extracted again")
    todo: list[tuple[str, Sequence[AnswerRow]]] = []
    for first in range(0, len(rows), spec.rows_per_shard):
        name, chunk = f"{first // spec.rows_per_shard:05d}", rows[first : first + spec.rows_per_shard]
        if name in kept:
            advance(_tokens(chunk, spec))
        else:
            todo.append((name, chunk))
    for chunk, record in _written(writer, source, todo):
        if isinstance(record, Exception):
            if not skip_unsound:
                raise record
            warn(f"{folder.name}: {record}")
        else:
            for bad in record.dropped:
                warn(f"{folder.name}: row {bad.id} is left out: {bad.reason}")
        advance(_tokens(chunk, spec))


def _tokens(rows: Sequence[AnswerRow], spec: ExtractSpec) -> int:
    return sum(min(spec.max_tokens, len(row.prompt_ids) + len(row.output_ids)) for row in rows)


def _written(
    writer: "FeatureWriter", source: Source, todo: Sequence[tuple[str, Sequence[AnswerRow]]]
) -> "Iterator[tuple[Sequence[AnswerRow], ShardRecord | Exception]]":
    """Every shard's rows with its record once it is durable, or with why no row of it was sound; in order."""
    from eagle3ops.features.format import NoSoundRow

    def write(name: str, rows: "Sequence[FeatureRow | QuantisedRow]") -> "ShardRecord | Exception":
        try:
            return writer.write_shard(name, rows)
        except NoSoundRow as error:
            return error

    computed = zip(todo, source.shards(chunk for _, chunk in todo), strict=True)
    if not source.workers:
        for (name, chunk), rows in computed:
            yield chunk, write(name, rows)
        return
    waiting: deque[tuple[Sequence[AnswerRow], Future[ShardRecord | Exception]]] = deque()
    with ThreadPoolExecutor(source.workers, "shards") as pool:
        for (name, chunk), rows in computed:
            waiting.append((chunk, pool.submit(write, name, rows)))
            # No more of them in memory than are being written, and one that waits.
            while len(waiting) > source.workers:
                first, future = waiting.popleft()
                yield first, future.result()
        for chunk, future in waiting:
            yield chunk, future.result()
