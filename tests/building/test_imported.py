"""Phantom builds, made for real: what was built is not what Python imports, and why."""

import hashlib
import json
import shutil
import subprocess
import sys
import zipfile
from base64 import urlsafe_b64encode
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3ops.building.architectures import parse_arch
from eagle3ops.building.built import Built, read_built
from eagle3ops.building.imported import ask, parse_answer
from eagle3ops.building.proof import lines, parse_record, prove
from eagle3ops.cli import main
from eagle3ops.errors import RequestError

RECORDED = Path(__file__).parent / "recorded"
NEW, OLD = RECORDED / "ops_90_120a.so", RECORDED / "ops_90.so"
HOOK = """
import importlib.util, sys
class Redirect:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "kern":
            return importlib.util.spec_from_file_location(
                name, {at!r} + "/__init__.py", submodule_search_locations=[{at!r}])
sys.meta_path.insert(0, Redirect)
"""
"""As scikit-build-core's editable installs have it: it comes before what is installed."""


def package(folder: Path, library: Path) -> Path:
    at = folder / "kern"
    at.mkdir(parents=True)
    (at / "__init__.py").touch()
    shutil.copy(library, at / "ops.so")
    return at


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "kern-2-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as made:
        made.writestr("kern/__init__.py", "")
        made.write(NEW, "kern/ops.so")
        made.writestr("kern-2.dist-info/METADATA", "Metadata-Version: 2.1\nName: kern\nVersion: 2\n")
        made.writestr("kern-2.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        digest = urlsafe_b64encode(hashlib.sha256(NEW.read_bytes()).digest()).decode().rstrip("=")
        made.writestr(
            "kern-2.dist-info/RECORD", f"kern/ops.so,sha256={digest},{NEW.stat().st_size}\nkern/__init__.py,,\n"
        )
    return path


@pytest.fixture
def built(wheel: Path) -> Built:
    return read_built(wheel)


@pytest.fixture
def env(tmp_path: Path, wheel: Path) -> tuple[Path, Path]:
    """A Python, and its site-packages with the wheel installed into it by pip."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    python = tmp_path / "env/bin/python"
    (site,) = (tmp_path / "env/lib").glob("python3*/site-packages")
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", site, wheel],
        check=True, capture_output=True,
    )  # fmt: skip
    return python, site


def test_what_was_built_is_imported(env: tuple[Path, Path], built: Built) -> None:
    proof = prove(ask(str(env[0]), "kern", variables={"PYTHONPATH": ""}), parse_arch("sm_120"), built)
    assert proof.passed, lines(proof)
    (held,) = proof.files
    assert held.record == "same"
    assert held.coverage is not None
    assert (held.coverage.native, held.coverage.total) == (1, 1)


def test_an_older_copy_earlier_on_the_path(env: tuple[Path, Path], built: Built, tmp_path: Path) -> None:
    old = package(tmp_path / "old", OLD)
    found = ask(str(env[0]), "kern", variables={"PYTHONPATH": str(tmp_path / "old")})
    proof = prove(found, parse_arch("sm_120"), built)
    assert [one.code for one in proof.problems] == ["phantom", "no_code"]
    phantom = proof.problems[0]
    assert str(old / "ops.so") in phantom.what
    assert str(old) in phantom.remedy
    assert [one.folder for one in found.others] == [env[1] / "kern"]
    # Without knowing what was built, what is imported is told, and what it hides.
    alone = prove(found, parse_arch("sm_90"))
    assert alone.passed
    assert any(f"{env[1] / 'kern'} has the same name and is never imported" in note for note in alone.notes)


def test_a_stale_editable_install(env: tuple[Path, Path], built: Built, tmp_path: Path) -> None:
    old, site = package(tmp_path / "checkout", OLD), env[1]
    (site / "_kern_editable.py").write_text(HOOK.format(at=str(old)))
    (site / "_kern_editable.pth").write_text("import _kern_editable\n")
    meta = site / "kern_nightly-1.dist-info"
    meta.mkdir()
    (meta / "METADATA").write_text("Metadata-Version: 2.1\nName: kern-nightly\nVersion: 1\n")
    (meta / "top_level.txt").write_text("kern\n")
    (meta / "direct_url.json").write_text(json.dumps({"url": "file:///x", "dir_info": {"editable": True}}))
    proof = prove(ask(str(env[0]), "kern", variables={"PYTHONPATH": ""}), parse_arch("sm_90"), built)
    (phantom,) = proof.problems
    assert phantom.code == "phantom"
    assert "_kern_editable.pth" in phantom.what
    assert phantom.remedy.startswith(f"{env[0]} -m pip uninstall kern-nightly, then")
    assert any("several distributions claim kern" in note for note in proof.notes)


def test_a_path_file_that_leads_to_an_older_copy(env: tuple[Path, Path], built: Built, tmp_path: Path) -> None:
    package(tmp_path / "checkout", OLD)
    shutil.rmtree(env[1] / "kern")
    (env[1] / "zz.pth").write_text(f"{tmp_path / 'checkout'}\n")
    proof = prove(ask(str(env[0]), "kern", variables={"PYTHONPATH": ""}), None, built)
    assert proof.problems[0].code == "phantom"
    assert f"named in {env[1] / 'zz.pth'}" in proof.problems[0].what


def test_a_file_that_was_copied_over_the_installed_one(env: tuple[Path, Path], built: Built) -> None:
    shutil.copy(OLD, env[1] / "kern/ops.so")
    proof = prove(ask(str(env[0]), "kern", variables={"PYTHONPATH": ""}), None, built)
    assert [one.code for one in proof.problems] == ["phantom"]
    assert any("its RECORD names another content" in note for note in proof.notes)


def test_a_library_that_was_cut_off(env: tuple[Path, Path]) -> None:
    library = env[1] / "kern/ops.so"
    library.write_bytes(library.read_bytes()[:5000])
    proof = prove(ask(str(env[0]), "kern", variables={"PYTHONPATH": ""}), parse_arch("sm_90"))
    assert [one.code for one in proof.problems] == ["damaged"]


def test_an_import_that_fails_or_ends_the_process(env: tuple[Path, Path]) -> None:
    (env[1] / "kern/__init__.py").write_text("import nothing_of_that_name\n")
    found = ask(str(env[0]), "kern", variables={"PYTHONPATH": ""}, load=True)
    assert "nothing_of_that_name" in str(found.error)
    (env[1] / "kern/__init__.py").write_text("import os\nos.abort()\n")
    found = ask(str(env[0]), "kern", variables={"PYTHONPATH": ""}, load=True)
    assert "signal 6" in str(found.error)
    assert found.first is not None
    assert prove(found, parse_arch("sm_90")).passed


def test_of_two_variants_the_one_that_the_gpu_takes(env: tuple[Path, Path]) -> None:
    kern = env[1] / "kern"
    (kern / "ops.so").unlink()
    for name, library in (("sm90", OLD), ("sm100", NEW)):
        (kern / name).mkdir()
        shutil.copy(library, kern / name / "common_ops.abi3.so")
    found = ask(str(env[0]), "kern", variables={"PYTHONPATH": ""})
    taken = {
        arch: {file.path.parent.name for file in prove(found, parse_arch(arch)).files if file.role == "chosen"}
        for arch in ("sm_90", "sm_120")
    }
    assert taken == {"sm_90": {"sm90"}, "sm_120": {"sm100"}}
    shutil.copy(OLD, kern / "sm100/common_ops.abi3.so")
    assert [one.code for one in prove(found, parse_arch("sm_120")).problems] == ["no_code"]


@pytest.mark.parametrize(("arch", "code"), [("sm_90", 0), ("sm_120", 0), ("sm_80", 3)])
def test_the_command(
    env: tuple[Path, Path], arch: str, code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    words = ["kernels", "--python", str(env[0]), "--package", "kern", "--arch", arch]
    assert main(words) == code
    said = capsys.readouterr().out
    assert f"kern is imported from {env[1] / 'kern'}" in said
    assert ("no_code" in said) == (code == 3)
    assert main([*words, "--json"]) == code
    told = json.loads(capsys.readouterr().out)
    assert told["passed"] == (code == 0)
    assert told["files"][0]["targets"] == {"sm_90": 1, "compute_100 (PTX)": 1, "sm_120a": 1}


def test_the_command_with_what_was_built(
    env: tuple[Path, Path], wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["kernels", "--python", str(env[0]), "--package", "kern", "--built", str(wheel)]
    monkeypatch.delenv("PYTHONPATH", raising=False)
    assert main(words) == 0
    package(tmp_path / "old", OLD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "old"))
    assert main(words) == 3


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--python", "/nowhere/python"], "is no program"),
        (["--python", "/bin/echo"], "is no Python that answers"),
        (["--python", sys.executable, "--package", "no_such_name"], "finds no no_such_name"),
        (["--python", sys.executable, "--package", "a/b"], "is no name of a package"),
        (["--python", sys.executable, "--arch", "hopper"], "is no GPU architecture"),
        (["--python", sys.executable, "--built", "/nowhere/x.whl"], "cannot be read"),
    ],
)
def test_what_cannot_be_asked(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernels", *words]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert "->" in said


KEYS = ["first", "copies", "links", "distributions", "mapped", "places", "origin", "by", "error", "python"]
ANSWERS = st.recursive(
    st.none() | st.integers() | st.text(), lambda part: st.lists(part) | st.dictionaries(st.sampled_from(KEYS), part)
)


@given(ANSWERS)
def test_any_answer(data: object) -> None:
    raw = json.dumps(data).encode()
    if isinstance(data, dict):
        assert parse_answer(raw, "python", "kern").package == "kern"
    else:
        with pytest.raises(ValueError, match="no object"):
            parse_answer(raw, "python", "kern")


@given(st.text())
def test_any_record(text: str) -> None:
    assert parse_record(text + "\nkern/ops.so,sha256=abc=,12\n").get("kern/ops.so", "abc") == "abc"


@given(st.binary(max_size=300))
def test_any_wheel(raw: bytes) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "x.whl")
        path.write_bytes(raw)
        with pytest.raises(RequestError, match="cannot be read"):
            read_built(path)
