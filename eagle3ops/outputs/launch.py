"""With which command is a drafter served?"""

from pathlib import Path

from eagle3ops.errors import RequestError
from eagle3ops.outputs.benchfile import parse_setting
from eagle3ops.outputs.case import Case
from eagle3ops.outputs.lineage import pipeline_of
from eagle3ops.outputs.values import count, mapping, text, words
from eagle3ops.runs.directory import RunDirectory

PORT = 30000
"""Where the pipeline names none."""


def launch_line(run: RunDirectory, case: Case, setting: str) -> str:
    """The command that serves a case's target with its drafter at a setting, quoted for a shell.

    Raises:
        RequestError: the setting's label is none, the target or the drafter is gone, or the engine is not known.
    """
    from eagle3ops.engines.base import ServeSpec
    from eagle3ops.engines.registry import adapter

    chosen = parse_setting(setting)
    if chosen is None or case.target is None or case.drafter is None or not case.target.path:
        raise RequestError(f"{run.run_id}: what is to be served at {setting!r} is not known")
    pipeline = pipeline_of(run)
    engine, stage = mapping(pipeline.get("engine")), mapping(mapping(pipeline.get("stages")).get("serve"))
    fraction, backend = engine.get("memory_fraction"), text(engine.get("attention_backend"))
    spec = ServeSpec(
        model=Path(case.target.path),
        port=count(stage.get("port")) or PORT,
        dtype=text(engine.get("dtype")) or case.dtype or "bfloat16",
        device=text(engine.get("device")) or "auto",
        drafter=case.drafter,
        steps=chosen[0],
        topk=chosen[1],
        draft_tokens=chosen[2],
        max_running_requests=count(engine.get("max_running_requests")) or 32,
        seed=count(pipeline.get("seed")) or 0,
        python=text(engine.get("python"), 4096) or None,
        gpus=count(engine.get("gpus")) or 1,
        attention_backend=backend or None,
        memory_fraction=fraction if isinstance(fraction, float) else None,
        trust_remote_code=mapping(pipeline.get("target")).get("trust_remote_code") is True,
        arguments=tuple(words(engine.get("arguments"))),
        variables={text(name): text(value, 4096) for name, value in mapping(engine.get("environment")).items()},
    )
    return adapter(text(engine.get("name")) or "reference").launch_line(spec)
