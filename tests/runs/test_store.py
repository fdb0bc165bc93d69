"""Does a stage's key change when it must and only then, and is a damaged output seen?"""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import toy_jobs

from eagle3ops.errors import Eagle3opsError
from eagle3ops.runs import keys
from eagle3ops.runs.context import Findings
from eagle3ops.runs.keys import source_hash, stage_keys
from eagle3ops.runs.store import Store, remove
from eagle3ops.spec.load import parse_pipeline

FILE = "schema: 1\nname: toy\ntarget: {model: none}\n"


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "toy_code.py").write_text("ANSWER = 42\n")
    monkeypatch.syspath_prepend(tmp_path)
    source_hash.cache_clear()
    importlib.invalidate_caches()
    yield tmp_path / "toy_code.py"
    source_hash.cache_clear()


def keys_of(*overrides: str, text: str = FILE) -> dict[str, str]:
    return stage_keys(parse_pipeline(text, "toy.yaml", toy_jobs.specs(), overrides), toy_jobs)


@pytest.mark.usefixtures("code")
@pytest.mark.parametrize(
    ("override", "changed"),
    [
        ("stages.make.parts=5", {"make", "use", "end"}),
        ("seed=1", {"make", "use", "end"}),
        ("stages.use.passed=false", {"use", "end"}),
        ("name=other", set()),
        ("target.model=other", set()),
        ("stages.make.parts=4", set()),
    ],
)
def test_a_key_depends_on_what_the_stage_reads(override: str, changed: set[str]) -> None:
    before, after = keys_of(), keys_of(override)
    assert {name for name in before if before[name] != after[name]} == changed


def test_a_key_depends_on_the_code(code: Path) -> None:
    before = keys_of()
    code.write_text("ANSWER = 43\n")
    source_hash.cache_clear()
    after = keys_of()
    assert {name for name in before if before[name] != after[name]} == {"use", "end"}


@pytest.mark.usefixtures("code")
def test_a_key_depends_on_the_libraries_that_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    before = keys_of()
    monkeypatch.setattr(keys, "versions", lambda: {"torch": "0"})
    assert all(before[name] != key for name, key in keys_of().items())


def test_hashing_source_imports_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "toy_package" / "inner"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("raise AssertionError('imported')")
    (package / "module.py").write_text("x = 1")
    monkeypatch.syspath_prepend(tmp_path)
    source_hash.cache_clear()
    whole, part = source_hash("toy_package"), source_hash("toy_package.inner.module")
    (package / "module.py").write_text("x = 2")
    source_hash.cache_clear()
    assert source_hash("toy_package") != whole
    assert source_hash("toy_package.inner.module") != part
    assert "toy_package" not in sys.modules
    with pytest.raises(Eagle3opsError, match="no module 'toy_package\\.missing'"):
        source_hash("toy_package.missing")


def finished(root: Path) -> tuple[Store, Path]:
    store = Store(root)
    out = store.out("make", "a" * 64)
    out.mkdir(parents=True)
    (out / "part-0").write_text("content")
    store.finish(out, "make", "a" * 64, Findings(metrics={"x": 1.0}), 2.0, {})
    return store, out


def test_a_finished_output_is_found_with_what_it_found_out(tmp_path: Path) -> None:
    store, _ = finished(tmp_path)
    known = store.look_up(toy_jobs.Make(), "a" * 64)
    assert known.done is not None
    assert known.done["metrics"] == {"x": 1.0}
    assert store.look_up(toy_jobs.Make(), "b" * 64).done is None


@pytest.mark.parametrize("harm", ["flip", "cut", "delete", "stale"])
def test_a_damaged_output_is_not_trusted_and_the_reason_is_named(
    tmp_path: Path, harm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, out = finished(tmp_path)
    part = out / "part-0"
    if harm == "flip":
        part.write_text("kontent")
    elif harm == "cut":
        part.write_text("cont")
    elif harm == "delete":
        part.unlink()
    else:
        monkeypatch.setattr(toy_jobs.Make, "stale", lambda self, folder: f"{folder / 'part-0'} is too old")
    known = store.look_up(toy_jobs.Make(), "a" * 64)
    assert known.done is None
    assert known.reason
    assert str(part) in known.reason


def test_a_folder_in_use_is_not_removed(tmp_path: Path) -> None:
    store, out = finished(tmp_path)
    with store.working(out, pytest.fail):
        assert not remove(out)
    assert remove(out)
    assert not out.exists()


def test_an_output_is_not_trusted_once_its_input_came_out_differently(tmp_path: Path) -> None:
    store = Store(tmp_path)

    def make(job: str, key: str, text: str, inputs: dict[str, Path], identity: str | None = None) -> Path:
        out = store.out(job, key)
        with store.working(out, lambda _: None):
            (out / "file").write_text(text)
            store.finish(out, job, key, Findings(identity=identity), 1.0, inputs)
        return out

    first = make("make", "a" * 64, "one", {})
    make("use", "b" * 64, "built", {"make": first})
    use = type("Use", (toy_jobs.Make,), {"name": "use"})()
    assert store.look_up(use, "b" * 64).done is not None
    make("make", "a" * 64, "two", {})
    assert store.look_up(use, "b" * 64).reason == "make has been made again since, with another outcome"
    make("make", "a" * 64, "one", {})
    assert store.look_up(use, "b" * 64).done is not None
    # A job may say that less than its bytes matters.
    make("make", "a" * 64, "one", {}, identity="same")
    make("use", "b" * 64, "built", {"make": first})
    make("make", "a" * 64, "other bytes", {}, identity="same")
    assert store.look_up(use, "b" * 64).done is not None


def test_what_a_kill_left_half_written_does_not_become_part_of_the_output(tmp_path: Path) -> None:
    store = Store(tmp_path)
    out = store.out("make", "k" * 64)
    (out / "sub").mkdir(parents=True)
    for name in (".done.json.123.tmp", "sub/.index.json.7.tmp"):
        (out / name).write_text("half")
    for name in ("part.tmp", ".hidden", ".tmp"):
        (out / name).write_text("the job's own")
    with store.working(out, pytest.fail):
        done = store.finish(out, "make", "k" * 64, Findings(), 1.0, {})
    assert [entry["path"] for entry in done["files"]] == [".hidden", ".tmp", "part.tmp"]
