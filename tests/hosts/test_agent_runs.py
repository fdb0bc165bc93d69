"""Are runs placed, listed, cancelled and taken up again through an agent as on the machine itself?"""

import asyncio
import json
from dataclasses import asdict
from typing import Any

import pytest
from agent_world import AgentWorld

from eagle3ops.errors import Refused, RequestError
from eagle3ops.hosts.client import AgentClient
from eagle3ops.runs.directory import find_run
from eagle3ops.runs.ledger import Ledger, show

HANG = "stages: {use: {mode: hang}}\n"


def spec(agents: AgentWorld, more: str = "") -> str:
    return (agents.folder / "toy.yaml").read_text() + more


async def to_the_end(client: AgentClient, run: str, after: int = 0) -> dict[str, Any]:
    stream = client.stream("runs.events", run=run, after=after)
    async for _ in stream:
        pass
    assert stream.result is not None
    return stream.result


async def until_stage(client: AgentClient, run: str, stage: str) -> None:
    async with client.stream("runs.events", run=run) as stream:
        async for items in stream:
            if any(event["stage"] == stage for event in items):
                return


async def test_a_run_is_placed_once_per_key_and_found_everywhere(agents: AgentWorld) -> None:
    text = spec(agents)
    async with await AgentClient.connect(agents.transport()) as client:
        order = {"spec_text": text, "key": "ü key", "source": "toy.yaml"}
        placed = await asyncio.gather(*(client.call("runs.place", **order) for _ in range(3)))
        assert len({answer["run"] for answer in placed}) == 1
        assert sum(answer["fresh"] for answer in placed) == 1
        assert placed[0]["root"] == str(agents.root)
        run = placed[0]["run"]
        end = await to_the_end(client, run)
        assert (end["status"], end["state"]["exit_code"]) == ("done", 0)
        listed = await client.call("runs.list")
        assert listed["runs"] == [json.loads(json.dumps(asdict(row))) for row in Ledger(agents.root).runs()]
        unchanged = await client.call("runs.list", known=listed["tag"])
        assert unchanged == {name: listed[name] for name in ("root", "total", "tag")}
        assert (await client.call("runs.list", known="another"))["runs"] == listed["runs"]
        assert (await client.call("runs.list", limit=0, known=listed["tag"]))["runs"] == []
        assert (await client.call("runs.show", run=run)) == json.loads(json.dumps(show(agents.root, run)))
        state = await client.call("runs.state", run=run[:20])
        assert (state["run"], state["status"], state["alive"]) == (run, "done", False)
        plan = await client.call("runs.plan", spec_text=text)
        assert [stage["done"] for stage in plan["stages"]] == [True, True, True]
        assert plan["refused"] is None
        assert (await client.call("runs.diff", run=run, other=run))["metrics"] == {}
        assert (await client.call("runs.cancel", run=run)) == {
            "run": run, "asked": False, "ended": [], "status": "done",
        }  # fmt: skip
        assert [item["kind"] for item in (await client.call("runs.gc", keep=0))["items"]][:1] == ["run"]
        assert (await client.call("runs.gc", keep=0, delete=True))["deleted"]
        assert (await client.call("runs.list", known=listed["tag"]))["runs"] == []


async def test_a_run_is_cancelled_and_taken_up_again_once_per_token(agents: AgentWorld) -> None:
    async with await AgentClient.connect(agents.transport()) as client:
        placed = await client.call("runs.place", spec_text=spec(agents, HANG), key="k")
        run = placed["run"]
        await until_stage(client, run, "use")
        with pytest.raises(Refused, match="is running"):
            await client.call("runs.resume", run=run, token="too early")
        assert (await client.call("runs.cancel", run=run))["asked"]
        assert (await to_the_end(client, run))["status"] == "cancelled"
        again = await client.call("runs.resume", run=run, token="t")
        assert again["fresh"]
        await until_stage(client, run, "use")
        repeated = await client.call("runs.resume", run=run, token="t")
        assert (repeated["fresh"], repeated["after"]) == (False, again["after"])
        assert (await client.call("runs.cancel", run=run))["asked"]
        assert (await to_the_end(client, run, again["after"]))["status"] == "cancelled"
        # Only zombies would be left below the agent, and it reaps them.
        assert await no_children(client)


async def no_children(client: AgentClient) -> bool:
    import psutil

    agent = psutil.Process(client.hello.pid)
    for _ in range(500):
        if not agent.children():
            return True
        await asyncio.sleep(0.02)
    return False


async def test_what_is_wrong_with_an_order_is_said_as_on_the_machine(agents: AgentWorld) -> None:
    async with await AgentClient.connect(agents.transport()) as client:
        with pytest.raises(RequestError, match=r"mine\.yaml:4"):
            await client.call(
                "runs.place", spec_text=spec(agents, "stages: {make: {prats: 3}}\n"), key="k", source="mine.yaml"
            )
        with pytest.raises(RequestError, match="job"):
            await client.call("runs.place", spec_text=spec(agents), key="k", job="fly")
        with pytest.raises(RequestError, match="needs a key"):
            await client.call("runs.place", spec_text=spec(agents), key="")
        huge = spec(agents, "stages: {make: {forecast_bytes: 1000000000000000}}\n")
        with pytest.raises(Refused, match="disk: ") as caught:
            await client.call("runs.place", spec_text=huge, key="k")
        assert caught.value.remedy
        plan = await client.call("runs.plan", spec_text=huge)
        assert plan["refused"] == caught.value.what
        assert (await client.call("runs.list"))["runs"] == []


async def test_another_root_can_be_named_with_every_request(agents: AgentWorld) -> None:
    other = agents.folder / "other"
    async with await AgentClient.connect(agents.transport()) as client:
        placed = await client.call("runs.place", spec_text=spec(agents), key="k", root=str(other))
        stream = client.stream("runs.events", run=placed["run"], root=str(other))
        assert [item async for items in stream for item in items]
        assert find_run(other, placed["run"]).status() == "done"
        assert (await client.call("runs.list"))["total"] == 0
        assert (await client.call("runs.list", root=str(other)))["total"] == 1


async def test_the_host_tells_of_itself(agents: AgentWorld) -> None:
    async with await AgentClient.connect(agents.transport()) as client:
        inventory = await client.call("telemetry.inventory")
        assert isinstance(inventory["gpus"], list)
        assert inventory["gpus"] or inventory["absent"]
        findings = (await client.call("doctor"))["findings"]
        assert {finding["status"] for finding in findings} <= {"ok", "warn", "bad", "absent"}
        assert any(finding["name"] for finding in findings)
        async with client.stream("telemetry.watch", hz=10.0) as samples:
            first, second = await anext(samples), await anext(samples)
        assert isinstance(first[0], dict)
        assert second[0] != first[0]
        with pytest.raises(RequestError, match="hz is between"):
            await anext(client.stream("telemetry.watch", hz=0.0))
