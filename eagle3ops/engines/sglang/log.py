"""How does SGLang's log read? The forms of its lines are those of recorded logs of 0.5.14 and 0.5.23."""

import re
from datetime import UTC, datetime

from eagle3ops.engines.base import LogFact

READY = "The server is fired up and ready to roll!"
_LINE_CHARACTERS = 2000

_PREFIX = re.compile(
    r"\[(?P<at>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?P<part>[.,]\d{1,9})?"
    r"(?P<rank>(?: (?:DP|PP|ATTN_CP|MOE_DP|TP|EP)\d{1,5})*)\] "
)
_DECODE = re.compile(
    r"Decode batch.{0,40}?, #running-req: (?P<running>\d{1,9}),"
    r"(?:.{0,200}? accept len: (?P<accept_len>\d{1,9}(?:\.\d{1,9})?), accept rate: (?P<accept_rate>\d(?:\.\d{1,9})?))?"
    r".{0,300}?gen throughput \(token/s\): (?P<throughput>\d{1,9}(?:\.\d{1,9})?)"
    r"(?:, #queue-req: (?P<queued>\d{1,9}))?"
)
_PREFILL = re.compile(
    r"Prefill batch.{0,40}?, #new-seq: (?P<sequences>\d{1,9}), #new-token: (?P<new>\d{1,9}), "
    r"#cached-token: (?P<cached>\d{1,9}), .{0,200}?#running-req: (?P<running>\d{1,9}), #queue-req: (?P<queued>\d{1,9})"
    r"(?:,.{0,200}?input throughput \(token/s\): (?P<throughput>\d{1,9}(?:\.\d{1,9})?))?"
)
_PHASES = (
    ("connecting", re.compile(r"Init (?:torch distributed|parallel) begin")),
    ("loading", re.compile(r"Load weight begin")),
    ("capturing", re.compile(r"Capture [a-z ]{1,30} CUDA graph begin")),
    ("allocating", re.compile(r"Load weight end|KV Cache is allocated")),
    ("warming_up", re.compile(r"INFO: {1,8}Uvicorn running on ")),
)
_NUMBER = r"-?\d{1,9}(?:\.\d{1,9})?"
_MEMORY = (
    ("weights", re.compile(
        rf"Load weight end\. elapsed=(?P<seconds>{_NUMBER}) s, type=(?P<type>\w{{1,100}}),.{{0,200}}?"
        rf"mem usage=(?P<gb>{_NUMBER}) GB")),
    ("cache", re.compile(
        rf"KV Cache is allocated\. dtype: (?P<dtype>[\w.]{{1,60}}), #tokens: (?P<tokens>\d{{1,12}}), "
        rf"K size: (?P<k_gb>{_NUMBER}) GB, V size: (?P<v_gb>{_NUMBER}) GB")),
    ("graphs", re.compile(
        rf"Capture (?P<what>[a-z ]{{1,30}}) CUDA graph end\. elapsed=(?P<seconds>{_NUMBER}) s, "
        rf"mem usage=(?P<gb>{_NUMBER}) GB")),
    ("limits", re.compile(
        r"max_total_num_tokens=(?P<tokens>\d{1,12}), .{0,300}?max_running_requests=(?P<requests>\d{1,9}), "
        rf"context_len=(?P<context>\d{{1,12}}), available_(?:gpu|cpu)_mem=(?P<free_gb>{_NUMBER}) GB")),
)  # fmt: skip
_ALLOCATING = ("weights", "cache")
"""What is told when weights are there and memory is being set aside."""
_ERRORS = re.compile(
    r"Scheduler hit an exception|Received sigquit from a child process|Initialization failed\. |"
    r"Rank \d{1,9} scheduler died during initialization|Health check failed\.|\w{1,40} watchdog timeout |"
    r"Subprocess \S{1,80} (?:\(pid=\d{1,9}\) )?crashed with exit code (?!-15\b)-?\d{1,9}"
)


def parse_line(line: str) -> LogFact | None:
    """What one line says; None for lines that say nothing known."""
    found = _PREFIX.match(line)
    if found is None:
        return None
    text = line[found.end() : found.end() + _LINE_CHARACTERS]
    rank: dict[str, float | str] = {"rank": found["rank"].strip()} if found["rank"] else {}
    at = _seconds(found["at"], found["part"])
    # All options of the server stand in this one, names of errors and of handlers among them.
    if text.startswith("server_args="):
        return LogFact("phase", {"phase": "starting", **rank}, at)
    if text.startswith(READY):
        return LogFact("ready", rank, at)
    for kind, pattern in (("decode", _DECODE), ("prefill", _PREFILL)):
        if batch := pattern.match(text):
            numbers = {key: float(value) for key, value in batch.groupdict().items() if value is not None}
            return LogFact(kind, {**numbers, **rank}, at)
    for name, pattern in _MEMORY:
        if told := pattern.match(text):
            facts: dict[str, float | str] = {"phase": "allocating"} if name in _ALLOCATING else {}
            facts["what"] = name
            for key, value in told.groupdict().items():
                facts["of" if key == "what" else key] = value if key in ("type", "dtype", "what") else float(value)
            return LogFact("phase" if name in _ALLOCATING else "memory", {**facts, **rank}, at)
    for phase, pattern in _PHASES:
        if pattern.match(text):
            return LogFact("phase", {"phase": phase, **rank}, at)
    if _ERRORS.match(text):
        return LogFact("error", {"message": text[:500].strip(), **rank}, at)
    return None


def _seconds(date: str, part: str | None) -> float | None:
    try:
        whole = datetime.strptime(date, "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None
    return whole + (float("0." + part[1:]) if part else 0.0)
