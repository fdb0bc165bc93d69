"""Does an agent stay small, awake and honest, whoever it talks to and whatever it is asked to look at?"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from agent_world import RUN, AgentWorld, pretender

from eagle3ops.errors import Eagle3opsError, RequestError
from eagle3ops.hosts.agent import ops_logs
from eagle3ops.hosts.agent.merged import Merge
from eagle3ops.hosts.agent.ops_processes import artifacts
from eagle3ops.hosts.agent.ops_runs import here
from eagle3ops.hosts.client import AgentClient, ConnectionLost

MIB = 1 << 20


def test_who_asks_and_does_not_listen_fills_no_memory(agents: AgentWorld) -> None:
    run = agents.made_run()
    (run.logs / "train.log").write_bytes(b"x" * MIB)
    with agents.raw() as agent:
        agent.hear()
        process = psutil.Process(agent.process.pid)
        before = process.memory_info().rss
        count = 250
        for number in range(count):
            args = {"run": RUN, "log": "train.log", "max_bytes": MIB}
            agent.say(json.dumps({"id": number, "op": "log.read", "args": args}).encode())
        worked = -1.0
        while (now := sum(process.cpu_times()[:2])) != worked:  # until it waits for us
            worked = now
            time.sleep(0.15)
        assert process.memory_info().rss - before < 130 * MIB, f"{count} answers are as many MiB"
        heard = {agent.hear()["id"] for _ in range(count)}
        assert heard == set(range(count)), "every answer comes, once somebody listens"


FAULTY = """
import sys
from eagle3ops.hosts.agent import loop
from eagle3ops.hosts.agent.operation import Operation
from eagle3ops.operations import OPERATIONS
class Faulty(Operation):
    def check(self, args):
        raise ValueError("nobody thought of it")
if len(sys.argv) > 1:
    async def fails(self, line):
        raise ValueError("nobody thought of it")
    loop.Agent._take = fails
sys.exit(loop.main(dict(OPERATIONS) | {"faulty": Faulty("faulty", print, False, {})}))
"""


async def test_what_nobody_thought_of_is_answered_and_the_agent_goes_on() -> None:
    async with await AgentClient.connect(pretender(FAULTY)) as client:
        with pytest.raises(Eagle3opsError, match=r"ValueError: nobody thought of it") as caught:
            await client.call("faulty")
        assert "defect" in (caught.value.remedy or "")
        assert (await client.call("ping"))["time"] > 0


async def test_an_agent_that_cannot_read_any_more_ends() -> None:
    """Deaf and alive, it would look like one that has nothing to say."""
    transport = pretender(FAULTY)
    transport.command.append("deaf")
    async with await AgentClient.connect(transport) as client:
        with pytest.raises(ConnectionLost, match=r"nobody thought of it"):
            await client.call("ping")


def test_a_file_that_goes_hides_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    for name in ("a", "b"):
        (folder / name).write_text("12345")
    _names(tmp_path, folder)
    walk = os.walk

    def goes(top: Path, onerror: Callable[[OSError], object]) -> Iterator[tuple[str, list[str], list[str]]]:
        for found in walk(top, onerror=onerror):
            (folder / "a").unlink(missing_ok=True)
            yield found

    monkeypatch.setattr(os, "walk", goes)
    (row,) = artifacts(here(str(tmp_path)), run=RUN)["artifacts"]
    assert (row["exists"], row["kind"], row["files"], row["bytes"]) == (True, "folder", 1, 5)


def test_a_folder_that_may_not_be_read_has_no_size(tmp_path: Path) -> None:
    inner = tmp_path / "out" / "inner"
    inner.mkdir(parents=True)
    (tmp_path / "out" / "a").write_text("12345")
    _names(tmp_path, tmp_path / "out")
    program = (
        "import json, sys\n"
        "from eagle3ops.hosts.agent.ops_processes import artifacts\n"
        "from eagle3ops.hosts.agent.ops_runs import here\n"
        "print(json.dumps(artifacts(here(sys.argv[1]), run='last')['artifacts'][0]))"
    )
    bound = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-dac_override,-dac_read_search"]
    inner.chmod(0)
    try:
        command = [*(bound if os.geteuid() == 0 else []), sys.executable, "-c", program, str(tmp_path)]
        row = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    finally:
        inner.chmod(0o700)
    assert (row["exists"], row["bytes"], row["files"]) == (True, None, None)
    assert row["why"] == f"{inner}: Permission denied"


def _names(root: Path, path: Path) -> None:
    run = root / "runs" / RUN
    run.mkdir(parents=True)
    (run / "request.json").write_text('{"stages": [], "job": "pipeline", "created": 1.0}')
    event = {"seq": 1, "ts": 1.0, "stage": "make", "kind": "artifact", "data": {"path": str(path)}}
    (run / "events.jsonl").write_text(json.dumps(event) + "\n")


def test_a_log_that_cannot_be_read_is_not_left_out_of_the_others(agents: AgentWorld) -> None:
    run = agents.made_run()
    (run.logs / "a.log").write_text("one\n")
    (run.logs / "b.log").mkdir()
    with pytest.raises(RequestError, match=r"b\.log: not a file") as caught:
        Merge(run, ["a.log", "b.log"]).refresh()
    assert caught.value.remedy == "look at the other logs without it"
    merge = Merge(run, ["a.log", "later.log"])
    merge.refresh()
    assert merge.window(0, 10)["lines"] == ("one",), "one that is not there yet is no error"


async def test_a_search_that_breaks_says_why(agents: AgentWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    run = agents.made_run()
    (run.logs / "a.log").write_text("one\n")
    monkeypatch.setattr(sys, "executable", str(agents.folder / "broken"))
    (agents.folder / "broken").write_text("#!/bin/sh\necho 'cannot load shared libraries' >&2\nexit 127\n")
    (agents.folder / "broken").chmod(0o755)
    with pytest.raises(Eagle3opsError, match="ended by itself, with 127: cannot load shared libraries"):
        async for _ in ops_logs.search(here(str(agents.root)), run=RUN, log="a.log", pattern="one"):
            pass
