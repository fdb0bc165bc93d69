"""Does hosts.yaml keep what people wrote in it, and say where it is wrong?"""

import contextlib
import stat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3ops.errors import RequestError, SpecError
from eagle3ops.hosts.address import Address, parse_address
from eagle3ops.hosts.local import LocalTransport
from eagle3ops.hosts.prompts import NoPrompts
from eagle3ops.hosts.reach import transport_for
from eagle3ops.hosts.registry import Host, Registry, check_name
from eagle3ops.hosts.ssh.transport import SshTransport

TEXT = """\
# my hosts
schema: 1
hosts:
  # the big one
  gpu:
    address: ssh://root@gpu.example.org:40022
    python: /opt/venv/bin/python
  # the old one
  old: {address: old-alias}
"""


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("ssh://root@gpu:22", Address("gpu", "root", 22)),
        ("ssh://gpu", Address("gpu")),
        ("SSH://gpu/", Address("gpu")),
        ("gpu-alias", Address("gpu-alias")),
        ("me@gpu", Address("gpu", "me")),
        ("me@gpu:2222", Address("gpu", "me", 2222)),
        ("ssh://me%40corp@gpu", Address("gpu", "me@corp")),
        ("ssh://[2001:db8::1]:2222", Address("2001:db8::1", None, 2222)),
        ("ssh://u@[fe80::1%eth0]", Address("fe80::1%eth0", "u")),
        ("10.0.0.1", Address("10.0.0.1")),
    ],
)
def test_addresses(text: str, wanted: Address) -> None:
    assert parse_address(text) == wanted
    assert parse_address(str(wanted)) == wanted


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ssh://",
        "http://gpu",
        "ssh://2001:db8::1",
        "ssh://[gpu]:22",
        "ssh://gpu:0",
        "ssh://gpu:65536",
        "ssh://gpu:ssh",
        "ssh://gpu:",
        "-oProxyCommand=x",
        "ssh://-x@gpu",
        "gpu;reboot",
        "gpu`id`",
        "$(id)@gpu",
        "ssh://gpu/path",
        "a b",
        "gpu\n",
        "ssh://a\x00b",
    ],
)
def test_what_is_no_address(text: str) -> None:
    if text == "gpu\n":
        assert parse_address(text).host == "gpu"
        return
    with pytest.raises(RequestError):
        parse_address(text)


def test_passwords_are_refused_and_not_repeated() -> None:
    with pytest.raises(RequestError, match="password") as caught:
        parse_address("ssh://root:hunter2@gpu:22")
    assert "hunter2" not in str(caught.value)


@given(st.text(max_size=60))
def test_any_text_is_an_address_or_is_refused(text: str) -> None:
    for given_text in (text, f"ssh://{text}"):
        try:
            address = parse_address(given_text)
        except RequestError:
            continue
        assert parse_address(str(address)) == address
        assert not set(address.host) & set(" \t\n'\"$`;|&<>\\\0-"[:-1])
        assert not address.host.startswith("-")


def write(folder: Path, text: str) -> Registry:
    path = folder / "hosts.yaml"
    path.write_text(text)
    return Registry(path)


def test_reading(tmp_path: Path) -> None:
    found = write(tmp_path, TEXT).hosts()
    assert found["gpu"] == Host(
        name="gpu", address=Address("gpu.example.org", "root", 40022), python="/opt/venv/bin/python"
    )
    assert found["old"].address == Address("old-alias")
    assert Registry(tmp_path / "missing.yaml").hosts() == {}
    assert write(tmp_path, "").hosts() == {}
    assert write(tmp_path, "schema: 1\nhosts:\n").hosts() == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hosts: {}\n", "schema: missing"),
        ("schema: 2\n", ":1:9: schema: expected 1"),
        ("schema: 1\nhosts:\n  gpu: {adress: x}\n", ":3:9: hosts.gpu.adress: unknown key"),
        ("schema: 1\nhosts:\n  gpu: {}\n", ":3:8: hosts.gpu.address: missing"),
        ("schema: 1\nhosts:\n  gpu: {address: 7}\n", ":3:18: hosts.gpu.address: expected text"),
        ("schema: 1\nhosts:\n  gpu: {address: 'a b'}\n", ":3:18: hosts.gpu.address:"),
        ("schema: 1\nhosts:\n  gpu:\n    address: a\n    python: bin/python\n", ":5:13: hosts.gpu.python:"),
        ("schema: 1\nhosts:\n  local: {address: a}\n", ":3:3: hosts.local:"),
        ("schema: 1\nhosts:\n  'a b': {address: a}\n", ":3:3: hosts.a b:"),
        ("schema: 1\nhosts:\n  gpu: {address: 'ssh://u:secret@h'}\n", "password"),
        ("schema: 1\nhost: {}\n", ":2:1: host: unknown key"),
        ("- a\n", ":1:1: expected a map"),
        ("schema: 1\nhosts: [\n", "not YAML"),
    ],
)
def test_mistakes_are_named_with_their_place(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        write(tmp_path, text).hosts()
    assert words in str(caught.value)
    assert "hosts.yaml" in str(caught.value)
    assert "secret@" not in str(caught.value)


def test_changes_keep_comments_and_other_hosts(tmp_path: Path) -> None:
    registry = write(tmp_path, TEXT)
    assert registry.add(Host(name="new", address=Address("h", "u", 22), root="/data"))
    assert registry.path.read_text().startswith(TEXT)
    assert registry.hosts()["new"].root == "/data"
    registry.remove("new")
    assert registry.path.read_text() == TEXT
    assert not registry.add(Host(name="gpu", address=Address("elsewhere")))
    assert registry.hosts()["gpu"] == Host(name="gpu", address=Address("elsewhere"))
    registry.remove("gpu")
    assert "# the old one" in registry.path.read_text()
    assert list(registry.hosts()) == ["old"]


def test_first_host_makes_the_file(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "config" / "hosts.yaml")
    registry.add(Host(name="gpu", address=Address("h")))
    assert list(registry.hosts()) == ["gpu"]
    assert stat.S_IMODE(registry.path.parent.stat().st_mode) == 0o700


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    write(tmp_path / "mine", TEXT)
    (tmp_path / "hosts.yaml").symlink_to(tmp_path / "mine" / "hosts.yaml")
    Registry(tmp_path / "hosts.yaml").add(Host(name="new", address=Address("h")))
    assert (tmp_path / "hosts.yaml").is_symlink()
    assert "new" in Registry(tmp_path / "mine" / "hosts.yaml").hosts()


def test_a_broken_file_is_never_written_over(tmp_path: Path) -> None:
    registry = write(tmp_path, "schema: 1\nhosts: {gpu: {address: [}}\n")
    before = registry.path.read_text()
    with pytest.raises(SpecError):
        registry.add(Host(name="new", address=Address("h")))
    assert registry.path.read_text() == before


def test_unknown_hosts_are_answered_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="known: local, gpu, old") as caught:
        write(tmp_path, TEXT).find("gpv")
    assert "did you mean 'gpu'" in str(caught.value)
    assert "hosts add" in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("name", ["", "local", "1a", "a b", "a/b", "a.b", "ä", "a" * 64, "-a"])
def test_names(name: str) -> None:
    with pytest.raises(RequestError):
        check_name(name)


NAMES = st.from_regex(r"[A-Za-z][A-Za-z0-9_-]{0,20}", fullmatch=True).filter(lambda name: name != "local")
HOSTS = st.builds(
    lambda name, user, host, port, python: Host(
        name=name, address=Address(host, user, port), python=python and f"/{python}"
    ),
    NAMES,
    st.none() | st.from_regex(r"[a-z][a-z0-9]{0,8}", fullmatch=True),
    st.from_regex(r"[A-Za-z0-9][A-Za-z0-9.-]{0,20}", fullmatch=True),
    st.none() | st.integers(1, 65535),
    st.none() | st.text(st.characters(blacklist_categories=("Cc", "Cs", "Zl", "Zp")), min_size=1, max_size=20),
)


STARTS = ["", TEXT, "schema: 1\n", "schema: 1\nhosts: {}\n", "hosts: {a: {address: b}}\nschema: 1\n", "\ufeff" + TEXT]


@settings(max_examples=40)
@given(
    st.lists(HOSTS, max_size=4),
    st.sampled_from(STARTS),
    st.data(),
)
def test_whatever_is_added_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, hosts: list[Host], start: str, data: st.DataObject
) -> None:
    registry = write(tmp_path_factory.mktemp("hosts"), start)
    wanted = registry.hosts()
    for host in hosts:
        registry.add(host)
        wanted[host.name] = host
        assert registry.hosts() == wanted
        if data.draw(st.booleans()):
            name = data.draw(st.sampled_from(sorted(wanted)))
            registry.remove(name)
            del wanted[name]
            assert registry.hosts() == wanted


@given(st.text(max_size=200))
def test_any_file_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.mktemp("any") / "hosts.yaml"
    for start in ("", "schema: 1\nhosts:\n  "):
        path.write_bytes((start + text).encode("utf-8", errors="replace"))
        with contextlib.suppress(SpecError):
            Registry(path).hosts()


def test_transports(ssh_home: Path) -> None:
    assert isinstance(transport_for("local", NoPrompts()), LocalTransport)
    made = transport_for("ssh://me@h:7", NoPrompts())
    assert isinstance(made, SshTransport)
    assert made.host.address == Address("h", "me", 7)
    assert made.name == "ssh://me@h:7"
    with pytest.raises(RequestError, match="unknown host"):
        transport_for("h", NoPrompts())
