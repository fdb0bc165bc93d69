"""Roots with runs whose benches say what a test wants them to, made of the files that stages leave."""

import hashlib
import json
from pathlib import Path
from typing import Any

from eagle3ops.bench.accept import AcceptStats
from eagle3ops.bench.diversity import judge
from eagle3ops.bench.gap import hold_against
from eagle3ops.bench.suspects import Evidence, suspects
from eagle3ops.runs.directory import RunDirectory
from eagle3ops.runs.store import identity_of

FINGERPRINT = "ab" * 32


def key_of(*words: str) -> str:
    """A stage's key."""
    return hashlib.sha256("/".join(words).encode()).hexdigest()


def bench_json(low: float = 1.2, value: float = 1.35, high: float = 1.5, **more: Any) -> dict[str, Any]:
    """What `bench` writes: a baseline, a setting with this speed-up, and a slower one."""
    slow = {"value": 0.8, "low": 0.7, "high": 0.9, "pairs": 20}
    settings = {
        "baseline": {"tokens_per_s": 100.0, "per_request": [99.0, 101.0]},
        "3/1/4": {
            "tokens_per_s": 100.0 * value,
            "per_request": [130.0, 140.0],
            "speedup": {"value": value, "low": low, "high": high, "pairs": 20},
            "accept_length": 2.1,
        },
        "1/1/2": {"tokens_per_s": 80.0, "per_request": [80.0], "speedup": slow, "accept_length": 1.6},
    }
    worth_it = low > 1.0
    return {
        "served": "3/1/4",
        "equality": {"equal": True, "prompts": 64, "tokens": 4000, "dtype": "float32", "differ": {}},
        "accept": {
            "setting": "3/1/4",
            "served": 2.1,
            "accept_rate": 0.37,
            "histogram": [300, 200, 150, 100],
            "by_position": [0.6, 0.55, 0.4],
            "verify_steps": 750,
            "predicted": 2.15,
            "predicted_histogram": [290, 205, 150, 105],
            "gap": -0.023,
            "alarm": {
                "kind": "as predicted",
                "alarm": False,
                "words": "served 2.100 against 2.150 predicted",
                "start": None,
                "positions": [
                    {"position": 1, "served": 0.6, "predicted": 0.613, "low": -0.06, "high": 0.04, "tokens": -0.02},
                ],
            },
            "diversity": {
                "passed": True,
                "words": "2% of 96 answers loop",
                "at_limit": 0.1,
                "without_loops": 2.08,
                "alarms": [],
                "served": {"distinct": [0.5, 0.7, 0.8, 0.9], "looping": 0.02},
                "data": {"distinct": [0.5, 0.7, 0.8, 0.9], "looping": 0.02},
            },
        },
        "timing": {
            "batch": 1,
            "natural_stop": True,
            "prompts": 10,
            "settings": settings,
            "recommended": "3/1/4" if worth_it else "baseline",
            "worth_it": worth_it,
        },
        "divergence": {"passed": True, "prompts": 16, "noise": 0.1, "bound": 0.2, "divergences": []},
    } | more


def alarmed_json() -> dict[str, Any]:
    """What `bench` writes where the accept length falls short from draft position 2 on, and some answers loop."""
    texts = [list(range(at, at + 64)) for at in range(18)] + [[1, 2] * 32] * 2
    served = [AcceptStats(90, 75, 270, (40, 35, 5, 10)) for _ in texts]
    gap = hold_against((400, 100, 150, 250), served, 0.05)
    diversity = judge(texts, ["stop"] * 18 + ["length"] * 2, served, texts)
    known = Evidence(
        gap=gap, diversity=diversity, wiring=True, wiring_reason="boundaries 2, 4, 5, as in training", temperature=0.0,
        same_text=0.4, served_prompts=20, heldout_prompts=96, limit=64, longest=64,
    )  # fmt: skip
    record = bench_json()
    record["accept"] |= {
        "served": gap.served,
        "predicted": gap.predicted,
        "gap": gap.relative,
        "alarm": gap.as_json(),
        "diversity": diversity.as_json(),
        "wiring": {"passed": True, "reason": known.wiring_reason},
        "suspects": [one.as_json() for one in suspects(known)],
    }
    return record


def stage(root: Path, name: str, key: str, files: dict[str, str], **done: Any) -> dict[str, Any]:
    """The finished output of a stage; returns its `done.json`."""
    folder = root / "stages" / f"{name}-{key[:16]}"
    listed = []
    for path, text in files.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        digest = hashlib.sha256(text.encode()).hexdigest()
        listed.append({"path": path, "bytes": len(text.encode()), "sha256": digest})
    record = {"job": name, "key": key, "finished": 1796025000.0, "files": listed, "inputs": {}, "verdicts": {}} | done
    (folder / "done.json").write_text(json.dumps(record))
    return record


def make_bench_run(
    root: Path,
    run_id: str,
    bench: dict[str, Any] | None = None,
    *,
    failing: tuple[str, ...] = (),
    without: tuple[str, ...] = (),
    undecided: tuple[str, ...] = (),
    aux_layers: Any = None,
    dtype: str = "float32",
) -> RunDirectory:
    """A finished run with fetch, train, serve, verify and bench.

    Args:
        root: the folder of runs.
        run_id: of the run; its drafter is its own.
        bench: content of `bench.json`.
        failing: verdicts that are FAIL.
        without: verdicts that were not made.
        undecided: verdicts that are UNDECIDED.
        aux_layers: set by hand for serving.
        dtype: in which it was served.
    """
    keys = {name: key_of(name, run_id) for name in ("train", "serve", "verify", "bench")} | {"fetch": key_of("fetch")}
    fetch = stage(
        root,
        "fetch",
        keys["fetch"],
        {"target.json": json.dumps({"name": "toy", "fingerprint": FINGERPRINT, "path": "/models/toy"})},
        identity=FINGERPRINT,
    )
    train = stage(root, "train", keys["train"], {"drafter/config.json": "{}", "drafter/model.safetensors": run_id})
    facts = {"server_info": {"dtype": dtype, "aux_layers": aux_layers}}
    serve = stage(root, "serve", keys["serve"], {"serve.json": json.dumps(facts)})
    inputs = {
        name: {"out": f"{name}-{keys[name][:16]}", "identity": identity_of(done)}
        for name, done in (("fetch", fetch), ("train", train), ("serve", serve))
    }

    def verdicts(*names: str) -> dict[str, Any]:
        return {
            name: {
                "name": name,
                "passed": name not in (*failing, *undecided),
                "reason": f"why {name}",
                "data": {},
                # Records from before had no such word.
                **({"verdict": "UNDECIDED"} if name in undecided else {}),
            }
            for name in names
            if name not in without
        }

    stage(root, "verify", keys["verify"], {"verdict.json": "{}"}, inputs=inputs, verdicts=verdicts("wiring"))
    stage(
        root,
        "bench",
        keys["bench"],
        {"bench.json": json.dumps(bench or bench_json())},
        inputs=inputs,
        verdicts=verdicts("equal_output", "accept_length", "divergence"),
    )
    run = RunDirectory(root / "runs" / run_id)
    run.path.mkdir(parents=True)
    request = {"job": "pipeline", "stages": list(keys), "cache": "", "source": "toy", "created": 1796025000.0}
    (run.path / "request.json").write_text(json.dumps(request))
    stages = {name: {"status": "done", "key": key, "out": "/elsewhere"} for name, key in keys.items()}
    state = {"status": "done", "exit_code": 0, "job": "pipeline", "ended": 1796025000.0, "stages": stages}
    (run.path / "state.json").write_text(json.dumps(state))
    (run.path / "events.jsonl").write_text("")
    (run.path / "spec.yaml").write_text(
        f"schema: 1\nengine: {{name: reference, dtype: {dtype}}}\nseed: 3\nstages: {{}}\n"
    )
    return run
