"""The whole pipeline on the tiny target with real processes: to the end, wired wrongly on purpose, and killed."""

import asyncio
import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file

from eagle3ops import jobs
from eagle3ops.answers import read_answers
from eagle3ops.jobs.bench import alarm
from eagle3ops.jobs.bench.job import Bench, served_answers
from eagle3ops.jobs.bench.spec import BenchSpec
from eagle3ops.jobs.report.tables import alarm_tables
from eagle3ops.jobs.serve.job import ServeStageSpec, serve_spec, started
from eagle3ops.outputs.benchfile import parse_bench
from eagle3ops.runs.context import Context
from eagle3ops.runs.events import EventLog
from eagle3ops.spec.load import load_pipeline

pytestmark = pytest.mark.timeout(600)

STAGES = ["fetch", "generate", "extract", "train", "serve", "verify", "bench", "report"]


def command(root: Path, *args: str) -> list[str]:
    return [sys.executable, "-m", "eagle3ops", *args, "--root", str(root)]


def environment(cache: Path) -> dict[str, str]:
    return {
        **os.environ,
        "EAGLE3OPS_CACHE": str(cache),
        "EAGLE3OPS_STATE": str(cache / "state"),
        "OMP_NUM_THREADS": "2",
        "NO_COLOR": "1",
    }


def run(root: Path, cache: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(root, *args), env=environment(cache), capture_output=True, text=True, check=False)


def only_run(root: Path) -> Path:
    (folder,) = [path for path in (root / "runs").iterdir() if path.is_dir()]
    return folder


def first_run(root: Path) -> Path:
    """The undisturbed one: tests of this module add others."""
    return min((root / "runs").iterdir())


def events(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def verdicts(folder: Path) -> dict[str, dict[str, Any]]:
    return {event["data"]["name"]: event["data"] for event in events(folder) if event["kind"] == "verdict"}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    """The root of one uninterrupted run."""
    root = tmp_path_factory.mktemp("finished")
    done = run(root, cache, "--job", "pipeline", "--spec", "tiny")
    assert done.returncode == 0, done.stderr[-4000:]
    return root


def test_every_stage_ends_and_the_verdicts_pass(finished: Path) -> None:
    folder = only_run(finished)
    state = json.loads((folder / "state.json").read_text())
    assert {name: stage["status"] for name, stage in state["stages"].items()} == dict.fromkeys(STAGES, "done")
    found = verdicts(folder)
    assert set(found) >= {"wiring", "equal_output", "accept_length"}
    assert all(verdict["passed"] for verdict in found.values()), found
    assert found["wiring"]["data"]["greedy_agreement"] > 0.99
    report = folder / "artifacts" / "report"
    assert (report / "report.html").stat().st_size > 10_000
    assert "PASS" in (report / "report.md").read_text()


def test_a_second_run_redoes_nothing(finished: Path, cache: Path) -> None:
    before = {path.name for path in (finished / "stages").iterdir()}
    again = run(finished, cache, "--job", "bench", "--spec", "tiny", "--json")
    assert again.returncode == 0, again.stderr[-2000:]
    kinds = [json.loads(line)["kind"] for line in again.stdout.splitlines()]
    assert "stage_started" not in kinds
    assert {path.name for path in (finished / "stages").iterdir()} == before


@pytest.mark.parametrize(
    ("ids", "trained", "served"),
    [
        ("[0, 4, 5]", "boundary 2 (output of layer 1)", "boundary 0 (embedding)"),
        pytest.param(
            "[3, 5, 6]", "boundary 2 (output of layer 1)", "boundary 3 (output of layer 2)", marks=pytest.mark.slow
        ),
    ],
)
def test_wrong_wiring_on_the_serving_side_fails_and_names_the_layers(
    finished: Path, cache: Path, ids: str, trained: str, served: str
) -> None:
    override = f"stages.serve.aux_layers={{convention: boundary, ids: {ids}}}"
    done = run(finished, cache, "--job", "verify", "--spec", "tiny", "--set", override, "--json")
    # Upstream of verify is serve, which is new with this override: run it first.
    if done.returncode == 2:
        first = run(finished, cache, "--job", "serve", "--spec", "tiny", "--set", override)
        assert first.returncode == 0, first.stderr[-2000:]
        done = run(finished, cache, "--job", "verify", "--spec", "tiny", "--set", override, "--json")
    assert done.returncode == 3, done.stderr[-2000:]
    (verdict,) = [
        event["data"] for line in done.stdout.splitlines() if (event := json.loads(line))["kind"] == "verdict"
    ]
    assert not verdict["passed"]
    assert f"trained on {trained}, but {served} is served" in verdict["reason"]
    # The name of that verdict is the one for which bench is not started.
    whole = run(finished, cache, "--job", "pipeline", "--spec", "tiny", "--set", override)
    assert whole.returncode == 3
    assert "bench was not started: verify/wiring is FAIL" in whole.stderr


def test_an_undecided_wiring_is_no_pass(finished: Path, cache: Path) -> None:
    """Nothing moves as little as is allowed here, so the verdict has to stay open."""
    override = "stages.verify.max_error=1e-9"
    done = run(finished, cache, "--job", "verify", "--spec", "tiny", "--set", override, "--json")
    assert done.returncode == 3, done.stderr[-2000:]
    (verdict,) = [
        event["data"] for line in done.stdout.splitlines() if (event := json.loads(line))["kind"] == "verdict"
    ]
    assert (verdict["verdict"], verdict["passed"]) == ("UNDECIDED", False)
    assert "what would decide it" in verdict["reason"]
    newest = max((finished / "runs").iterdir(), key=lambda folder: folder.stat().st_mtime)
    state = json.loads((newest / "state.json").read_text())
    assert (state["status"], state["exit_code"]) == ("done", 3)
    assert state["cause"] == "verdict UNDECIDED: verify/wiring"
    shown = run(finished, cache, "runs", "wiring", newest.name)
    assert shown.returncode == 3
    assert "? UNDECIDED" in shown.stdout
    assert "loss mask (data and training)" in shown.stdout


@pytest.mark.parametrize("ids", [None, [3, 5, 6]], ids=["wired-rightly", "wired-wrongly"])
def test_a_prediction_that_is_not_met_has_the_wiring_measured_again(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ids: list[int] | None
) -> None:
    """The real engine is asked, the alarm fires, and a second engine is started and measured as verify does it."""
    shutil.copytree(finished / "stages", tmp_path / "stages")
    folder = min((finished / "runs").iterdir())
    state = json.loads((folder / "state.json").read_text())["stages"]
    inputs = {name: tmp_path / "stages" / f"{name}-{stage['key'][:16]}" for name, stage in state.items()}
    # As if the drafter had been far better in training: nearly every draft right.
    file = inputs["train"] / "prediction.json"
    prediction = json.loads(file.read_text())
    prediction["accept_length"]["3"] |= {"accept_length": 3.4, "histogram": [60, 40, 40, 400]}
    file.write_text(json.dumps(prediction))
    pipeline = load_pipeline(folder / "spec.yaml", jobs.specs())
    stage = pipeline.stages["serve"]
    assert isinstance(stage, ServeStageSpec)
    if ids is not None:
        wrong = {"aux_layers": {"convention": "boundary", "ids": ids}}
        stage = ServeStageSpec.model_validate(stage.model_dump() | wrong)
        pipeline = pipeline.model_copy(update={"stages": {**pipeline.stages, "serve": stage}})
    spec = pipeline.stages["bench"]
    assert isinstance(spec, BenchSpec)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    (tmp_path / "logs").mkdir()
    out = tmp_path / "stages" / "bench-0000"
    out.mkdir()
    ctx = Context(
        pipeline=pipeline, spec=spec, stage="bench", out=out, run_dir=tmp_path,
        inputs={name: path for name, path in inputs.items() if name in Bench.needs}, cache=tmp_path,
        events=EventLog(tmp_path / "events.jsonl"),
    )  # fmt: skip
    rows = [row for row in read_answers(inputs["generate"] / "answers.jsonl") if row.split == "heldout"]

    async def bench() -> dict[str, Any]:
        setting = serve_spec(ctx, stage, stage.speculation)
        async with started(ctx, setting, "engine-bench") as client:
            answers = await served_answers(ctx, spec, client, rows)
        record, held = alarm.hold(ctx, spec, stage, rows, answers)
        assert held.alarm
        return record | await alarm.investigate(ctx, spec, held)

    record = asyncio.run(bench())
    assert record["alarm"]["kind"] == "short"
    assert record["alarm"]["start"] == 1
    assert record["wiring"]["passed"] is (ids is None)
    suspects = {one["name"]: one["state"] for one in record["suspects"]}
    assert suspects["wiring"] == ("cleared" if ids is None else "likely")
    assert suspects["weights"] == "cleared"
    told = [event for event in events(tmp_path) if event["kind"] == "verdict"]
    assert {event["stage"] for event in told} == {"bench"}
    given = {event["data"]["name"]: event["data"] for event in told}
    assert set(given) == set(ctx.findings.verdicts) == {"accept_length", "output_diversity", "wiring_again"}
    assert given["accept_length"]["passed"] is False
    assert given["wiring_again"]["passed"] is (ids is None)
    if ids is not None:
        assert "boundary 3 (output of layer 2) is served" in given["wiring_again"]["reason"]
    # The same record is told to the Bench room and the report.
    told_of = parse_bench({"timing": {"settings": {"3/1/4": {}}}, "accept": record})
    assert told_of is not None
    assert told_of.accept is not None
    assert told_of.accept.alarm is not None
    assert told_of.accept.alarm.wiring is (ids is None)
    assert [table.title for table in alarm_tables(record)][:2] == ["ALARM: not what was predicted", "What it can be"]
    # Where the hidden states are gone, nothing can be measured, and that is said.
    shutil.rmtree(inputs["extract"])
    passed, why = asyncio.run(alarm.wiring_again(ctx))
    assert passed is None
    assert "gone" in why


def kill_tree(root: Path) -> bool:
    """SIGKILL every process that works under `root`; whether there was one."""
    doomed: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and str(root) in " ".join(process.cmdline()):
                doomed[process.pid] = process
                doomed.update((child.pid, child) for child in process.children(recursive=True))
        except (psutil.NoSuchProcess, psutil.ZombieProcess, psutil.AccessDenied):
            continue
    for process in doomed.values():
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(list(doomed.values()), timeout=10)
    return bool(doomed)


@pytest.mark.parametrize("kills", [pytest.param(3, id="three"), pytest.param(10, id="ten", marks=pytest.mark.slow)])
def test_a_killed_and_resumed_run_trains_the_same_drafter(
    finished: Path, cache: Path, tmp_path: Path, kills: int
) -> None:
    generator = random.Random(kills)
    started = time.monotonic()
    process = subprocess.Popen(
        command(tmp_path, "--job", "pipeline", "--spec", "tiny"),
        env=environment(cache),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    done = 0
    while done < kills:
        time.sleep(generator.uniform(0.5, 10.0))
        kill_tree(tmp_path)
        process.wait(timeout=30)
        done += 1
        process = subprocess.Popen(
            command(tmp_path, "runs", "resume", only_run(tmp_path).name),
            env=environment(cache),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    assert process.wait(timeout=500) == 0, f"after {time.monotonic() - started:.0f} s"
    folder = only_run(tmp_path)
    for split in ("train", "heldout"):
        manifest = folder / "artifacts" / "extract" / split / "manifest.jsonl"
        shards = [json.loads(line)["shard"] for line in manifest.read_text().splitlines()]
        torn = [event for event in events(folder) if event["stage"] == "extract" and event["kind"] == "warn"]
        assert len(shards) - len(set(shards)) <= len(torn), f"{split}: shards were extracted twice: {shards}"
    ours = load_file(folder / "artifacts" / "train" / "drafter" / "model.safetensors")
    undisturbed = min((finished / "runs").iterdir())  # other tests of this module may have added runs since
    theirs = load_file(undisturbed / "artifacts" / "train" / "drafter" / "model.safetensors")
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert tensor.equal(theirs[name]), f"{name} differs after {kills} kills"


def test_the_bench_holds_every_load_and_each_has_its_pairs(finished: Path) -> None:
    bench = json.loads((first_run(finished) / "artifacts" / "bench" / "bench.json").read_text())
    assert bench["lineup"]["groups"] == [["baseline", "3/1/4", "1/1/2", "3/2/6"]]
    (ladder,), (latency,) = bench["ladder"], bench["latency"]
    assert bench["timing"]["settings"] == ladder["settings"]
    for label, row in ladder["settings"].items():
        assert len(row["blocks"]) == ladder["prompts"]
        assert label == "baseline" or row["speedup"]["pairs"] == ladder["prompts"]
        assert label == "baseline" or row["accept_length"] >= 1.0
        assert 0 < latency["settings"][label]["ttft_s"]["p50"] <= latency["settings"][label]["e2e_s"]["p99"]
    near = bench["divergence"]
    assert near["passed"]
    assert set(near["identical"]) == {"3/1/4", "1/1/2", "3/2/6"}
    assert near["again"] == near["prompts"]


@pytest.mark.slow
def test_compare_tells_a_drafter_from_one_that_sees_nothing(finished: Path, cache: Path, tmp_path: Path) -> None:
    source = first_run(finished) / "artifacts" / "train" / "drafter"
    blind, broken = tmp_path / "blind", tmp_path / "broken"
    tensors = load_file(source / "model.safetensors")
    for folder in (blind, broken):
        shutil.copytree(source, folder)
    save_file(tensors | {"fc.weight": torch.zeros_like(tensors["fc.weight"])}, blind / "model.safetensors")
    save_file({name: one for name, one in tensors.items() if name != "fc.weight"}, broken / "model.safetensors")

    def compare(other: Path) -> subprocess.CompletedProcess[str]:
        drafters = f"stages.compare.drafters=[ours, {other}]"
        few = ("--set", "stages.compare.prompts=8", "--set", "stages.compare.max_new_tokens=16")
        return run(finished, cache, "--job", "compare", "--spec", "tiny", "--set", drafters, *few)

    refused = compare(broken)
    assert refused.returncode == 2, refused.stderr[-2000:]
    assert "missing: fc.weight" in refused.stderr
    done = compare(blind)
    assert done.returncode == 0, done.stderr[-2000:]
    (out,) = (path for path in (finished / "stages").glob("compare-*") if (path / "compare.json").is_file())
    record = json.loads((out / "compare.json").read_text())
    assert set(record["settings"]) == {"baseline", "ours 3/1/4", "blind 3/1/4"}
    (pair,) = (one for one in record["duels"] if "baseline" not in (one["one"], one["other"]))
    assert (pair["one"], pair["other"]) == ("ours 3/1/4", "blind 3/1/4")
    assert pair["speed"]["pairs"] == 8
    assert pair["accept_length"]["value"] > 0
    assert record["settings"]["ours 3/1/4"]["parameters"] == sum(one.numel() for one in tensors.values())
    assert "blind 3/1/4" in (out / "report.md").read_text()
