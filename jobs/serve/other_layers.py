"""How is a drafter served with other layers than it was trained on? For experiments: is a wrong wiring found out?

The reference engine is told on its command line. Other engines feed a drafter what its config names, so they are given
the same weights under another config.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from eagle3ops.engines.footprint import engine_version
from eagle3ops.errors import RequestError
from eagle3ops.runs.files import read_json, write_json
from eagle3ops.runs.job import PlanContext
from eagle3ops.spec.base import AuxLayersSpec

if TYPE_CHECKING:
    from eagle3ops.eagle3.layers import AuxLayers

FOLDER = "drafter-as-served"


def relabelled(drafter: Path, layers: "AuxLayers", out: Path) -> Path:
    """The drafter with another config: links to its files in `out/drafter-as-served`.

    Raises:
        OSError: its config cannot be read, or `out` not be written.
    """
    from eagle3ops.eagle3.checkpoint import name_layers

    folder = out / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for file in drafter.iterdir():
        link = folder / file.name
        # What is there is left alone: a server may be reading it, as bench starts several.
        if file.name != "config.json" and not link.is_symlink():
            link.symlink_to(file.resolve())
    config = name_layers(json.loads((drafter / "config.json").read_text("utf-8")), layers)
    if read_json(folder / "config.json") != config:
        write_json(folder / "config.json", config)
    return folder


def refuse_unservable(ctx: PlanContext, layers: AuxLayersSpec | None) -> RequestError | None:
    """Why the pipeline's engine would fail on these layers; None where it would not, or where that is not known."""
    from eagle3ops.eagle3.layers import resolve_layers
    from eagle3ops.wiring.captured import captured

    config, engine = ctx.target_config() or {}, ctx.pipeline.engine.name
    count, classes = config.get("num_hidden_layers"), config.get("architectures")
    if layers is None:
        return None
    own = getattr(ctx.pipeline.stages.get("extract"), "aux_layers", None)
    reads = 3 if own is None else len(own.ids)
    if len(layers.ids) != reads:
        return RequestError(
            f"stages.serve.aux_layers: the drafter reads {reads} layers, and {len(layers.ids)} are named",
            remedy="name as many as it was trained on, or leave stages.serve.aux_layers out",
        )
    if engine == "reference" or not isinstance(count, int) or not isinstance(classes, list):
        return None
    wanted = resolve_layers(layers, count, "stages.serve.aux_layers")
    # As an export writes them: for vLLM beside `eagle_config` at the top level, where both its model runners read them.
    top = engine == "vllm"
    try:
        version = engine_version(ctx.pipeline.engine, Path("TARGET"))
        found = captured(
            engine, version, str(next(iter(classes), "")), count,
            wanted.ids("boundary" if top else "layer_outputs"), key_at="top" if top else None,
        )  # fmt: skip
    except RequestError:
        return None
    told = [note for note in found.notes if note.startswith("error: ") or "dropped" in note or "come out" in note]
    if len(found.boundary) == len(wanted.boundary) and not any(note.startswith("error: ") for note in told):
        return None
    return RequestError(
        f"stages.serve.aux_layers: {engine} {version or ''} cannot feed a drafter these layers: "
        f"{'; '.join(note.removeprefix('error: ') for note in told)}",
        remedy="name layers that it captures (eagle3ops layers says which), or leave stages.serve.aux_layers out",
    )
