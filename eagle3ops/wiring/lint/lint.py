"""Is anything wrong with a drafter's checkpoint, for this target and this engine?"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from eagle3ops.errors import RequestError
from eagle3ops.wiring.lint import (
    class_checks,
    layer_checks,
    rope_checks,
    size_checks,
    switch_checks,
    tensor_checks,
)
from eagle3ops.wiring.lint.case import FAMILIES, SPECULATORS, SPECULATORS_OUTER, Case, Target
from eagle3ops.wiring.lint.checkpoint import Checkpoint, read_checkpoint, read_config
from eagle3ops.wiring.lint.finding import SEVERITIES, Finding

ENGINES = tuple(sorted(FAMILIES))


def lint(drafter: Path, target: Path, engine: str, version: str | None) -> list[Finding]:
    """Every finding, the worst first; none means that nothing is known to be wrong.

    Args:
        drafter: folder of the checkpoint.
        target: folder of the target: its config is needed, and its weights where embeddings are compared.
        engine: `sglang`, `vllm` or `reference`.
        version: of the engine; `reference` has none.

    Raises:
        RequestError: the engine is unknown, or one of the folders is none.
    """
    engine = engine.lower()
    if engine not in ENGINES:
        raise RequestError(f"no checks for engine {engine!r}", remedy=f"known: {', '.join(ENGINES)}")
    parsed = _version(engine, version)
    for folder, what in ((drafter, "drafter"), (target, "target")):
        if not folder.is_dir():
            raise RequestError(f"{folder}: no folder, so no {what}", remedy="name the folder that holds config.json")
    checkpoint = read_checkpoint(drafter)
    found = list(checkpoint.findings)
    if checkpoint.config is not None:
        case = Case(
            engine=engine,
            version=parsed,
            version_text=version if parsed is not None else None,
            drafter=checkpoint,
            config=_as_read(checkpoint.config, engine),
            target=read_target(target),
        )
        _check(case)
        found += case.findings
    return sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))


def _version(engine: str, version: str | None) -> Version | None:
    if engine == "reference":
        return None
    if version is None:
        raise RequestError(f"what is wrong depends on the version of {engine}", remedy="say --engine-version")
    try:
        return Version(version)
    except InvalidVersion as wrong:
        raise RequestError(f"{version!r} is no version of {engine}", remedy="such as 0.5.14") from wrong


def read_target(folder: Path) -> Target:
    """What of a target matters.

    Raises:
        RequestError: it has no config that can be read.
    """
    problems: list[Finding] = []
    config = read_config(folder, problems)
    if config is None:
        raise RequestError(f"the target's {problems[0].where}: {problems[0].what}", remedy="name the target's folder")
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""
    inner = config.get("text_config")
    whole = {**config, **inner} if isinstance(inner, Mapping) else config
    return Target(str(folder), name, whole, _tensors_of(folder))


def _tensors_of(folder: Path) -> Checkpoint:
    """The target's headers, where they can be read; what is wrong with them is not the drafter's fault."""
    found = read_checkpoint(folder)
    found.findings.clear()
    return found


def _as_read(config: Mapping[str, Any], engine: str) -> Mapping[str, Any]:
    """The config as the engine sees it: vLLM unfolds the form of speculators, with defaults of its own."""
    inner = config.get("transformer_layer_config")
    names = config.get("architectures")
    speculators = isinstance(names, list) and bool(SPECULATORS & {one for one in names if isinstance(one, str)})
    if engine != "vllm" or not isinstance(inner, Mapping) or not (speculators or "speculators_model_type" in config):
        return config
    outer = {key: config[key] for key in SPECULATORS_OUTER if config.get(key) is not None}
    parallel = config.get("speculators_model_type") == "peagle"
    residual = config.get("norm_before_residual", not parallel)
    kind = {"llama": "Llama", "qwen3": "Qwen3"}.get(str(inner.get("model_type", "llama")))
    name = (
        f"{'Peagle' if parallel else 'Eagle3'}{kind}ForCausalLM" if kind else f"of model_type {inner['model_type']!r}"
    )
    return {**inner, **outer, "norm_before_residual": residual, "architectures": [name]}


def _check(case: Case) -> None:
    if not class_checks.architecture(case):
        return
    class_checks.model_type(case)
    size_checks.sizes(case)
    if case.sizes is None:
        return
    switch_checks.switches(case)
    rope_checks.rope(case)
    rope_checks.context(case)
    tensor_checks.against_target(case)
    layer_checks.layer_ids(case)
    if case.drafter.tensors is None:
        return
    placed = tensor_checks.names_and_shapes(case)
    tensor_checks.types(case, placed)
    tensor_checks.vocabulary(case, placed)
    tensor_checks.embedding(case, placed)
