"""Is the SSH configuration read as OpenSSH reads it, and never a reason to fall over?"""

import contextlib
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3ops.hosts.address import Address
from eagle3ops.hosts.ssh.config import chain, resolve
from eagle3ops.hosts.transport import ConnectionRefusedForGood

OPTIONS = (
    "Host",
    "Match host",
    "Match all",
    "Match final",
    "Match user",
    "Include",
    "HostName",
    "Port",
    "User",
    "ProxyJump",
    "ProxyCommand",
    "IdentityFile",
    "IdentityAgent",
    "IdentitiesOnly",
    "CertificateFile",
    "UserKnownHostsFile",
    "GlobalKnownHostsFile",
    "HostKeyAlias",
    "HostKeyAlgorithms",
    "ConnectTimeout",
    "Ciphers",
    "Unknown",
)
VALUES = (
    *("a", "*", "gpu", "!gpu", "22", "0", "-1", "none", "yes", "no", "root@b:22", "b,c", "ssh://b", "::1", "~/x", "%h"),
    *(
        "%d/%n",
        "%q",
        "${HOME}/k",
        "${NOPE}",
        "$HOME",
        '"',
        "'a b'",
        "=",
        "=b",
        "%",
        "/dev/null",
        "ä",
        "99999999999",
        "",
    ),
)


def write(home: Path, text: str) -> None:
    (home / ".ssh").mkdir(exist_ok=True)
    (home / ".ssh" / "config").write_text(text)


@pytest.mark.parametrize("port", ["0", "-1", "65536", "99999999999"])
def test_a_port_that_is_none_is_refused(port: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path, f"Host gpu\n  Port {port}\n")
    with pytest.raises(ConnectionRefusedForGood, match=rf"config.*Port {port}, which is no port \(1 to 65535\)"):
        chain(Address("gpu"))
    assert chain(Address("gpu", port=2222))[0].port == 2222


@given(st.lists(st.tuples(st.sampled_from(OPTIONS), st.sampled_from(VALUES) | st.text(max_size=12)), max_size=8))
def test_any_configuration(tmp_path_factory: pytest.TempPathFactory, lines: list[tuple[str, str]]) -> None:
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        (home / ".ssh").mkdir()
        text = "\n".join(f"{option} {value}" for option, value in lines)
        (home / ".ssh" / "config").write_bytes(text.encode("utf-8", errors="replace"))
        with contextlib.suppress(ConnectionRefusedForGood):
            hops = chain(Address("gpu"))
            assert hops
            assert all(1 <= hop.port <= 65535 and hop.host and hop.user and hop.names for hop in hops)
    shutil.rmtree(home)


CONFIG = """\
Host gpu g?u
  HostName gpu1.example.org
  Port 40022
  User someone
  IdentityFile ~/.ssh/one
  IdentityFile %d/.ssh/two-%n
Host *
  User nobody
  IdentityFile ~/.ssh/three
  UserKnownHostsFile ~/.ssh/mine ~/.ssh/%h-hosts
Match host gpu1.example.org
  HostKeyAlias Lab-GPU
"""


def test_same_answers_as_ssh_itself(ssh_home: Path) -> None:
    """`ssh -G` prints what OpenSSH makes of a configuration."""
    write(ssh_home, CONFIG)
    config = ssh_home / ".ssh" / "config"
    out = subprocess.run(["ssh", "-G", "-F", str(config), "gpu"], capture_output=True, text=True, check=True).stdout
    said: dict[str, list[str]] = {}
    for line in out.splitlines():
        option, _, value = line.partition(" ")
        said.setdefault(option, []).append(value)
    found = resolve(Address("gpu"))
    assert found.host == said["hostname"][0].lower()
    assert str(found.port) == said["port"][0]
    assert found.user == said["user"][0]
    assert found.names == ("lab-gpu",)
    # `ssh -G` shows the home folder of the password database, whatever HOME is; only the names are compared.
    names = [Path(path).name.replace("%n", "gpu") for path in said["identityfile"]]
    assert [path.name for path in found.keys] == names
    assert [path.name for path in found.known_hosts[:2]] == ["mine", "gpu1.example.org-hosts"]


def test_address_wins_over_configuration(ssh_home: Path) -> None:
    write(ssh_home, CONFIG)
    found = resolve(Address("gpu", "root", 7))
    assert (found.user, found.port) == ("root", 7)


def test_names_in_known_hosts(ssh_home: Path) -> None:
    assert resolve(Address("gpu")).names == ("gpu",)
    assert resolve(Address("gpu", None, 2222)).names == ("[gpu]:2222", "gpu")
    assert resolve(Address("::1", None, 2222)).names == ("[::1]:2222", "::1")


@pytest.mark.parametrize(
    ("line", "unchecked"),
    [
        ("", False),
        ("UserKnownHostsFile none", True),
        ("UserKnownHostsFile /dev/null", True),
        ("UserKnownHostsFile x", False),
    ],
)
def test_switched_off_checks_are_noticed(ssh_home: Path, line: str, unchecked: bool) -> None:
    write(ssh_home, f"Host *\n  {line}\n")
    assert resolve(Address("gpu")).unchecked is unchecked


def test_agents(ssh_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", "/from/environment")
    monkeypatch.setenv("OTHER", "/other")
    for value, wanted in (
        ("", "/from/environment"),
        ("IdentityAgent none", None),
        ("IdentityAgent SSH_AUTH_SOCK", "/from/environment"),
        ("IdentityAgent $OTHER", "/other"),
        ("IdentityAgent ~/agent", str(ssh_home / "agent")),
    ):
        write(ssh_home, f"Host *\n  {value}\n")
        assert resolve(Address("gpu")).agent == wanted


def test_jumps(ssh_home: Path) -> None:
    """The first jump's own jumps count; those of the others do not, as with OpenSSH."""
    write(ssh_home, "Host far\n  ProxyJump one,two\nHost one\n  ProxyJump zero\nHost two\n  ProxyJump never\n")
    assert [hop.asked for hop in chain(Address("far"))] == ["zero", "one", "two", "far"]
    write(ssh_home, "Host far\n  ProxyJump none\n")
    assert [hop.asked for hop in chain(Address("far"))] == ["far"]
    write(ssh_home, "Host far\n  ProxyJump ssh://me@[::1]:2222\n")
    assert str(chain(Address("far"))[0]) == "me@[::1]:2222"


def test_the_home_of_an_unknown_user_is_no_reason_to_fall_over(ssh_home: Path) -> None:
    old = "~nobody-here/.ssh/"
    lines = [f"IdentityFile {old}id", f"CertificateFile {old}c", f"UserKnownHostsFile {old}k", f"IdentityAgent {old}a"]
    config = ssh_home / ".ssh" / "config"
    config.parent.mkdir(exist_ok=True)
    config.write_text("Host old\n" + "".join(f"  {line}\n" for line in lines))
    assert resolve(Address("old")).keys == (Path("~nobody-here/.ssh/id"),)
