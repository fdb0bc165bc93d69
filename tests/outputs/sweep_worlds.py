"""Roots with a run that is a sweep, beside the run whose drafter it swept."""

import json
from pathlib import Path
from typing import Any

from bench_worlds import key_of, make_bench_run, stage

from eagle3ops.runs.directory import RunDirectory

TREE = "3/4/16"


def ratio(value: float, spread: float = 0.1, pairs: int = 32) -> dict[str, Any]:
    """A speed-up with its interval."""
    return {"value": value, "low": value - spread, "high": value + spread, "pairs": pairs}


def point(setting: str, value: float | None, state: str = "finished", **more: Any) -> dict[str, Any]:
    """One point as `sweep` writes it."""
    found: dict[str, Any] = {
        "label": f"{setting} @1",
        "setting": setting,
        "concurrency": 1,
        "state": state,
        "why": "place 1 of 3" if state != "failed" else "3/1/4 @1: no answer within 20 s",
        "rungs": 0 if value is None else 3,
        "launch_line": f"serve --at {setting.split()[0]}",
        "front": setting == TREE,
    }
    if value is not None:
        found |= {
            "speedup": ratio(value),
            "tokens_per_s": 600.0 * value,
            "latency_s": 0.2 / value,
            "token_s": 0.0016 / value,
            "accept_length": 3.3,
            "memory": {"bytes": 4 << 30, "of": "gpu"},
        }
    return found | more


def sweep_json(value: float = 1.4, over_default: float = 1.25, spread: float = 0.1) -> dict[str, Any]:
    """Three points; the tree wins with these speed-ups."""
    winner = {
        "label": f"{TREE} @1",
        "setting": TREE,
        "concurrency": 1,
        "speedup": ratio(value, spread),
        "is_default": False,
        "over_default": ratio(over_default, spread),
        "tokens_per_s": 840.0,
        "accept_length": 3.3,
        "launch_line": f"serve --at {TREE}",
    }
    return {
        "schema": 1,
        "decisive_concurrency": 1,
        "default": "3/1/4",
        "baseline": {"1": {"tokens_per_s": 600.0}},
        "points": [
            point(TREE, 1.45),
            point("3/1/4", 1.1, "dropped"),
            point("5/1/6 attention=fa3", None, "failed"),
        ],
        "left_out": [{"why": "a chain (topk 1) verifies steps + 1 draft tokens", "labels": ["3/1/8 @1", "2/1/8 @1"]}],
        "failures": [{"subject": "5/1/6"}],
        "winners": [winner],
        "server_starts": 5,
        "seconds": 200.0,
    }


def make_sweep_run(root: Path, benched: str, run_id: str, sweep: dict[str, Any] | None = None) -> RunDirectory:
    """A finished run of the sweep stage alone, of the drafter of the run `benched`, which `make_bench_run` made."""
    inputs = json.loads((root / "stages" / f"bench-{key_of('bench', benched)[:16]}" / "done.json").read_text())[
        "inputs"
    ]
    key = key_of("sweep", run_id)
    stage(root, "sweep", key, {"sweep.json": json.dumps(sweep or sweep_json())}, inputs=inputs)
    run = RunDirectory(root / "runs" / run_id)
    run.path.mkdir(parents=True)
    request = {"job": "sweep", "stages": ["sweep"], "cache": "", "source": "toy", "created": 1796025600.0}
    (run.path / "request.json").write_text(json.dumps(request))
    stages = {"sweep": {"status": "done", "key": key, "out": "/elsewhere"}}
    state = {"status": "done", "exit_code": 0, "job": "sweep", "ended": 1796025700.0, "stages": stages}
    (run.path / "state.json").write_text(json.dumps(state))
    (run.path / "events.jsonl").write_text("")
    (run.path / "spec.yaml").write_text("schema: 1\nengine: {name: reference, dtype: float32}\nseed: 3\nstages: {}\n")
    return run


__all__ = ["TREE", "make_bench_run", "make_sweep_run", "point", "ratio", "sweep_json"]
