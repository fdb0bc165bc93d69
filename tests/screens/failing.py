"""A run that was killed while it trained, made of one that is done."""

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DONE, FAILED = "20261130-075940-tiny-2559", "20261130-084105-tiny-71c4"
"""The canned run, and the one that is made of it."""
LATER_S = 2485.0
"""So much later than the other one it was started."""
STEPS, LAST = 240, 28
"""That it was to train, and the one at which it was killed."""
EPOCHS = ("epochs: 6\n", "epochs: 60\n")
ERROR = "ended by SIGKILL (out of memory, or someone's kill -9)"


def fail(runs: Path) -> None:
    """The same again with more epochs, but killed in the middle of its training."""
    run = runs / FAILED
    shutil.copytree(runs / DONE, run)
    remedy = f"see {run}/logs/train.log"
    for name in ("state.json", "request.json", "intent.json"):
        data = _later(json.loads((run / name).read_text(encoding="utf-8").replace(DONE, FAILED)))
        (run / name).write_text(json.dumps(data), encoding="utf-8")
    spec = (run / "spec.yaml").read_text(encoding="utf-8")
    assert EPOCHS[0] in spec
    (run / "spec.yaml").write_text(spec.replace(*EPOCHS), encoding="utf-8")
    kept = []
    for line in (run / "events.jsonl").read_text(encoding="utf-8").splitlines():
        event = _later(json.loads(line))
        if event["stage"] == "train" and event["kind"] == "progress":
            break
        kept.append(event)
    began = kept[-1]["ts"]
    kept += _training(began)
    ended = round(kept[-1]["ts"] + 1.2, 3)
    kill = {"status": "failed", "exit_code": 1, "signal": "SIGKILL", "error": ERROR, "remedy": remedy, "ended": ended}
    cause = f"train: {ERROR}"
    kept.append({"ts": ended, "stage": "train", "kind": "stage", "data": kill})
    end = {"status": "failed", "exit_code": 1, "cause": cause, "remedy": remedy}
    kept.append({"ts": ended, "stage": None, "kind": "run", "data": end})
    lines = [json.dumps(event | {"seq": at}) + "\n" for at, event in enumerate(kept, 1)]
    (run / "events.jsonl").write_text("".join(lines), encoding="utf-8")
    state = json.loads((run / "state.json").read_text(encoding="utf-8"))
    state.update(end, ended=ended)
    train = state["stages"]["train"]
    del train["out"]
    train.update(kill, seconds=round(ended - train["started"], 3))
    for name in ("serve", "verify", "bench", "report"):
        state["stages"][name] = {"status": "waiting"}
    (run / "state.json").write_text(json.dumps(state), encoding="utf-8")
    log = [f"[2026-11-30 08:41:{35 + at}] step {at * 4} loss {_loss(at * 4, 0):.3f}" for at in range(1, 7)]
    log += [f"[2026-11-30 08:41:42] WARNING the loss of step {LAST} is not finite", "Killed", ""]
    (run / "logs" / "train.log").write_text("\n".join(log), encoding="utf-8")


def _later(value: Any, name: str = "") -> Any:
    """The same with all times so much later."""
    if isinstance(value, dict):
        return {key: _later(one, key) for key, one in value.items()}
    if name in ("ts", "started", "ended", "created") and isinstance(value, float):
        return round(value + LATER_S, 3)
    return value


def _loss(step: int, ahead: int) -> float:
    """Falls, then takes off."""
    return (
        3.4 + 2.1 * ahead + (2.6 + ahead) * math.exp(-step / 9) + 0.1 * math.sin(step * 1.7 + ahead) + (step / 25) ** 6
    )


def _training(began: float) -> Iterator[dict[str, Any]]:
    """What the training told, step by step, until it was killed."""
    for step in range(LAST):
        now = round(began + 0.25 * step, 3)
        if step % 7 == 0:
            told = {"done": step, "total": STEPS, "unit": "steps"}
            yield {"ts": now, "stage": "train", "kind": "progress", "data": told}
        right = [max(0.0, 0.42 - 0.6 / (step + 2)), max(0.0, 0.2 - 0.9 / (step + 3))]
        figures = {f"loss_{ahead}": _loss(step, ahead) for ahead in (0, 1)}
        figures |= {f"acc_{ahead}": share for ahead, share in enumerate(right)}
        figures |= {"grad_norm": 2.0 + 0.4 * _loss(step, 1), "lr": 0.002 * min(1.0, (step + 1) / 10)}
        for name, value in figures.items():
            data = {"name": f"train/{name}", "value": value, "step": step + 1}
            yield {"ts": now, "stage": "train", "kind": "metric", "data": data}
