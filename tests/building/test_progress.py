"""How far a build is, from what its tools print."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3ops.building.explain import killed_compiler
from eagle3ops.building.progress import BuildWatch, parse_step

REAL = """\
  *** Configuring CMake...
  -- The CXX compiler identification is GNU 12.2.0
  -- Detecting CXX compiler ABI info
  [1/9] Creating directories for 'repo-cutlass-populate'
  [9/9] Completed 'repo-cutlass-populate'
  -- Configuring done
  *** Building project with Ninja...
  [1/40] Building CUDA object a.cu.o
  [2/40] Building CUDA object b.cu.o
  [40/40] Linking CXX shared module ops.so
  *** Making wheel...
"""


def test_the_phases_of_a_build_in_their_order() -> None:
    watch = BuildWatch()
    seen: list[str] = []
    for at, line in enumerate(REAL.splitlines()):
        watch.feed(line, float(at))
        if not seen or seen[-1] != watch.phase:
            seen.append(watch.phase)
    assert seen == ["configuring", "fetching", "configuring", "compiling", "linking", "packing"]


def test_what_cmake_fetches_is_not_the_build() -> None:
    watch = BuildWatch()
    for line in REAL.splitlines()[:5]:
        watch.feed(line, 0.0)
    assert (watch.done, watch.total) == (9, 9)
    watch.feed("[1/40] Building CUDA object a.cu.o", 10.0)
    assert (watch.phase, watch.done, watch.total) == ("compiling", 1, 40)


@given(total=st.integers(2, 200), each=st.floats(0.1, 1000), data=st.data())
def test_at_a_steady_rate_the_time_left_is_exact(total: int, each: float, data: st.DataObject) -> None:
    watch, upto = BuildWatch(), data.draw(st.integers(2, total))
    for step in range(1, upto + 1):
        watch.feed(f"[{step}/{total}] Building CXX object x{step}.o", step * each)
    assert watch.seconds_left(upto * each) == pytest.approx((total - upto) * each, rel=1e-6)


def test_a_step_that_takes_long_makes_the_end_later() -> None:
    watch = BuildWatch()
    for step in (1, 2, 3, 4):
        watch.feed(f"[{step}/10] Building CXX object x.o", float(step))
    soon, late = watch.seconds_left(4.0), watch.seconds_left(400.0)
    assert soon is not None
    assert late is not None
    assert late > 50 * soon


def test_make_counts_in_percent() -> None:
    step = parse_step("[ 12%] Building CXX object x.o")
    assert step is not None
    assert (step.done, step.total) == (12, 100)


@given(st.lists(st.one_of(st.text(max_size=80), st.sampled_from(REAL.splitlines())), max_size=30))
def test_any_output(lines: list[str]) -> None:
    watch = BuildWatch()
    for at, line in enumerate(lines):
        watch.feed(line, float(at))
        left = watch.seconds_left(float(at))
        assert left is None or left >= 0
        assert watch.total is None or 0 <= watch.done <= watch.total
        assert "\n" not in watch.told(float(at))


@given(st.integers(0, 10**8), st.integers(0, 10**8))
def test_counts_that_cannot_be_are_none(done: int, total: int) -> None:
    step = parse_step(f"[{done}/{total}] x")
    assert (step is not None) == (0 <= done <= total and 0 < total < 10**7)


@pytest.mark.parametrize(
    ("line", "program"),
    [
        ("c++: fatal error: Killed signal terminated program cc1plus", "cc1plus"),
        ("nvcc error   : 'cicc' died due to signal 9 (Kill signal)", "cicc"),
        ("nvcc error   : 'ptxas' died due to signal 9 (Kill signal)", "ptxas"),
        ("nvcc error   : 'cudafe++' died due to signal 11 (Invalid memory reference)", None),
        ("error: expected ';'", None),
    ],
)
def test_a_compiler_that_the_kernel_ended_is_named(line: str, program: str | None) -> None:
    found = killed_compiler(["[1/2] x", line])
    assert (found.program if found else None) == program
    assert found is None or found.line == 2
