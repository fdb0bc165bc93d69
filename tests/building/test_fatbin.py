"""The GPUs that a compiled file holds code for, read without tools, and compared with them where they are."""

import os
import re
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3ops.building.architectures import Arch, Code, of_number, parse_arch, runs_on
from eagle3ops.building.cuobjdump import disagreement, parse_list
from eagle3ops.building.elf import sections
from eagle3ops.building.fatbin import coverage, images_of, read_images, targets
from eagle3ops.building.toolchain import find_toolkit
from eagle3ops.errors import RequestError

RECORDED = Path(__file__).parent / "recorded"
H100, B200, B300, RTX, GB10 = (of_number(number) for number in (90, 100, 103, 120, 121))


def held(path: Path) -> list[str]:
    return [str(code) for code in targets(read_images(path))]


def test_every_target_of_a_fat_binary_with_its_feature_set() -> None:
    assert held(RECORDED / "many.fatbin") == [
        "sm_90", "compute_90 (PTX)", "sm_90a", "compute_90a (PTX)", "sm_100f", "sm_120", "sm_120a",
        "compute_120f (PTX)",
    ]  # fmt: skip


def test_a_shared_library_and_what_it_covers() -> None:
    images = read_images(RECORDED / "ops_90_120a.so")
    assert [str(code) for code in targets(images)] == ["sm_90", "compute_100 (PTX)", "sm_120a"]
    native = {gpu: coverage(images, gpu).native for gpu in (H100, B200, RTX, GB10)}
    assert native == {H100: 1, B200: 0, RTX: 1, GB10: 0}
    # PTX of 10.0 is compiled for all that is newer.
    assert coverage(images, B200).compiled == coverage(images, GB10).compiled == 1
    assert not coverage(images, of_number(80)).any
    assert held(RECORDED / "ops_90.so") == ["sm_90"]


@pytest.mark.parametrize(
    ("code", "gpus"),
    [
        (Code(H100), {H100}),
        (Code(B200), {B200, B300}),
        (Code(parse_arch("sm_100a")), {B200}),
        (Code(parse_arch("sm_100f")), {B200, B300}),
        (Code(RTX), {RTX, GB10}),
        (Code(parse_arch("sm_120a")), {RTX}),
        (Code(parse_arch("compute_90"), ptx=True), {H100, B200, B300, RTX, GB10}),
        (Code(parse_arch("compute_90a"), ptx=True), {H100}),
        (Code(parse_arch("compute_120f"), ptx=True), {RTX, GB10}),
    ],
)
def test_the_rules_of_compatibility(code: Code, gpus: set[Arch]) -> None:
    assert {gpu for gpu in (H100, B200, B300, RTX, GB10) if runs_on(code, gpu)} == gpus


def test_a_feature_set_that_is_asked_for_has_to_be_there() -> None:
    assert not runs_on(Code(H100), parse_arch("sm_90a"))
    assert runs_on(Code(parse_arch("sm_90a")), parse_arch("sm_90a"))


@pytest.mark.parametrize(
    ("text", "arch"), [("sm_90a", "sm_90a"), ("12.0", "sm_120"), ("120", "sm_120"), ("9.0a", "sm_90a")]
)
def test_names_of_architectures(text: str, arch: str) -> None:
    assert str(parse_arch(text)) == arch


@pytest.mark.parametrize("text", ["", "sm_9", "sm_12", "1.2", "hopper", "9.0b", "sm_90 a", "٩٠"])
def test_what_is_no_architecture(text: str) -> None:
    with pytest.raises(RequestError, match="no GPU architecture"):
        parse_arch(text)


@given(st.data())
def test_damage_is_told_or_read_over_and_nothing_else(data: st.DataObject) -> None:
    raw = bytearray((RECORDED / data.draw(st.sampled_from(["many.fatbin", "ops_90.so"]))).read_bytes())
    for _ in range(data.draw(st.integers(1, 6))):
        raw[data.draw(st.integers(0, min(len(raw), 4096) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(raw[: data.draw(st.integers(0, len(raw)))])
    with suppress(ValueError):
        assert len(images_of(cut)) <= 2


@given(st.binary(max_size=400))
def test_any_bytes(raw: bytes) -> None:
    for head in (b"", b"\x7fELF\x02\x01", b"\x50\xed\x55\xba\x01\x00\x10\x00"):
        with suppress(ValueError):
            images_of(head + raw)


def test_sections_are_those_that_readelf_names() -> None:
    readelf = shutil.which("readelf")
    if readelf is None:
        pytest.skip("no readelf on PATH")
    path = RECORDED / "ops_90_120a.so"
    said = subprocess.run([readelf, "-SW", path], capture_output=True, text=True, check=True).stdout
    theirs = re.findall(r"^\s*\[\s*\d+\] (\.\S+)\s+(\S+)\s+[0-9a-f]+ ([0-9a-f]+) ([0-9a-f]+)", said, re.MULTILINE)
    expected = [
        (name, int(at, 16), int(size, 16)) for name, kind, at, size in theirs if kind != "NOBITS" and int(size, 16)
    ]
    assert [(one.name, one.offset, one.size) for one in sections(path.read_bytes())] == expected


@pytest.fixture(scope="module")
def nvcc() -> Path:
    toolkit = find_toolkit(os.environ)
    if toolkit is None:
        pytest.skip("no nvcc")
    return toolkit.nvcc


@pytest.mark.parametrize("mode", ["none", "size", "speed"])
def test_what_nvcc_compiles_just_now(nvcc: Path, tmp_path: Path, mode: str) -> None:
    made = tmp_path / "axpy.o"
    wanted = ["-gencode=arch=compute_90,code=sm_90", "-gencode=arch=compute_120,code=[sm_120,compute_120]"]
    ran = subprocess.run(
        [nvcc, "-c", f"--compress-mode={mode}", *wanted, RECORDED / "axpy.cu", "-o", made],
        env={**os.environ, "CUDA_HOME": str(nvcc.parent.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    if "nsupported gpu architecture" in ran.stderr or "nknown option" in ran.stderr:
        pytest.skip(f"this nvcc is too old: {ran.stderr.strip()[:100]}")
    assert ran.returncode == 0, ran.stderr
    assert held(made) == ["sm_90", "sm_120", "compute_120 (PTX)"]


@pytest.fixture
def cuobjdump() -> None:
    if shutil.which("cuobjdump") is None and shutil.which(f"{os.environ.get('CUDA_HOME', '')}/bin/cuobjdump") is None:
        pytest.skip("no cuobjdump on PATH or in CUDA_HOME")


@pytest.mark.usefixtures("cuobjdump")
@pytest.mark.parametrize("name", ["many.fatbin", "ops_90_120a.so", "ops_90.so"])
def test_cuobjdump_counts_the_same(name: str) -> None:
    found = targets(read_images(RECORDED / name))
    assert disagreement(RECORDED / name, found) is None
    # One that is left out is noticed.
    less = {code: count for code, count in found.items() if code.arch.plain != H100}
    assert "sm_90 x" in str(disagreement(RECORDED / name, {**less, Code(of_number(75)): 1}))


@given(st.text())
def test_any_list_of_cuobjdump(text: str) -> None:
    line = "\nELF file    1: x.1.sm_120a.cubin\nPTX file    1: x.1.sm_90.ptx\n"
    assert parse_list(text + line).get("120", 0) >= 1
