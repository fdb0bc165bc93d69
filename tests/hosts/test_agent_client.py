"""Does a console understand whatever answers where it expected an agent?"""

import asyncio
import os

import pytest
from agent_world import AgentWorld, hello, pretender

from eagle3ops.errors import HostUnreachable, RequestError
from eagle3ops.hosts import client as client_module
from eagle3ops.hosts.client import AgentClient, ConnectionLost
from eagle3ops.hosts.local import LocalTransport
from eagle3ops.hosts.transport import AgentDidNotStart, ConnectionRefusedForGood

SAY = "import sys, time, json\nsay = lambda text: (sys.stdout.write(text), sys.stdout.flush())\n"
ECHO = """
for line in sys.stdin:
    asked = json.loads(line)
    say(json.dumps({"id": asked["id"], "ok": asked["args"]}) + "\\n")
"""


@pytest.mark.parametrize("banner", ["", "Welcome to far!\n\n", "last login: never ", "\x1b[31mred\x1b[0m\n{}\n[1]\n"])
async def test_a_banner_is_passed_over_and_kept(banner: str) -> None:
    program = SAY + f"say({banner!r})\nsay({hello()!r} + '\\n')\n" + ECHO
    async with await AgentClient.connect(pretender(program)) as client:
        assert client.hello.version == "9.9.9"
        assert client.banner == banner.strip()
        assert await client.call("ping", x=1) == {"x": 1}
        assert not client.closed.is_set()
    assert client.closed.is_set()
    with pytest.raises(ConnectionLost, match="was closed"):
        await client.call("ping")


@pytest.mark.parametrize("protocol", [0, 2, 77])
async def test_another_protocol_is_refused_for_good_naming_both_versions(protocol: int) -> None:
    program = SAY + f"say({hello(protocol)!r} + '\\n')\nsys.stdin.read()"
    with pytest.raises(ConnectionRefusedForGood, match=rf"far: .*9\.9\.9.*protocol {protocol}.*0\.") as caught:
        await AgentClient.connect(pretender(program))
    assert "eagle3ops hosts install far" in str(caught.value.remedy)


async def test_an_op_that_the_other_version_lacks_is_refused_before_it_is_asked() -> None:
    program = SAY + f"say({hello()!r} + '\\n')\n" + ECHO
    async with await AgentClient.connect(pretender(program)) as client:
        with pytest.raises(ConnectionRefusedForGood, match=r"9\.9\.9\) cannot do 'runs\.fly'"):
            await client.call("runs.fly")
        with pytest.raises(ConnectionRefusedForGood, match=r"runs\.fly"):
            client.stream("runs.fly")


@pytest.mark.parametrize(
    ("program", "kind", "words"),
    [
        ("import no_such_module_at_all", AgentDidNotStart, "No module named"),
        (SAY + "say('This account is closed.\\n'); sys.exit(1)", HostUnreachable, "This account is closed"),
        (SAY + "sys.exit(3)", HostUnreachable, "exit code 3"),
        ("import os; os.kill(os.getpid(), 9)", HostUnreachable, "signal 9"),
        (SAY + 'say(\'{"agent":"eagle3ops"}\\n\')', HostUnreachable, "eagle3ops"),
        (SAY + "say('yes\\n' * 200_000); sys.stdin.read()", ConnectionRefusedForGood, "login scripts"),
        (SAY + "say('y' * 800_000); sys.stdin.read()", ConnectionRefusedForGood, "login scripts"),
    ],
)
async def test_who_is_no_agent_is_quoted(program: str, kind: type[HostUnreachable], words: str) -> None:
    with pytest.raises(HostUnreachable) as caught:
        await AgentClient.connect(pretender(program))
    assert type(caught.value) is kind
    assert words in str(caught.value)
    assert len(str(caught.value)) < 12_000


async def test_who_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "HELLO_WAIT_S", 0.3)
    with pytest.raises(HostUnreachable, match="no agent has spoken within 0 s; what was printed: Password:"):
        await AgentClient.connect(pretender(SAY + "say('Password: '); sys.stdin.read()"))


async def test_a_program_that_is_not_there_is_named() -> None:
    with pytest.raises(HostUnreachable, match="/no/such/python cannot be started"):
        await AgentClient.connect(LocalTransport("/no/such/python"))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("'what?\\n'", "not JSON"),
        ("'[]\\n'", "not a JSON object"),
        ("'\\x00\\n'", "not JSON"),
        ("json.dumps({'id': [7], 'ok': {}}) + '\\n'", "never given"),
        ("json.dumps({'id': None, 'error': {'what': 'no such line'}}) + '\\n'", "no such line"),
        ("''", "exit code 0"),
    ],
)
async def test_an_agent_that_talks_nonsense_is_left(answer: str, words: str) -> None:
    program = SAY + f"say({hello()!r} + '\\n')\nsys.stdin.readline()\nsay({answer})\n"
    async with await AgentClient.connect(pretender(program)) as client:
        with pytest.raises(ConnectionLost, match=words):
            await client.call("ping")
        await client.closed.wait()
        with pytest.raises(ConnectionLost):
            await anext(client.stream("runs.events"))


async def test_answers_that_nobody_awaits_are_passed_over() -> None:
    program = SAY + f"say({hello()!r} + '\\n' + '{{\"id\":99,\"ok\":{{}}}}\\n\\n')\n" + ECHO
    async with await AgentClient.connect(pretender(program)) as client:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await client.call("ping")
        assert await client.call("ping", x=2) == {"x": 2}


async def test_whatever_form_an_answer_has_it_is_one() -> None:
    program = (
        SAY
        + f"""
say({hello()!r} + '\\n')
for answer in ({{"ok": 7}}, {{"error": 7}}, {{"error": {{"what": "bad", "exit_code": 2}}}}, {{}}):
    asked = json.loads(sys.stdin.readline())
    say(json.dumps({{"id": asked["id"]}} | answer) + "\\n")
sys.stdin.read()
"""
    )
    async with await AgentClient.connect(pretender(program)) as client:
        assert await client.call("ping") == {}
        with pytest.raises(Exception, match="not understood"):
            await client.call("ping")
        with pytest.raises(RequestError, match="bad"):
            await client.call("ping")
        assert await client.call("ping") == {}


async def test_many_calls_at_once_get_their_own_answers(agents: AgentWorld) -> None:
    program = (
        SAY
        + f"""
import random
say({hello()!r} + '\\n')
asked = [json.loads(sys.stdin.readline()) for _ in range(50)]
random.Random(3).shuffle(asked)
for one in asked:
    say(json.dumps({{"id": one["id"], "ok": one["args"]}}) + "\\n")
sys.stdin.read()
"""
    )
    async with await AgentClient.connect(pretender(program)) as client:
        answers = await asyncio.gather(*(client.call("ping", number=number) for number in range(50)))
    assert [answer["number"] for answer in answers] == list(range(50))


async def test_an_agent_that_does_not_read_is_waited_for_and_killed_in_the_end() -> None:
    program = SAY + f"say({hello()!r} + '\\n')\ntime.sleep(600)"
    client = await AgentClient.connect(pretender(program))
    calls = [asyncio.create_task(client.call("ping", text="x" * 100_000)) for _ in range(100)]
    await asyncio.wait(calls, timeout=0.3)
    assert not any(call.done() for call in calls)
    await client.close()
    await client.close()
    assert client.closed.is_set()
    ends = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(end, ConnectionLost) for end in ends)


async def test_standard_error_is_kept_within_bounds() -> None:
    program = SAY + f"sys.stderr.write('x' * 1_000_000 + 'the end')\nsay({hello()!r} + '\\n')\nsys.stdin.readline()"
    async with await AgentClient.connect(pretender(program)) as client:
        with pytest.raises(ConnectionLost) as caught:
            await client.call("ping")
    assert "the end (ended with exit code 0)" in str(caught.value)
    assert len(str(caught.value)) < 10_000


async def test_the_terminals_interrupt_does_not_reach_an_agent(agents: AgentWorld) -> None:
    channel = await agents.transport().open()
    assert os.getsid(channel.pid) == channel.pid
    await channel.close()
