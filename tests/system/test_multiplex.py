"""Extract and train in turns on the tiny target: the quota is held at every moment, and no kill changes the drafter."""

import json
import os
import random
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = pytest.mark.timeout(900)

QUOTA = 2400 << 10
EPOCHS = 2
SETTINGS = ["--spec", "tiny", "--set", f"stages.train.epochs={EPOCHS}", "--set", "stages.train.checkpoint_every=1"]
TURNS = [*SETTINGS, "--set", f"stages.extract.quota={QUOTA >> 10} KiB"]


def environment(cache: Path) -> dict[str, str]:
    return {
        **os.environ,
        "EAGLE3OPS_CACHE": str(cache),
        "EAGLE3OPS_STATE": str(cache / "state"),
        "OMP_NUM_THREADS": "1",
        "NO_COLOR": "1",
    }


def eagle3ops(root: Path, cache: Path, *args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "eagle3ops", *args, "--root", str(root)],
        env=environment(cache),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(root: Path, cache: Path, *args: str, code: int = 0) -> str:
    process = eagle3ops(root, cache, *args)
    out, err = process.communicate(timeout=600)
    assert process.returncode == code, err[-4000:]
    return out + err


def only(root: Path, pattern: str) -> Path:
    (path,) = [path for path in root.glob(pattern) if path.is_dir()]
    return path


def events(root: Path) -> list[dict[str, Any]]:
    newest = max((root / "runs").iterdir())
    return [json.loads(line) for line in (newest / "events.jsonl").read_text().splitlines()]


def newest(root: Path) -> str:
    return max((root / "runs").iterdir()).name


def exported(root: Path) -> bytes:
    return (only(root, "stages/train-*") / "drafter" / "model.safetensors").read_bytes()


@contextmanager
def sampled(root: Path) -> Iterator[list[int]]:
    """Bytes of hidden states below a root, looked at a hundred times a second for as long as the block lasts."""
    seen: list[int] = []
    ended = threading.Event()

    def sample() -> None:
        while not ended.wait(0.01):
            total = 0
            for folder in (*root.glob("stages/extract-*"), *root.glob("stages/train-*/turn-*")):
                for path in folder.rglob("*"):
                    try:
                        total += path.lstat().st_size if path.is_file() else 0
                    except FileNotFoundError:
                        continue
            seen.append(total)

    # A thread, because the test waits for processes meanwhile.
    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        yield seen
    finally:
        ended.set()
        sampler.join()


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    """A root with target and answers."""
    root = tmp_path_factory.mktemp("answered")
    for job in ("fetch", "generate"):
        run(root, cache, "--job", job, *SETTINGS)
    return root


def copied(answered: Path, root: Path) -> Path:
    shutil.copytree(answered / "stages", root / "stages")
    return root


@pytest.fixture(scope="module")
def undisturbed(answered: Path, tmp_path_factory: pytest.TempPathFactory, cache: Path) -> tuple[Path, list[int]]:
    """A root after training in turns, and the samples of its hidden states."""
    root = copied(answered, tmp_path_factory.mktemp("undisturbed"))
    with sampled(root) as seen:
        for job in ("extract", "train"):
            run(root, cache, "--job", job, *TURNS)
    return root, seen


def test_the_quota_is_held_while_every_part_is_extracted_trained_on_and_deleted(
    undisturbed: tuple[Path, list[int]],
) -> None:
    root, seen = undisturbed
    assert max(seen) <= QUOTA
    heldout = sum(path.stat().st_size for path in (only(root, "stages/extract-*") / "heldout").iterdir())
    assert max(seen) > 1.5 * heldout, "the samples never saw a part"
    said = [event["data"]["text"] for event in events(root) if event["kind"] == "info"]
    turns = [re.match(r"epoch (\d) of 2, part (\d) of (\d): (extracting|training)", text) for text in said]
    took = [match.groups() for match in turns if match]
    parts = int(took[0][2])
    assert parts >= 3
    assert took == [
        (str(epoch), str(part), str(parts), phase)
        for epoch in range(1, EPOCHS + 1)
        for part in range(1, parts + 1)
        for phase in ("extracting", "training")
    ]
    train = only(root, "stages/train-*")
    assert list(train.glob("turn-*")) == []
    assert not (only(root, "stages/extract-*") / "train").exists()
    # Every phase was a process of its own that had ended before the next began.
    states = [event["data"] for event in events(root) if event["kind"] == "process"]
    states = [state for state in states if state["role"].startswith("turn-")]
    assert [state["state"] for state in states] == ["started", "ended"] * (2 * parts * EPOCHS + 1)
    assert len({state["pid"] for state in states}) == 2 * parts * EPOCHS + 1
    progress = [event["data"] for event in events(root) if event["kind"] == "progress"]
    assert {event["unit"] for event in progress} == {"steps"}
    assert len({event["total"] for event in progress}) == 1
    assert [event["done"] for event in progress] == sorted(event["done"] for event in progress)
    assert progress[-1]["done"] == progress[-1]["total"]
    done = json.loads((train / "done.json").read_text())
    assert done["metrics"]["turns"] == parts * EPOCHS
    assert {"train/loss_0", "accept_length_predicted_3", "vocab_coverage_heldout"} <= done["metrics"].keys()


def kill_tree(root: Path) -> None:
    """SIGKILL every process that works under `root`."""
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


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(1, id="one", marks=pytest.mark.slow),
        pytest.param(3, id="three", marks=pytest.mark.slow),
        pytest.param(10, id="ten", marks=pytest.mark.slow),
    ],
)
def test_kills_at_any_moment_change_neither_drafter_nor_quota(
    answered: Path, undisturbed: tuple[Path, list[int]], cache: Path, tmp_path: Path, kills: int
) -> None:
    generator = random.Random(kills)
    root = copied(answered, tmp_path)
    run(root, cache, "--job", "extract", *TURNS)
    with sampled(root) as seen:
        process = eagle3ops(root, cache, "--job", "train", *TURNS)
        # The first kill meets the second part whole on disk, and leaves it damaged.
        while not list(root.glob("stages/train-*/turn-00001/complete")):
            assert process.poll() is None, "it ended before the second part was there"
            time.sleep(0.005)
        kill_tree(root)
        process.communicate(timeout=60)
        (shard,) = root.glob("stages/train-*/turn-00001/00000.safetensors")
        data = bytearray(shard.read_bytes())
        data[-1] ^= 1
        shard.write_bytes(data)
        for _ in range(kills - 1):
            process = eagle3ops(root, cache, "runs", "resume", newest(root))
            time.sleep(generator.uniform(2.0, 9.0))
            kill_tree(root)
            process.communicate(timeout=60)
        process = eagle3ops(root, cache, "runs", "resume", newest(root))
        _, err = process.communicate(timeout=600)
    assert process.returncode == 0, err[-4000:]
    if kills == 1:
        assert "the part is extracted again" in err
    assert max(seen) <= QUOTA
    assert exported(root) == exported(undisturbed[0])
    assert list(only(root, "stages/train-*").glob("turn-*")) == []


def test_with_room_for_everything_the_quota_changes_nothing(answered: Path, cache: Path, tmp_path: Path) -> None:
    roots = [copied(answered, tmp_path / name) for name in ("without", "with")]
    for root, extra in zip(roots, ([], ["--set", "stages.extract.quota=1 GiB"]), strict=True):
        for job in ("extract", "train"):
            run(root, cache, "--job", job, *SETTINGS, *extra)
    assert exported(roots[0]) == exported(roots[1])
    names = [sorted(path.name for path in only(root, "stages/extract-*").iterdir()) for root in roots]
    assert names[0] == names[1] == ["done.json", "heldout", "train"]


@pytest.mark.slow
def test_in_shared_memory_nothing_of_the_training_rows_is_on_the_disk_and_all_of_it_goes(
    answered: Path, undisturbed: tuple[Path, list[int]], cache: Path, tmp_path: Path
) -> None:
    root = copied(answered, tmp_path)
    with sampled(root) as seen:
        for job in ("extract", "train"):
            run(root, cache, "--job", job, *TURNS, "--set", "stages.extract.place=memory")
    heldout = sum(path.stat().st_size for path in (only(root, "stages/extract-*") / "heldout").iterdir())
    assert max(seen) <= heldout + 4096
    assert exported(root) == exported(undisturbed[0])
    assert not list(Path("/dev/shm").glob("eagle3ops-*")), "it has left something"


@pytest.mark.slow
def test_what_fits_the_memory_is_extracted_once_for_all_epochs(answered: Path, cache: Path, tmp_path: Path) -> None:
    root = copied(answered, tmp_path)
    setting = ["--set", "stages.extract.place=memory", "--set", "stages.extract.quota=32 MiB"]
    for job in ("extract", "train"):
        run(root, cache, "--job", job, *SETTINGS, *setting)
    said = [event["data"]["text"] for event in events(root) if event["kind"] == "info"]
    phases = [match[1] for text in said if (match := re.match(r"epoch \d of 2, part 1 of 1: (\w+)", text))]
    assert phases == ["extracting", "training", "training"]


def test_plan_says_what_the_quota_costs_and_refuses_one_that_is_too_small(
    answered: Path, cache: Path, tmp_path: Path
) -> None:
    root = copied(answered, tmp_path)
    spec = tmp_path / "quota.yaml"

    def plan(quota: object, code: int = 0) -> str:
        spec.write_text(
            "schema: 1\nname: quota\ntarget: {model: tiny-random}\nengine: {dtype: float32}\nstages:\n"
            "  generate: {train: 48, heldout: 16, max_new_tokens: 32, batch: 16}\n"
            f"  extract: {{rows_per_shard: 16, dtype: float32, quota: {quota}}}\n"
            "  train: {draft_vocab_size: 384, dtype: float32, epochs: 2}\n"
        )
        return run(root, cache, "plan", str(spec), code=code)

    said = plan("2400 KiB")
    assert re.search(r"about [3-5] turns of extract and train an epoch, \d+ in all", said)
    planned = json.loads(run(root, cache, "plan", str(spec), "--json"))
    disk = {stage["stage"]: stage["forecast"]["disk_bytes"] for stage in planned["stages"]}
    assert disk["extract"] + disk["train"] == 2400 << 10
    tokens = {stage["stage"]: stage["forecast"]["tokens"] for stage in planned["stages"]}
    assert f"instead of {tokens['extract']}" in said
    refused = plan("1100 KiB", code=2)
    assert "stages.extract.quota: 1.1 MiB" in refused
    smallest = re.search(r"the smallest quota that works is (\d+) bytes", refused)
    assert smallest is not None
    plan(smallest[1])
    run(root, cache, "--job", "extract", "--spec", str(spec))
    assert "quota.yaml" in (wrong := plan("many", code=2))
    assert "200 GiB" in wrong


@pytest.mark.slow
def test_the_stages_after_it_work_on_what_turns_leave(undisturbed: tuple[Path, list[int]], cache: Path) -> None:
    root, _ = undisturbed
    said = run(root, cache, "--job", "pipeline", *TURNS)
    assert "run: done" in said
    report = (only(root, "stages/report-*") / "report.md").read_text()
    assert "FAIL" not in report
