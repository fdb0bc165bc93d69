"""Are the parts of an installation right by themselves: the wheel, the survey's words, the switch on the host?"""

import contextlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3ops.errors import Eagle3opsError
from eagle3ops.hosts.install import remote_install, wheel
from eagle3ops.hosts.install.survey import Interpreter, Survey, choose, parse
from eagle3ops.hosts.install.words import explain_failure


def contents(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/RECORD")}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheel.build(tmp_path_factory.mktemp("wheel"))


def test_wheel_holds_every_room(built: Path) -> None:
    names = contents(built)
    for name in (
        "eagle3ops/hosts/agent/loop.py",
        "eagle3ops/jobs/train/job.py",
        "eagle3ops/assets/pipelines/demo.yaml",
    ):
        assert name in names
    assert not any("__pycache__" in name for name in names)


def test_an_installation_packs_itself_into_the_same_wheel(built: Path, tmp_path: Path) -> None:
    site, again = tmp_path / "site", tmp_path / "again"
    again.mkdir()
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(site), str(built)]
    subprocess.run(pip, check=True, capture_output=True)
    program = (
        "import sys, pathlib; from eagle3ops.hosts.install import wheel; print(wheel.build(pathlib.Path(sys.argv[1])))"
    )
    ran = subprocess.run(
        [sys.executable, "-P", "-c", program, str(again)],
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=True,
    )
    packed = Path(ran.stdout.strip())
    assert packed.parent == again
    assert contents(packed) == contents(built)
    # And pip takes it.
    subprocess.run([*pip[:-2], str(tmp_path / "site2"), str(packed)], check=True, capture_output=True)
    (site / "eagle3ops" / "cli.py").unlink()
    ran = subprocess.run(
        [sys.executable, "-P", "-c", program, str(again)],
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "eagle3ops/cli.py is missing" in ran.stderr


@given(st.lists(st.one_of(st.text(max_size=40), st.sampled_from(["eagle3ops/a.py", "../../bin/eagle3ops", "x/../y"]))))
def test_only_own_files_are_packed(names: list[str]) -> None:
    for name in wheel.packed_names(names):
        assert name.startswith("eagle3ops/") or name == "eagle3ops" or ".dist-info" in name
        assert ".." not in name.split("/")


GOOD = Interpreter("/usr/bin/python3.12", (3, 12, 3), True)
TORCH = Interpreter("/opt/conda/bin/python3", (3, 11, 9), True, ("/opt/conda/lib",), {"torch": "2.11.0"})


def survey(*pythons: Interpreter, kept: str = "", free: int | None = 10**12) -> Survey:
    return Survey(
        home="/home/ann",
        system="Linux",
        refused=None,
        executable=True,
        free=free,
        current="",
        receipt={"python": kept} if kept else {},
        pythons=pythons,
    )


def test_which_python_is_chosen() -> None:
    old = Interpreter("/usr/bin/python3", (3, 9, 1), True)
    assert choose(survey(old, GOOD), "gpu", extras=(), python=None) == GOOD
    assert choose(survey(old, GOOD, TORCH), "gpu", extras=(), python=None) == TORCH
    assert choose(survey(old, GOOD, TORCH, kept=GOOD.path), "gpu", extras=(), python=None) == GOOD
    assert choose(survey(GOOD, kept="/gone"), "gpu", extras=(), python=None) == GOOD


def test_room_for_what_will_be_installed() -> None:
    free = 2 * 1024**3
    assert choose(survey(GOOD, free=free), "gpu", extras=(), python=None) == GOOD
    assert choose(survey(TORCH, free=free), "gpu", extras=("train",), python=None) == TORCH
    with pytest.raises(Eagle3opsError, match=r"2\.0 GiB are free .* needs 8\.0 GiB"):
        choose(survey(GOOD, free=free), "gpu", extras=("train",), python=None)
    assert choose(survey(GOOD, free=None), "gpu", extras=("train",), python=None) == GOOD


SAID = """Last login: Monday
eagle3ops-survey:home /home/ann
eagle3ops-survey:system Linux
eagle3ops-survey:writable yes
eagle3ops-survey:executable yes
eagle3ops-survey:free /dev/vda 264178668 31466232 74551940 30% /
eagle3ops-survey:current env-0.1.0-aa
eagle3ops-survey:receipt {"python": "/usr/bin/python3"}
eagle3ops-survey:trying /usr/bin/python3
eagle3ops-survey:python {"version": [3, 12, 3], "venv": true, "ensurepip": true, "sites": ["/x"], "has": {"torch": "2"}}
eagle3ops-survey:trying /broken
eagle3ops-survey:end
"""


def test_the_survey_is_read() -> None:
    found = parse(SAID, "gpu")
    assert found.free == 74551940 * 1024
    assert found.receipt == {"python": "/usr/bin/python3"}
    assert found.pythons == (
        Interpreter("/usr/bin/python3", (3, 12, 3), True, ("/x",), {"torch": "2"}),
        Interpreter("/broken"),
    )
    with pytest.raises(Eagle3opsError, match="did not come to its end"):
        parse(SAID.replace("eagle3ops-survey:end", ""), "gpu")


@given(st.lists(st.one_of(st.text(max_size=60), st.sampled_from(SAID.splitlines())), max_size=20), st.text(max_size=40))
def test_no_text_breaks_the_survey(lines: list[str], tail: str) -> None:
    keys = ("home", "free", "receipt", "trying", "python")
    text = "\n".join([*lines, *(f"eagle3ops-survey:{key} {tail}" for key in keys), "eagle3ops-survey:end"])
    try:
        found = parse(text, "gpu")
    except Eagle3opsError:
        return
    assert found.base.startswith("/")


@pytest.mark.parametrize(
    ("kind", "detail", "words"),
    [
        (
            "pip",
            "ERROR: Could not install packages: [Errno 28] No space left on device",
            "the disk or the quota is full",
        ),
        ("pip", "NewConnectionError: Failed: [Errno -3] Temporary failure in name resolution", "could not reach"),
        ("pip", "ERROR: No matching distribution found for aiohttp>=3.10", "pip found no aiohttp>=3.10 that fits"),
        ("pip", "OSError: [Errno 30] Read-only file system: '/x'", "the file system is read-only"),
        ("pip", "something \x1b[31m else {0}", "pip failed with /usr/bin/python3.12 (3.12.3); the host keeps"),
        ("venv", "Error: ensurepip is not available", "this Python has no pip"),
        ("proof", "it is version 0.0.9", "does not start an agent"),
        ("busy", "x", "another installation is going on"),
        ("unheard-of", "x", "it failed"),
    ],
)
def test_failures_in_words(kind: str, detail: str, words: str) -> None:
    error = explain_failure("gpu", kind, detail, GOOD)
    assert words in error.what
    assert "\x1b" not in error.what
    assert error.remedy


@given(st.sampled_from(["pip", "venv", "proof", "busy", "folder", "x"]), st.text())
def test_any_failure_has_words(kind: str, detail: str) -> None:
    assert explain_failure("gpu", kind, detail, GOOD).what.startswith("gpu: ")


def environment(folder: Path, version: str = "1.0", *, finished: bool = True, hello: bool = True) -> Path:
    """An environment whose Python says hello, or does not."""
    (folder / "bin").mkdir(parents=True)
    program = folder / "bin" / "python"
    said = json.dumps({"agent": "eagle3ops", "version": version}) if hello else "Traceback: no such module"
    program.write_text(f"#!/bin/sh\necho welcome\necho '{said}'\n")
    program.chmod(0o755)
    if finished:
        (folder / remote_install.RECEIPT).write_text("{}")
    return folder


def test_the_switch_is_one_step(tmp_path: Path) -> None:
    one, two = environment(tmp_path / "env-1"), environment(tmp_path / "env-2")
    remote_install.switch(tmp_path, one)
    assert os.readlink(tmp_path / "env") == "env-1"
    # What a killed predecessor with this number left is no obstacle.
    (tmp_path / f".env.{os.getpid()}").symlink_to("nowhere")
    remote_install.switch(tmp_path, two)
    assert os.readlink(tmp_path / "env") == "env-2"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["env", "env-1", "env-2"]
    (tmp_path / "env").unlink()
    (tmp_path / "env").mkdir()
    with pytest.raises(remote_install.Stopped, match="is a folder, not a link"):
        remote_install.switch(tmp_path, one)


def test_where_the_environment_goes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert remote_install.place(tmp_path, "env-1", "1.0") == (tmp_path / "env-1", False)
    environment(tmp_path / "env-1")
    assert remote_install.place(tmp_path, "env-1", "1.0") == (tmp_path / "env-1", True)
    environment(tmp_path / "env-2", finished=False)
    assert remote_install.place(tmp_path, "env-2", "1.0") == (tmp_path / "env-2", False)
    assert not (tmp_path / "env-2").exists(), "a leftover goes"
    environment(tmp_path / "env-3", hello=False)
    assert remote_install.place(tmp_path, "env-3", "1.0") == (tmp_path / "env-3-2", False)
    assert (tmp_path / "env-3").exists(), "a finished one stays: runs may use it"
    assert "interrupted" in capsys.readouterr().out


def test_an_environment_has_to_say_hello(tmp_path: Path) -> None:
    assert remote_install.works(environment(tmp_path / "good"), "1.0") is None
    assert remote_install.works(environment(tmp_path / "other", "0.9"), "1.0") == "it is version 0.9"
    assert "no such module" in str(remote_install.works(environment(tmp_path / "bad", hello=False), "1.0"))
    assert "No such file" in str(remote_install.works(tmp_path / "missing", "1.0"))


@pytest.mark.parametrize("hello", [True, False])
def test_only_an_environment_that_works_is_switched_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], hello: bool
) -> None:
    sent = tmp_path / "x.whl"
    sent.write_bytes(b"wheel")
    remote_install.switch(tmp_path, environment(tmp_path / "env-old"))
    monkeypatch.setattr(remote_install, "make", lambda folder, order: environment(folder, finished=False, hello=hello))
    order = {
        "base": str(tmp_path),
        "wheel": str(sent),
        "sha256": wheel.sha256_of(sent),
        "version": "1.0",
        "name": "env-new",
        "extras": [],
        "sites": [],
        "python": "p",
    }
    if not hello:
        with pytest.raises(remote_install.Stopped, match="no such module"):
            remote_install.install(order)
        assert os.readlink(tmp_path / "env") == "env-old"
        assert remote_install.receipt(tmp_path / "env-new") is None
        return
    done = remote_install.install(order)
    assert done == {"folder": str(tmp_path / "env-new"), "fresh": True, "others": ["env-old"]}
    assert os.readlink(tmp_path / "env") == "env-new"
    assert remote_install.install(order)["fresh"] is False
    sent.write_bytes(b"wheeX")
    with pytest.raises(remote_install.Stopped, match="SHA-256"):
        remote_install.install(order)
    assert os.readlink(tmp_path / "env") == "env-new"
    capsys.readouterr()


HANGS = """
import sys
from eagle3ops.hosts.install import remote_install

def make(folder, order):
    folder.mkdir()
    remote_install.run(["sh", "-c", "sleep 987 & echo begun; wait"], "pip")

remote_install.make = make
sys.exit(remote_install.main(sys.argv[1]))
"""


def test_a_build_that_hangs_ends_with_what_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it started holds the pipe, and would hold whoever reads it."""
    hangs = tmp_path / "python"
    hangs.write_text(f"#!/bin/sh\nsleep 20 & echo $! > {tmp_path}/child\nwait\n")
    hangs.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(hangs))
    monkeypatch.setattr(wheel, "BUILD_LIMIT_S", 0.3)
    with pytest.raises(Eagle3opsError, match=r"building the wheel had not ended after 0\.3 s"):
        wheel.build(tmp_path)
    with contextlib.suppress(psutil.NoSuchProcess):
        # Dead, whether or not somebody has taken note of it.
        assert psutil.Process(int((tmp_path / "child").read_text())).status() == psutil.STATUS_ZOMBIE


def test_it_ends_with_everything_when_nobody_listens_any_more(tmp_path: Path) -> None:
    sent = tmp_path / "x.whl"
    sent.write_bytes(b"wheel")
    order = {
        "base": str(tmp_path),
        "wheel": str(sent),
        "sha256": wheel.sha256_of(sent),
        "version": "1.0",
        "name": "env-new",
    }
    program = subprocess.Popen(
        [sys.executable, "-c", HANGS, json.dumps(order)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert program.stdin is not None
    assert program.stdout is not None
    told = [program.stdout.readline()]
    while told[-1] and "begun" not in told[-1]:
        told.append(program.stdout.readline())
    assert "begun" in told[-1]
    below = psutil.Process(program.pid).children(recursive=True)
    assert len(below) == 2, "a shell and what it started"
    # Pip is silent and the pipe for its words is still open: only the end of the input says so.
    program.stdin.close()
    assert program.wait(60) == 1
    program.stdout.close()
    assert psutil.wait_procs(below, timeout=60)[1] == []
