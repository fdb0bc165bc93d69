"""Do the files that a pipeline names get to a host that does not have them, and are others left alone?"""

from pathlib import Path

import pytest
from follower import transport
from sshd_world import SshWorld, python

from eagle3ops.errors import RequestError
from eagle3ops.hosts.link import Link
from eagle3ops.hosts.uploads import with_files_there
from eagle3ops.runs.job import load_registry
from eagle3ops.spec.load import parse_pipeline
from eagle3ops.spec.models import Pipeline

PROMPTS = '{"messages": [{"role": "user", "content": "what is a drafter?"}]}\n'


def pipeline(prompts: Path, drafter: Path) -> Pipeline:
    text = f"""
schema: 1
name: files
target: {{model: tiny-random}}
stages:
  generate: {{prompts: "{prompts}"}}
  train: {{init_from: "{drafter}"}}
"""
    return parse_pipeline(text, "files.yaml", load_registry().specs())


def below(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def contents(path: Path) -> dict[str, bytes]:
    files = [path] if path.is_file() else path.iterdir()
    return {file.name: file.read_bytes() for file in files}


async def test_files_are_sent_where_the_host_has_none_and_refused_where_it_has_others(
    ssh_world: SshWorld, tmp_path: Path
) -> None:
    mine = tmp_path / "my files"
    drafter = mine / "drafter"
    drafter.mkdir(parents=True)
    prompts = mine / "prompts é.jsonl"
    prompts.write_text(PROMPTS)
    (drafter / "model.safetensors").write_bytes(b"weights")
    (drafter / "config.json").write_text("{}")
    there = tmp_path / "there"
    # On the host an empty file system hides the files.
    hidden = ssh_world.server(prepare=f"mount -t tmpfs tmpfs '{mine}'", environment={"EAGLE3OPS_ROOT": str(there)})
    other = ssh_world.server(
        prepare=f"mount -t tmpfs tmpfs '{mine}' && echo other > '{prompts}'",
        environment={"EAGLE3OPS_ROOT": str(there)},
    )
    ssh_world.trust(hidden, other)
    wanted = pipeline(prompts, drafter)
    told: list[str] = []
    async with Link(transport(hidden.url(), python(), 15.0, 4)) as link:
        ready = await with_files_there(link, wanted, told.append)
        again = await with_files_there(link, wanted, told.append)
    assert again == ready
    assert len(told) == 6
    sent = Path(ready.stages["generate"].model_dump()["prompts"])
    assert contents(sent) == {prompts.name: PROMPTS.encode()}
    assert sent.parent.parent == there / "uploads"
    folder = Path(ready.stages["train"].model_dump()["init_from"])
    assert contents(folder) == {"model.safetensors": b"weights", "config.json": b"{}"}
    async with Link(transport(other.url(), python(), 15.0, 4)) as link:
        with pytest.raises(RequestError, match="different files of that name"):
            await with_files_there(link, wanted, told.append)


async def test_files_that_the_host_has_are_left_where_they_are(ssh_world: SshWorld, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(PROMPTS)
    server = ssh_world.server(environment={"EAGLE3OPS_ROOT": str(tmp_path / "there")})
    ssh_world.trust(server)
    told: list[str] = []
    wanted = pipeline(prompts, tmp_path / "nowhere")
    async with Link(transport(server.url(), python(), 15.0, 4)) as link:
        assert await with_files_there(link, wanted, told.append) == wanted
    assert told == []


async def test_a_folder_is_sent_whole(ssh_world: SshWorld, tmp_path: Path) -> None:
    """With the folders in it; not with those that hide, which hold a version control system's own copies."""
    mine = tmp_path / "mine"
    drafter = mine / "drafter"
    for name in ("model.safetensors", "config.json", "tokenizer/deep/vocab.json", ".git/objects/blob"):
        (drafter / name).parent.mkdir(parents=True, exist_ok=True)
        (drafter / name).write_text(name)
    server = ssh_world.server(
        prepare=f"mount -t tmpfs tmpfs '{mine}'", environment={"EAGLE3OPS_ROOT": str(tmp_path / "there")}
    )
    ssh_world.trust(server)
    async with Link(transport(server.url(), python(), 15.0, 4)) as link:
        ready = await with_files_there(link, pipeline(tmp_path / "nowhere", drafter), lambda _: None)
        folder = Path(ready.stages["train"].model_dump()["init_from"])
        assert below(folder) == {"model.safetensors", "config.json", "tokenizer/deep/vocab.json"}
        (drafter / "weights.bin").symlink_to(tmp_path / "cache/blob")
        (drafter / "config.json").write_text("changed")
        (drafter / "model.safetensors").write_text("changed")
        with pytest.raises(RequestError, match=r"weights\.bin: a link that leads nowhere, so .*drafter cannot be sent"):
            await with_files_there(link, pipeline(tmp_path / "nowhere", drafter), lambda _: None)
