"""Is a root that is none said to be none, instead of a root without runs, by everything that looks at one?"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3ops.cli import main
from eagle3ops.errors import RequestError
from eagle3ops.hosts.agent.ops_runs import here
from eagle3ops.hosts.client import AgentClient
from eagle3ops.hosts.local import LocalTransport
from eagle3ops.operations import OPERATIONS
from eagle3ops.runs.directory import create_run, list_runs
from eagle3ops.runs.gc import find_garbage
from eagle3ops.runs.ledger import Ledger
from eagle3ops.runs.roots import require_root
from eagle3ops.spec.models import Pipeline

BAD = {
    "file": "root {root} is a file, not a folder",
    "file/below/deep": "root {root}: {folder}/file is a file, not a folder",
    "dangling": "root {root} is a link to {folder}/nowhere, which is not there",
    "dangling/below": "root {root}: {folder}/dangling is a link to {folder}/nowhere, which is not there",
    "loop": "root {root} is a link that leads back to itself",
    "half": "root {root}: {folder}/half/runs is a file, not a folder",
    "cut": "root {root}: {folder}/cut/runs is a link to {folder}/nowhere, which is not there",
}
COMMANDS = [
    ["runs", "list"],
    *(["runs", verb, "last"] for verb in ("show", "follow", "cancel", "resume", "wiring")),
    ["runs", "gc"],
    ["plan", "demo"],
    ["--job", "pipeline"],
]
OPS = {
    "runs.list": {},
    "runs.show": {"run": "last"},
    "runs.state": {"run": "last"},
    "runs.cancel": {"run": "last"},
    "runs.resume": {"run": "last", "token": "t"},
    "runs.gc": {},
    "runs.plan": {"spec_text": "schema: 1\nname: toy\ntarget: {model: none}\n"},
    "runs.place": {"spec_text": "schema: 1\nname: toy\ntarget: {model: none}\n", "key": "k"},
    "log.list": {"run": "last"},
    "ledger.rows": {},
    "incidents.list": {},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "file").write_text("not a folder\n")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "half").mkdir()
    (tmp_path / "half/runs").write_text("not a folder\n")
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut/runs").symlink_to(tmp_path / "nowhere")
    return tmp_path


def words(folder: Path, name: str) -> str:
    return BAD[name].format(root=folder / name, folder=folder)


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_said(folder: Path, name: str) -> None:
    before = sorted(folder.rglob("*"))
    for look in (require_root, list_runs, lambda root: Ledger(root).runs(), lambda root: find_garbage(root, keep=0)):
        with pytest.raises(RequestError) as caught:
            look(folder / name)
        assert caught.value.what == words(folder, name)
        assert "--root" in (caught.value.remedy or "")
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("name", ["missing", "missing/deep", "empty", "link"])
def test_a_root_that_may_be_made(folder: Path, name: str) -> None:
    (folder / "empty").mkdir()
    (folder / "link").symlink_to(folder / "empty")
    require_root(folder / name)
    assert list_runs(folder / name) == []


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("name", ["file", "half"])
def test_commands(folder: Path, name: str, command: Sequence[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "--root", str(folder / name)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"eagle3ops: {words(folder, name)}\n  -> ")


async def test_the_agent(folder: Path) -> None:
    """Every op about runs, and the agent goes on."""
    async with await AgentClient.connect(LocalTransport(root=str(folder / "file"))) as client:
        for name in ("half", "dangling"):
            for op, arguments in OPS.items():
                with pytest.raises(RequestError) as caught:
                    await client.call(op, root=str(folder / name), **arguments)
                assert caught.value.what == words(folder, name), op
        with pytest.raises(RequestError, match="file is a file, not a folder"):
            await client.call("runs.list")
        assert (await client.call("runs.list", root=str(folder / "missing")))["runs"] == []


def test_a_place_that_is_taken_ends(folder: Path) -> None:
    """It is not the run that is in the way: another id would not help, and trying on would never end."""
    with pytest.raises(FileExistsError):
        create_run(
            folder / "half", Pipeline.model_construct(name="toy"), job="pipeline", stages=[], spec_text="",
            cache=folder, source="toy.yaml",
        )  # fmt: skip


def without_rights(root: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """The command by somebody whom permissions bind, as root is not bound by them."""
    bound: list[str] = []
    if os.geteuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("root needs setpriv to give up its rights")
        rights = "-dac_override,-dac_read_search"
        bound = ["setpriv", f"--bounding-set={rights}", f"--inh-caps={rights}"]
    line = [*bound, sys.executable, "-m", "eagle3ops", *command, "--root", str(root)]
    return subprocess.run(line, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60)


@pytest.mark.parametrize("closed", ["", "runs"])
def test_a_folder_that_may_not_be_read(tmp_path: Path, closed: str) -> None:
    root = tmp_path / "root"
    (root / "runs").mkdir(parents=True)
    (root / closed).chmod(0)
    try:
        for command in (["runs", "list"], ["runs", "gc"]):
            ran = without_rights(root, *command)
            assert ran.returncode == 2, ran.stderr
            assert ran.stderr.startswith(f"eagle3ops: root {root}: {root}/runs cannot be read (Permission denied)\n")
            assert f"ls -ld {root}" in ran.stderr
            assert ran.stdout == ""
    finally:
        (root / closed).chmod(0o700)


def test_a_run_that_may_not_be_read_is_not_passed_over(tmp_path: Path) -> None:
    for name in ("20261130-044512-good-aaaa", "20261130-044513-shut-bbbb"):
        run = tmp_path / "runs" / name
        run.mkdir(parents=True)
        (run / "request.json").write_text('{"stages": [], "job": "pipeline", "created": 1.0}')
    run.chmod(0)
    try:
        listed = without_rights(tmp_path, "--json", "runs", "list")
        rows = {row["run_id"]: row["status"] for row in json.loads(listed.stdout)}
        assert rows == {"20261130-044512-good-aaaa": "interrupted", "20261130-044513-shut-bbbb": "damaged"}
        gc = without_rights(tmp_path, "runs", "gc")
        assert gc.returncode == 2
        assert "so what it needs is not known" in gc.stderr
    finally:
        run.chmod(0o700)


@given(st.text(alphabet="ab./~\x01é ", max_size=12))
def test_any_name_is_a_root_or_is_refused(text: str) -> None:
    try:
        OPERATIONS["runs.list"].call(here(f"/proc/self/{text}"))
    except RequestError as caught:
        refused = caught
    else:
        return
    assert "root" in refused.what
