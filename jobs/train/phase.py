"""What does one phase of training by turns do? In a process of its own:
`python -m eagle3ops.jobs.train.phase RUN_DIR KEY KIND TURN`.

KIND is `extract`, `train` or `conclude`. It reports into the run's events as the train stage; exit code 0 means that
what it made is durable, otherwise `phase-result.json` says why.
"""

import asyncio
import os
import sys
import traceback
from pathlib import Path

from eagle3ops.answers import AnswerRow
from eagle3ops.eagle3.durable import write_bytes_durably
from eagle3ops.eagle3.space import used_bytes
from eagle3ops.eagle3.target_head import TargetHead
from eagle3ops.eagle3.training_data import Row
from eagle3ops.eagle3.training_turns import conclude_turns, train_turn
from eagle3ops.eagle3.turns import Turn
from eagle3ops.engines.reference.model import pick_device
from eagle3ops.errors import Eagle3opsError
from eagle3ops.features import FeatureReader
from eagle3ops.features.format import MANIFEST
from eagle3ops.jobs.extract.quota import Survey, heldout_bytes, numbered_id, place_of, trained_rows
from eagle3ops.jobs.extract.shards import extract_split
from eagle3ops.jobs.extract.source import states_source
from eagle3ops.jobs.extract.spec import ExtractSpec
from eagle3ops.jobs.train.job import TrainSpec, listener_of, survey_of, train_config, write_prediction
from eagle3ops.jobs.train.turns import COMPLETE, RESULT, DamagedPart, alone, parts_folder, turn_folder
from eagle3ops.runs.context import Context
from eagle3ops.runs.directory import RunDirectory
from eagle3ops.runs.files import explain_os_error, log_line, write_json
from eagle3ops.runs.job import load_registry
from eagle3ops.runs.keys import stage_keys
from eagle3ops.runs.store import Store
from eagle3ops.spec.load import load_pipeline
from eagle3ops.targets import read_target_info

STAGE = "train"


def main() -> int:
    """Run the phase named on the command line."""
    run, key, kind, number = RunDirectory(Path(sys.argv[1])), sys.argv[2], sys.argv[3], int(sys.argv[4])
    out = Store(run.root).out(STAGE, key)
    try:
        with alone(out):
            _run(run, key, kind, number)
        return 0
    except Eagle3opsError as error:
        explained = error
    except Exception as error:  # noqa: BLE001  (the boundary: the stage that waits for it must learn the cause)
        log_line(traceback.format_exc())
        found = explain_os_error(error, error.filename) if isinstance(error, OSError) else None
        explained = found or Eagle3opsError(f"{kind} phase: {type(error).__name__}: {' '.join(str(error).split())}")
    log_line(str(explained))
    write_json(
        out / RESULT,
        {
            "what": explained.what,
            "remedy": explained.remedy,
            "exit_code": int(explained.exit_code),
            "damaged": isinstance(explained, DamagedPart),
        },
    )
    return int(explained.exit_code)


def _run(run: RunDirectory, key: str, kind: str, number: int) -> None:
    registry = load_registry()
    pipeline = load_pipeline(run.spec_file, registry.specs())
    store, keys = Store(run.root), stage_keys(pipeline, registry)
    if keys[STAGE] != key:
        raise Eagle3opsError(
            "the source code or an installed library changed while the run was going on",
            remedy=f"{run.command('resume')} does again what the change touches",
        )
    with run.events() as events:
        ctx = Context(
            pipeline=pipeline,
            spec=pipeline.stages[STAGE],
            stage=STAGE,
            out=store.out(STAGE, key),
            run_dir=run.path,
            inputs={need: store.out(need, keys[need]) for need in registry.job(STAGE).needs},
            cache=Path(run.request()["cache"]),
            events=events,
        )
        extract, train = pipeline.stages["extract"], ctx.spec
        assert isinstance(extract, ExtractSpec)
        assert isinstance(train, TrainSpec)
        survey = survey_of(ctx, extract, heldout_bytes(ctx.inputs["extract"]))
        if kind == "extract":
            _extract(ctx, extract, survey.turns[number])
        elif kind == "train":
            parts = parts_folder(ctx.out, in_memory=extract.place == "memory")
            _train(ctx, train, survey, survey.turns[number], key, parts)
        else:
            _conclude(ctx, train, survey, key)


def _extract(ctx: Context, spec: ExtractSpec, turn: Turn) -> None:
    """Write the shards of one turn; what an earlier attempt has finished is kept."""
    wanted = set(turn.rows)
    rows: list[AnswerRow] = [
        row.model_copy(update={"id": numbered_id(index, row.id)})
        for index, row in trained_rows(ctx.inputs["generate"] / "answers.jsonl", spec)
        if index in wanted
    ]
    folder = turn_folder(parts_folder(ctx.out, in_memory=spec.place == "memory"), turn)
    kept = ctx.inputs["extract"] / "heldout"

    def advance(tokens: int) -> None:
        used = used_bytes(kept, folder)
        ctx.metric("hidden_states_bytes", float(used))
        if spec.quota is not None and used > spec.quota:
            raise Eagle3opsError(f"the hidden states take {used} bytes, more than the quota of {spec.quota}")

    async def extract() -> None:
        async with states_source(ctx, spec) as source:
            await asyncio.to_thread(
                extract_split,
                source,
                rows,
                folder,
                spec,
                fingerprint=read_target_info(ctx.inputs["fetch"]).fingerprint,
                advance=advance,
                warn=ctx.warn if turn.epoch == 0 else log_line,
                skip_unsound=True,
            )

    asyncio.run(extract())
    write_bytes_durably(folder / COMPLETE, b"")


def _part_rows(folder: Path) -> dict[int, Row]:
    if not (folder / MANIFEST).exists():
        # The scan rejected every row.
        return {}
    reader = FeatureReader(folder)
    if problems := reader.verify():
        raise DamagedPart(f"{folder}: " + "; ".join(map(str, problems)), remedy="resume the run")
    return {place_of(row.id): row for row in reader.rows()}


def _heldout(ctx: Context) -> FeatureReader:
    return FeatureReader(ctx.inputs["extract"] / "heldout")


def _head(ctx: Context) -> TargetHead:
    info = read_target_info(ctx.inputs["fetch"])
    return TargetHead.load(info.path, device=pick_device(ctx.pipeline.engine.device))


def _train(ctx: Context, spec: TrainSpec, survey: Survey, turn: Turn, key: str, parts: Path) -> None:
    reader = _heldout(ctx)
    train_turn(
        _part_rows(turn_folder(parts, turn)),
        turn,
        survey.text,
        list(reader.rows()) if spec.eval_every else [],
        reader.header.aux_layers,
        _head(ctx),
        ctx.out,
        train_config(ctx.pipeline, spec),
        data_key=key,
        listener=listener_of(ctx),
        init_from=None if spec.init_from is None else Path(spec.init_from),
    )


def _conclude(ctx: Context, spec: TrainSpec, survey: Survey, key: str) -> None:
    reader = _heldout(ctx)
    if problems := reader.verify():
        raise Eagle3opsError(f"{reader.folder}: " + "; ".join(map(str, problems)), remedy="run the extract job again")
    result = conclude_turns(
        survey.text,
        list(reader.rows()),
        reader.header.aux_layers,
        _head(ctx),
        ctx.out,
        train_config(ctx.pipeline, spec),
        data_key=key,
        warn=ctx.warn,
        init_from=None if spec.init_from is None else Path(spec.init_from),
    )
    write_prediction(ctx.out, result, turns=len(survey.turns))


if __name__ == "__main__":
    # Threads of the libraries must not keep the process, nor the GPU's memory.
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
