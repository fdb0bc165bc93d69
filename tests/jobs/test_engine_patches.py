"""A stage that starts a patched engine says so once, and its output remembers it."""

import json
import sysconfig
from pathlib import Path

from eagle3ops import jobs
from eagle3ops.jobs.serve.job import tell_patches
from eagle3ops.runs.context import Context
from eagle3ops.runs.events import EventLog, read_events
from eagle3ops.spec.load import load_pipeline

HOUSE = Path(__file__).resolve().parents[2]


def test_a_patched_engine_is_told_once(tmp_path: Path) -> None:
    run, journal = tmp_path / "runs" / "20261130-044512-x-aaaa", tmp_path / "patches" / "journal.jsonl"
    run.mkdir(parents=True)
    journal.parent.mkdir()
    site = sysconfig.get_paths()["purelib"]
    lines = [
        {"at": 1.0, "event": "applied", "recipe": name, "site": place, "files": [["/none", "0", "1"]]}
        for name, place in (("ours", site), ("another's", "/another/lib/python3/site-packages"))
    ]
    journal.write_text("".join(json.dumps(one) + "\n" for one in lines))
    pipeline = load_pipeline(HOUSE / "assets" / "pipelines" / "tiny.yaml", jobs.specs())
    ctx = Context(
        pipeline=pipeline, spec=pipeline.stages["serve"], stage="serve", out=tmp_path, run_dir=run, inputs={},
        cache=tmp_path, events=EventLog(run / "events.jsonl"),
    )  # fmt: skip
    for _ in range(2):
        tell_patches(ctx)
    told = [event for event in read_events(run / "events.jsonl") if "patch" in event.data]
    assert [event.data["patch"]["recipe"] for event in told] == ["ours"]
    assert "ours, drifted" in told[0].data["text"]
    assert told[0].data["patch"]["site"] == site
    assert ctx.findings.patches == {"ours": "drifted"}
