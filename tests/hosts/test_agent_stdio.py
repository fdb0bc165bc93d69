"""Does an agent stand whatever is said to it, keep its output clean, and leave when it is alone?"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from agent_world import AgentWorld, event_lines

from eagle3ops import __version__
from eagle3ops.hosts.agent.loop import CONTROL
from eagle3ops.hosts.agent.protocol import MAX_LINE
from eagle3ops.operations import OPERATIONS


def test_the_hello_says_who_speaks(agents: AgentWorld) -> None:
    with agents.raw() as agent:
        hello = agent.hear()
        assert hello["agent"] == "eagle3ops"
        assert hello["version"] == __version__
        assert hello["pid"] == agent.process.pid
        assert hello["root"] == str(agents.root)
        assert hello["ops"] == [*OPERATIONS, *CONTROL]


GARBAGE = [
    (b"\x00\xff\xfe\x01", "not UTF-8"),
    (b"\x00", "not JSON"),
    (b"GET / HTTP/1.1", "not JSON"),
    (b"[1,2]", "not a JSON object"),
    (b"[" * 50_000, "nested too deeply"),
    (b"{}", "names its op"),
    (b'{"id":1}', "names its op"),
    (b'{"id":1,"op":7}', "names its op"),
    (b'{"op":"ping"}', "carries an id"),
    (b'{"id":{},"op":"ping"}', "number or a string"),
    (b'{"id":1,"op":"ping","args":[]}', "args is an object"),
    (b'{"id":1,"op":"ping","args":{"x":1}}', "has no argument 'x'"),
    (b'{"id":1,"op":"ping","args":{"root":7}}', "root is the path"),
    (b'{"id":1,"op":"ping","args":{"root":"~nosuchuser/x"}}', "home folder of nosuchuser is not known"),
    (b'{"id":1,"op":"ping","args":{"root":"\\ud800"}}', "root"),
    (b'{"id":1,"op":"runs.fly"}', "has no op 'runs.fly'"),
    (b'{"id":1,"op":"runs.show"}', "needs the argument 'run'"),
    (b'{"id":1,"op":"runs.show","args":{"run":null}}', "run is a string, not null"),
    (b'{"id":1,"op":"runs.show","args":{"run":"a\\u0000b"}}', "NUL"),
    (b'{"id":1,"op":"runs.list","args":{"limit":true}}', "limit is a whole number or null, not true or false"),
    (b'{"id":1,"op":"runs.list","args":{"limit":99999999999999999999}}', "beyond all bounds"),
    (b'{"id":1,"op":"telemetry.watch","args":{"hz":1e999}}', "not a number"),
    (b'{"id":1,"op":"ping","window":0}', "window"),
    (b'{"id":1,"op":"stop","args":{}}', "names the id of a stream"),
    (b'{"id":1,"op":"more","args":{"id":7,"n":0}}', "n is a whole number"),
    (b"x" * (MAX_LINE + 5), "longer than"),
]


def test_garbage_is_answered_with_what_is_wrong_and_the_agent_goes_on(agents: AgentWorld) -> None:
    with agents.raw() as agent:
        agent.hear()
        for line, reason in GARBAGE:
            agent.say(line)
            answer = agent.hear()
            assert reason in answer["error"]["what"], (line[:60], answer)
            assert answer["error"]["exit_code"] == 2
            assert answer["id"] == (1 if b'"id":1' in line else None)
        agent.say(b"   ")
        assert agent.ask({"id": "last", "op": "ping"})["ok"]["time"] > 1e9
        out, err = agent.close()
        assert (agent.process.returncode, out, err) == (0, b"", b"")


def test_what_was_asked_for_is_answered_before_it_leaves(agents: AgentWorld) -> None:
    with agents.raw() as agent:
        agent.say(b'{"id":1,"op":"runs.list"}\n{"id":2,"op":"ping"}')
        out, err = agent.close()
        answers = [json.loads(line) for line in out.splitlines()][1:]
        assert sorted(answer["id"] for answer in answers) == [1, 2]
        assert all("ok" in answer for answer in answers)
        assert (agent.process.returncode, err) == (0, b"")


def test_a_request_without_a_line_end_is_taken_at_the_end(agents: AgentWorld) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "eagle3ops", "agent", "--root", str(agents.root)],
        input=b'{"id":1,"op":"ping"}',
        capture_output=True,
        env=agents.environment,
    )
    assert run.returncode == 0
    assert b'{"id":1,"ok":' in run.stdout.splitlines()[1]


def test_files_do_for_input_and_output(agents: AgentWorld, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b'{"id":1,"op":"ping"}\n')
    with (tmp_path / "in").open("rb") as source, (tmp_path / "out").open("wb") as sink:
        command = [sys.executable, "-m", "eagle3ops", "agent"]
        run = subprocess.run(command, stdin=source, stdout=sink, env=agents.environment)
    assert run.returncode == 0
    assert len((tmp_path / "out").read_bytes().splitlines()) == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_it_quietly(agents: AgentWorld, number: signal.Signals) -> None:
    with agents.raw() as agent:
        agent.hear()
        agent.process.send_signal(number)
        assert agent.process.wait(60) == 0
        out, err = agent.close()
        assert (out, err) == (b"", b"")


def test_it_ends_quietly_when_nobody_hears_it(agents: AgentWorld) -> None:
    with agents.raw() as agent:
        agent.hear()
        assert agent.process.stdout is not None
        assert agent.process.stderr is not None
        agent.process.stdout.close()
        agent.say(b'{"id":1,"op":"ping"}')
        assert agent.process.wait(60) == 0
        assert agent.process.stderr.read() == b""
        agent.process.stdout = None


def test_what_a_job_prints_does_not_reach_the_conversation(agents: AgentWorld) -> None:
    (agents.folder / "loud_jobs.py").write_text(
        "print('LOUD')\nfrom toy_jobs import *\nimport os\nos.write(1, b'RAW')\n"
    )
    agents.jobs = "loud_jobs"
    with agents.raw() as agent:
        agent.hear()
        text = (agents.folder / "toy.yaml").read_text()
        answer = agent.ask({"id": 1, "op": "runs.plan", "args": {"spec_text": text}})
        assert [stage["stage"] for stage in answer["ok"]["stages"]] == ["make", "use", "end"]
        out, err = agent.close()
        assert out == b""
        assert b"LOUD" in err
        assert b"RAW" in err


def test_an_op_that_fails_unexpectedly_ends_alone(agents: AgentWorld) -> None:
    (agents.folder / "broken_jobs.py").write_text("raise ZeroDivisionError('nobody expected this')\n")
    agents.jobs = "broken_jobs"
    with agents.raw() as agent:
        agent.hear()
        error = agent.ask({"id": 1, "op": "runs.plan", "args": {"spec_text": "schema: 1"}})["error"]
        assert error["what"] == "runs.plan: ZeroDivisionError: nobody expected this"
        assert "traceback" in error["remedy"]
        assert "ok" in agent.ask({"id": 2, "op": "ping"})
        assert b"ZeroDivisionError" in agent.close()[1]


def test_ids_are_not_used_twice_at_once_and_requests_are_bounded(agents: AgentWorld) -> None:
    agents.made_run(alive=True)
    with agents.raw() as agent:
        agent.hear()
        agent.say(b'{"id":0,"op":"runs.events","args":{"run":"last"}}')
        assert "is in use" in agent.ask({"id": 0, "op": "ping"})["error"]["what"]
        for number in range(1, 256):
            agent.say(json.dumps({"id": number, "op": "log.follow", "args": {"run": "last", "log": "x"}}).encode())
        assert "256 requests are open" in agent.ask({"id": 256, "op": "ping"})["error"]["what"]
        agent.say(b'{"op":"stop","args":{"id":0}}')
        assert agent.hear() == {"id": 0, "ok": {"stopped": True}}
        assert "ok" in agent.ask({"id": 256, "op": "ping"})


def _switches(pid: int) -> int:
    """How often any thread of a process has gone to sleep."""
    total = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        total += int(status.read_text().split("voluntary_ctxt_switches:")[1].split()[0])
    return total


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="counted by procfs")
def test_it_sleeps_as_long_as_nothing_is_asked(agents: AgentWorld) -> None:
    with agents.raw() as agent:
        agent.hear()
        agent.ask({"id": 1, "op": "ping"})
        time.sleep(0.2)
        before = _switches(agent.process.pid)
        time.sleep(1.0)
        assert _switches(agent.process.pid) == before


def _has_read(pid: int) -> int:
    """Bytes that a process has read from anywhere."""
    return int(Path(f"/proc/{pid}/io").read_text().split("rchar:")[1].split()[0])


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="counted by procfs")
def test_nothing_is_read_ahead_of_who_does_not_listen(agents: AgentWorld) -> None:
    run = agents.made_run()
    run.events_file.write_bytes(event_lines(range(1, 8_001), padding=1000))
    with agents.raw() as agent:
        agent.hear()
        for number in range(5):
            agent.say(json.dumps({"id": number, "op": "runs.events", "args": {"run": "last"}}).encode())
        before, now = -1, _has_read(agent.process.pid)
        while now != before:
            time.sleep(0.5)
            before, now = now, _has_read(agent.process.pid)
        # Python's own modules, what fits into the pipe, and a batch or two of each stream; of 40 MB.
        assert now < 16 << 20
        seen = [0] * 5
        while not all(last == 8_000 for last in seen):
            answer = agent.hear()
            for event in answer.get("items", ()):
                assert event["seq"] == seen[answer["id"]] + 1
                seen[answer["id"]] = event["seq"]


def test_every_op_says_which_arguments_it_takes() -> None:
    for name, operation in OPERATIONS.items():
        for argument in operation.arguments.values():
            assert set(argument.kinds) <= {str, int, float, bool, list, type(None)}, name
        assert operation.call.__doc__, name


def test_an_agent_loads_neither_the_pipeline_models_nor_asyncssh(agents: AgentWorld) -> None:
    program = (
        "import sys, eagle3ops.hosts.agent.loop, eagle3ops.operations; "
        "print(*[n for n in sys.modules if n.split('.')[0] in sys.argv])"
    )
    heavy = ["pydantic", "yaml", "asyncssh", "psutil", "pynvml", "aiohttp", "textual", "rich", "torch", "numpy"]
    run = subprocess.run([sys.executable, "-c", program, *heavy], capture_output=True, text=True, env=dict(os.environ))
    assert run.stdout.strip() == "", run.stdout


def test_the_reference_names_every_op_and_its_arguments() -> None:
    page = (Path(__file__).parents[2] / "docs" / "agent-protocol.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1:4] for line in page.splitlines() if line.startswith("| `")]
    told = {
        re.findall("`([^`]+)`", op)[0]: {
            name: mark != "?" for name, mark in re.findall(r"`([a-z0-9_]+)`(\??)", arguments)
        }
        for op, arguments, _ in rows
    }
    assert told == {
        name: {argument.name: argument.required for argument in operation.arguments.values()}
        for name, operation in OPERATIONS.items()
    }


def test_an_answer_that_no_line_holds_is_an_error_and_not_the_end(agents: AgentWorld) -> None:
    run = agents.made_run()
    (run.path / "state.json").write_text(json.dumps({"status": "done", "text": "x" * MAX_LINE}))
    with agents.raw() as agent:
        agent.hear()
        error = agent.ask({"id": 1, "op": "runs.state", "args": {"run": "last"}})["error"]
        assert "more than the" in error["what"]
        assert "ok" in agent.ask({"id": 2, "op": "ping"})
