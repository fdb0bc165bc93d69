"""How fast do events come through an agent on this machine, what does it cost there, and what does it cost at rest?

Once over pipes and, where an OpenSSH server can be started (root), once through that, on loopback.

python benchmarks/agent_events.py [--events 500000] [--log-lines 1000000] [--rest 20] [--copy-bytes 268435456]
"""

import argparse
import asyncio
import json
import os
import platform
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from eagle3ops.hosts.client import AgentClient
from eagle3ops.hosts.local import LocalTransport
from eagle3ops.hosts.transfer import get, put
from eagle3ops.runs.directory import RunDirectory, runs_folder
from eagle3ops.runs.files import write_json
from eagle3ops.runs.processes import identify

TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def wake_ups(pid: int) -> int:
    """How often its threads have gone to sleep."""
    texts = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/status")]
    return sum(int(text.split("voluntary_ctxt_switches:")[1].split()[0]) for text in texts)


def make_run(root: Path, events: int, log_lines: int) -> RunDirectory:
    """A run that this process looks after, with many events and a long log."""
    run = RunDirectory(runs_folder(root) / "20260101-000000-made-aaaa")
    run.logs.mkdir(parents=True)
    write_json(run.path / "request.json", {"run_id": run.run_id, "job": "pipeline", "stages": [], "cache": "/"})
    with run.events_file.open("w") as file:
        for number in range(1, events + 1):
            data = {"name": "loss", "value": round(8 / number**0.3, 6), "step": number}
            event = {"seq": number, "ts": 1796013913.25, "stage": "train", "kind": "metric", "data": data}
            file.write(json.dumps(event, separators=(",", ":")) + "\n")
    with (run.logs / "train.log").open("w") as file:
        file.writelines(
            f"[2026-11-30 04:45:12] train.py:311 step {n} loss {8 / (n + 1):.4f} lr 1e-4 grad norm 0.81 tok/s 48211\n"
            for n in range(log_lines)
        )
    return run


async def read_all(client: AgentClient, after: int = 0) -> dict[str, float]:
    """Follow the run from `after` to its end."""
    began, cpu, own, count, last = time.perf_counter(), cpu_seconds(client.hello.pid), time.process_time(), 0, after
    async for items in client.stream("runs.events", run="last", after=after):
        for event in items:
            assert event["seq"] == last + 1
            last = event["seq"]
        count += len(items)
    took = time.perf_counter() - began
    there, here = cpu_seconds(client.hello.pid) - cpu, time.process_time() - own
    return {
        "events": count,
        "seconds": round(took, 3),
        "events_per_s": round(count / took),
        # On a machine that is busy with something else the clock says little: so many, were one core for both.
        "events_per_s_of_one_core": round(count / (there + here)),
        "agent_cpu_us_per_event": round(there / count * 1e6, 2),
        "client_cpu_us_per_event": round(here / count * 1e6, 2),
    }


async def timed(call: Callable[[], Awaitable[Any]], times: int = 1) -> list[float]:
    """Milliseconds of each of some calls."""
    found = []
    for _ in range(times):
        began = time.perf_counter()
        await call()
        found.append((time.perf_counter() - began) * 1e3)
    return found


async def rest(client: AgentClient, seconds: float) -> dict[str, float]:
    """What the agent does while nothing is asked."""
    pid = client.hello.pid
    cpu, wakes = cpu_seconds(pid), wake_ups(pid)
    await asyncio.sleep(seconds)
    used = (cpu_seconds(pid) - cpu) / seconds * 100
    return {"cpu_percent_of_a_core": round(used, 3), "wake_ups_per_s": round((wake_ups(pid) - wakes) / seconds, 2)}


async def latency(client: AgentClient, run: RunDirectory, events: int) -> dict[str, float]:
    """From the writing of an event to its arrival, one at a time, 0.2 s apart."""
    stream, found = client.stream("runs.events", run="last", after=events), []
    with run.events() as log:
        for number in range(20):
            log.append("metric", {"name": "x", "value": number})
            began = time.perf_counter()
            await anext(stream)
            found.append((time.perf_counter() - began) * 1e3)
            await asyncio.sleep(0.2)
    await stream.aclose()
    return {"median_ms": round(statistics.median(found), 1), "max_ms": round(max(found), 1)}


async def log_windows(transport: LocalTransport) -> dict[str, float]:
    """Opening a long log: by a new agent, which has counted nothing."""
    figures = {}
    for name, args in {
        "last_100": {"line": -100, "count": 100},
        "middle_100_first_time": {"line": 500_000, "count": 100},
    }.items():
        async with await AgentClient.connect(transport) as client:
            await client.call("runs.state", run="last")
            ask = lambda args=args, client=client: client.call("log.lines", run="last", log="train.log", **args)  # noqa: E731
            figures[f"{name}_ms"] = round((await timed(ask))[0], 1)
            figures[f"{name.removesuffix('_first_time')}_again_ms"] = round(statistics.median(await timed(ask, 20)), 1)
    return figures


async def copies(client: AgentClient, folder: Path, size: int) -> dict[str, float]:
    """A file to the agent and back; checksums on both sides included."""
    source, back = folder / "source.bin", folder / "back.bin"
    with source.open("wb") as file:
        for _ in range(0, size, 1 << 20):
            file.write(os.urandom(1 << 20))
    up = (await timed(lambda: put(client, source, "copy.bin")))[0]
    down = (await timed(lambda: get(client, "copy.bin", back)))[0]
    return {"bytes": size, "put_mb_per_s": round(size / up / 1e3, 1), "get_mb_per_s": round(size / down / 1e3, 1)}


async def start_up(transport: LocalTransport) -> dict[str, float]:
    """From nothing to the hello, and to the first list of runs."""
    hello, listed, cpu = [], [], []
    for _ in range(5):
        began = time.perf_counter()
        async with await AgentClient.connect(transport) as client:
            hello.append(time.perf_counter() - began)
            spent = cpu_seconds(client.hello.pid)
            await client.call("runs.list")
            listed.append(time.perf_counter() - began)
        cpu.append(spent)
    return {
        "hello_ms": round(statistics.median(hello) * 1e3),
        "hello_cpu_s": statistics.median(cpu),
        "first_runs_list_ms": round(statistics.median(listed) * 1e3),
    }


async def over_ssh(folder: Path, root: Path, rest_s: float) -> dict[str, Any]:
    """The same events through a real OpenSSH server on loopback, as a console on another machine gets them."""
    sys.path[:0] = [str(Path(__file__).parents[1] / "tests" / "hosts")]
    from sshd_world import make_world, missing

    if (reason := missing()) is not None:
        return {"skipped": reason}
    from ssh_person import reach

    os.environ |= {"HOME": str(folder / "ssh" / "home"), "EAGLE3OPS_CONFIG": str(folder / "ssh" / "config")}
    os.environ.pop("SSH_AUTH_SOCK", None)
    world = make_world(folder / "ssh")
    path = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
    server = world.server(environment={"EAGLE3OPS_ROOT": str(root), **path})
    world.trust(server)
    try:
        async with await AgentClient.connect(reach(server.url())) as client:
            read = [await read_all(client) for _ in range(3)]
            return {"read_all": read, "at_rest": await rest(client, rest_s)}
    finally:
        server.stop()


async def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """All figures."""
    root = folder / "root"
    run = make_run(root, args.events, args.log_lines)
    transport = LocalTransport(root=str(root))
    figures: dict[str, Any] = {"start": await start_up(transport)}
    async with await AgentClient.connect(transport) as client:
        figures["read_all"] = [await read_all(client) for _ in range(3)]
        figures["last_5_of_all_ms"] = round((await timed(lambda: read_all(client, args.events - 5)))[0], 1)
        figures["log_lines"] = args.log_lines
        figures["log"] = await log_windows(transport)
        figures["ping_ms"] = round(statistics.median(await timed(lambda: client.call("ping"), 200)), 3)
        me = identify(os.getpid())
        assert me is not None
        write_json(run.path / "supervisor.json", me.as_json())
        figures["latency_of_an_event"] = await latency(client, run, args.events)
        figures["at_rest"] = await rest(client, args.rest)
        async with client.stream("runs.events", run="last", after=args.events + 20) as stream:
            waiting = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(3)
            figures["at_rest_with_a_stream_of_a_quiet_run"] = await rest(client, args.rest)
            waiting.cancel()
        figures["copy"] = await copies(client, folder, args.copy_bytes)
    # The run has ended again: its events are read to their end.
    (run.path / "supervisor.json").unlink()
    figures["over_ssh_on_loopback"] = await over_ssh(folder, root, args.rest)
    return figures


def main() -> None:
    """Measure and write down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=500_000)
    parser.add_argument("--log-lines", type=int, default=1_000_000)
    parser.add_argument("--rest", type=float, default=20.0, help="seconds of each measurement at rest")
    parser.add_argument("--copy-bytes", type=int, default=256 << 20)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = asyncio.run(measure(args, Path(folder)))
    result = {
        "name": "agent_events",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "command": f"python {shlex.join(sys.argv)}",
        "load_average": [round(load, 1) for load in os.getloadavg()],
        "figures": figures,
    }
    target = Path(__file__).parent / "results" / "agent_events.json"
    target.write_text(json.dumps(result, indent=1) + "\n")
    sys.stdout.write(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
