"""Traces: read whole or refused, every microsecond attributed once, and told in a sentence that is right."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3ops.profiling.phases import NoSteps, phase_of, step_times
from eagle3ops.profiling.reading import WAITING, Profile, bars, bound_by, sentence, table
from eagle3ops.profiling.trace import TraceError, read_trace

RECORDED = Path(__file__).parent / "recorded"
"""Of SGLang 0.5.14 on one H200, SmolLM2-135M, batch 1; annotations, launches and work only."""


def event(category: str, name: str, start: float, length: float, *, tid: int = 1, number: int | None = None) -> Any:
    arguments = {} if number is None else {"correlation": number}
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "ts": start,
        "dur": length,
        "tid": tid,
        "pid": 0,
        "args": arguments,
    }


def write(path: Path, events: list[Any], *, packed: bool = False) -> Path:
    text = json.dumps({"schemaVersion": 1, "traceEvents": events}).encode()
    path.write_bytes(gzip.compress(text) if packed else text)
    return path


def two_steps(*, communication: tuple[float, float] | None = None) -> list[Any]:
    """Steps of 1 ms: draft 100 us, verify 300 us, extend 50 us, sampling 20 us, else idle."""
    events: list[Any] = []
    number = 0
    for step in range(3):
        at = 1000.0 * step
        events.append(event("user_annotation", "scheduler.run_batch", at, 900))
        pieces = (
            ("draft", 10, 100),
            ("step[TARGET_VERIFY bs=1]", 200, 300),
            (None, 600, 20),
            ("draft_extend", 700, 50),
        )
        for name, begin, length in pieces:
            number += 1
            if name is not None:
                events.append(event("user_annotation", name, at + begin, 60))
            events.append(event("cuda_runtime", "cudaGraphLaunch", at + begin + 1, 5, number=number))
            events.append(event("kernel", "gemm", at + begin + 10, length, tid=7, number=number))
        if communication is not None:
            number += 1
            events.append(event("cuda_runtime", "cudaLaunchKernel", at + 205, 2, number=number))
            start, lasts = communication
            events.append(event("kernel", "ncclDevKernel_AllReduce", at + start, lasts, tid=8, number=number))
    return events


def test_every_microsecond_is_attributed_to_the_phase_that_launched_it(tmp_path: Path) -> None:
    times = step_times(read_trace(write(tmp_path / "a.json", two_steps())))
    assert (times.steps, times.speculative, times.on_gpu) == (2, True, True)
    assert times.step_ms == pytest.approx(1.0)
    assert times.phases == pytest.approx({"draft": 0.1, "draft_extend": 0.05, "verify": 0.3, "sample": 0.02})
    assert times.busy_ms == pytest.approx(0.47)
    assert times.idle_ms == pytest.approx(0.53)
    assert (times.kernels, times.launches) == (4, 4)


def test_communication_counts_only_where_nothing_hides_it(tmp_path: Path) -> None:
    hidden = step_times(read_trace(write(tmp_path / "a.json", two_steps(communication=(250, 100)))))
    assert "communication" not in hidden.phases
    shown = step_times(read_trace(write(tmp_path / "b.json.gz", two_steps(communication=(450, 100)), packed=True)))
    assert shown.phases["communication"] == pytest.approx(0.04)
    assert shown.busy_ms == pytest.approx(hidden.busy_ms + 0.04)


def test_operators_of_a_cpu_are_counted_once(tmp_path: Path) -> None:
    events = [event("user_annotation", "step[DECODE bs=2]", at, 80) for at in (0.0, 100.0, 200.0)]
    for begin in (0.0, 100.0, 200.0):
        events += [event("cpu_op", "aten::linear", begin + 10, 40), event("cpu_op", "aten::mm", begin + 15, 30)]
    times = step_times(read_trace(write(tmp_path / "a.json", events)))
    assert not times.on_gpu
    assert times.phases == pytest.approx({"decode": 0.04})
    assert times.kernels == 1


def test_recordings_of_a_real_engine() -> None:
    drafted = step_times(read_trace(RECORDED / "eagle3-3-1-4.trace.json.gz"))
    assert (drafted.steps, drafted.speculative) == (10, True)
    # The verification of four tokens by 30 layers is the most of it; the drafter has one layer.
    assert drafted.phases["verify"] == pytest.approx(1.321, abs=0.01)
    assert drafted.phases["draft"] + drafted.phases["draft_extend"] < 0.3
    assert drafted.busy_ms == pytest.approx(sum(drafted.phases.values()))
    alone = step_times(read_trace(RECORDED / "baseline.trace.json.gz"))
    assert not alone.speculative
    assert alone.phases["decode"] == pytest.approx(0.876, abs=0.01)
    assert drafted.launches > 3 * alone.launches
    profile = Profile(label="3/1/4", times=drafted, step_ms=3.2, tokens=2.66)
    told = sentence(profile, Profile(label="baseline", times=alone, step_ms=1.4, tokens=1.0))
    assert told.startswith("3/1/4: a step takes 3.20 ms and yields 2.66 tokens (1.20 ms a token, baseline 1.40)")
    assert "the GPU works 1.64 ms of it: verification 1.32" in told
    assert "bound by launches and the scheduler: the device waits 49%" in told
    assert sum(profile.parts.values()) == pytest.approx(3.2)
    assert "verification" in "\n".join(bars(profile))
    assert "while the device waits" in table({"3/1/4": profile})


@pytest.mark.parametrize(
    ("phases", "told"),
    [
        ({"verify": 6.0, "draft": 1.0}, "bound by verification"),
        ({"verify": 3.0, "draft": 4.0, "draft_extend": 1.0}, "bound by the drafter"),
        ({"verify": 4.2, "draft": 2.8, "draft_extend": 0.7}, "bound by verification"),
        ({"verify": 3.0, "communication": 5.0}, "bound by communication"),
        ({"decode": 8.0}, "bound by the target's own pass"),
        ({"verify": 1.0}, "bound by launches"),
    ],
)
def test_what_limits_a_step(tmp_path: Path, phases: dict[str, float], told: str) -> None:
    from dataclasses import replace

    times = step_times(read_trace(write(tmp_path / "a.json", two_steps())))
    times = replace(times, phases=phases, busy_ms=sum(phases.values()))
    profile = Profile(label="x", times=times, step_ms=max(8.0, times.busy_ms), tokens=2.0)
    assert bound_by(profile).startswith(told)
    assert profile.parts[WAITING] == pytest.approx(max(8.0, times.busy_ms) - times.busy_ms)


@pytest.mark.parametrize(
    ("annotation", "kernel", "phase"),
    [
        ("draft_extend", "gemm", "draft_extend"),
        ("draft", "gemm", "draft"),
        ("step[EXTEND bs=1 toks=40]", "gemm", "prefill"),
        ("scheduler.run_batch", "verify_tree_greedy", "sample"),
        ("step[DECODE bs=8]", "void sglang::cross_device_reduce_1stage<>", "communication"),
        (None, "gemm", "other"),
    ],
)
def test_names(annotation: str | None, kernel: str, phase: str) -> None:
    assert phase_of(annotation, kernel) == phase


def test_what_is_no_trace_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        read_trace(tmp_path / "none.json")
    whole = gzip.compress(json.dumps({"traceEvents": two_steps()}).encode())
    for name, content in (("cut.gz", whole[: len(whole) // 2]), ("bad", b"{"), ("list", b"[1]"), ("empty", b"")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(TraceError, match=name):
            read_trace(tmp_path / name)
    with pytest.raises(NoSteps, match="1 decode steps"):
        step_times(read_trace(write(tmp_path / "short", two_steps()[:13])))


@given(st.binary(max_size=400))
def test_any_bytes_are_a_trace_or_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("t") / "x"
    path.write_bytes(content)
    with pytest.raises(TraceError):
        read_trace(path)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
EVENTS = st.lists(
    st.fixed_dictionaries(
        {"ph": st.just("X") | ANYTHING},
        optional={
            "cat": st.sampled_from(["kernel", "cpu_op", "user_annotation", "cuda_runtime"]) | ANYTHING,
            "name": st.sampled_from(["step[DECODE bs=1]", "draft", "gemm"]) | ANYTHING,
            "ts": st.floats(0, 1e6) | ANYTHING,
            "dur": st.floats(0, 1e3) | ANYTHING,
            "tid": st.integers(0, 2) | ANYTHING,
            "args": st.fixed_dictionaries({"correlation": st.integers(0, 3) | ANYTHING}) | ANYTHING,
        },
    ),
    max_size=12,
)


@given(EVENTS)
def test_strange_events_are_left_out_and_times_add_up(
    tmp_path_factory: pytest.TempPathFactory, events: list[Any]
) -> None:
    path = tmp_path_factory.mktemp("t") / "x"
    path.write_text(json.dumps({"traceEvents": events}))
    try:
        times = step_times(read_trace(path))
    except (TraceError, NoSteps):
        return
    assert times.busy_ms >= 0
    assert sum(times.phases.values()) == pytest.approx(times.busy_ms)
