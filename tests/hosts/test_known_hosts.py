"""Do known_hosts files mean here what they mean to OpenSSH, and does our own file survive whoever writes it?"""

import base64
import hashlib
import hmac
import stat
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import asyncssh
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sshd_world import keygen

from eagle3ops.errors import RequestError
from eagle3ops.hosts.ssh.known_hosts import (
    KnownHosts,
    append,
    fingerprint,
    lookup_name,
    match_patterns,
    read_all,
    same_fingerprint,
)

KEYS = [asyncssh.generate_private_key("ssh-ed25519").convert_to_public() for _ in range(3)]


def public(key: asyncssh.SSHKey) -> str:
    return " ".join(key.export_public_key("openssh").decode().split()[:2])


def known(text: str) -> KnownHosts:
    made = KnownHosts()
    made.parse(text.encode(), Path("/k"))
    return made


@pytest.mark.parametrize(
    ("patterns", "name", "wanted"),
    [
        ("gpu", "gpu", True),
        ("gpu", "GPU", True),
        ("gpu", "gpu2", False),
        ("a,gpu,b", "gpu", True),
        ("gp?", "gpu", True),
        ("*.example.org", "gpu.example.org", True),
        ("*.example.org,!bad.example.org", "bad.example.org", False),
        ("!bad,*", "bad", False),
        ("!bad", "good", False),
        ("[gpu]:2222", "[gpu]:2222", True),
        ("[gpu]:2222", "gpu", False),
        ("[*]:2222", "[gpu]:2222", True),
        ("[gpu]", "g", False),
        ("|1|not base64|x", "gpu", False),
        ("|2|AAAA|AAAA", "gpu", False),
        ("", "gpu", False),
    ],
)
def test_patterns(patterns: str, name: str, wanted: bool) -> None:
    assert match_patterns(patterns, name) is wanted


def test_names() -> None:
    assert lookup_name("gpu", 22) == "gpu"
    assert lookup_name("2001:db8::1", 2222) == "[2001:db8::1]:2222"


@pytest.mark.parametrize("name", ["gpu", "[gpu]:2222", "[2001:db8::1]:2222"])
def test_hashed_by_ssh_keygen(tmp_path: Path, name: str) -> None:
    file = tmp_path / "known_hosts"
    file.write_text(f"{name} {public(KEYS[0])}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(file)], check=True, capture_output=True)
    assert file.read_text().startswith("|1|")
    assert read_all([file]).judge([name], KEYS[0]).state == "trusted"
    assert read_all([file]).judge([name], KEYS[1]).state == "changed"
    assert read_all([file]).judge(["other"], KEYS[0]).state == "unknown"


def test_changed_names_file_and_line() -> None:
    found = known(f"# a comment\n\nother {public(KEYS[2])}\ngpu {public(KEYS[0])}\n").judge(["gpu"], KEYS[1])
    assert found.state == "changed"
    assert [line.place for line in found.lines] == ["/k, line 4"]


def test_revoked_wins_over_trusted() -> None:
    text = f"gpu {public(KEYS[0])}\n@revoked * {public(KEYS[0])}\n"
    assert known(text).judge(["gpu"], KEYS[0]).state == "revoked"


def test_name_without_port_speaks_for_a_key_only() -> None:
    names = ["[gpu]:2222", "gpu"]
    assert known(f"gpu {public(KEYS[0])}").judge(names, KEYS[0]).state == "trusted"
    assert known(f"gpu {public(KEYS[0])}").judge(names, KEYS[1]).state == "unknown"
    assert known(f"[gpu]:2222 {public(KEYS[0])}").judge(names, KEYS[1]).state == "changed"


def test_authority_trusts_no_plain_key() -> None:
    lines = known(f"@cert-authority *.example.org {public(KEYS[0])}\n")
    assert lines.judge(["gpu.example.org"], KEYS[0]).state == "unknown"
    assert [line.key for line in lines.about(["gpu.example.org"], "cert-authority")] == [KEYS[0]]


def test_bad_lines_leave_a_note_and_nothing_else() -> None:
    text = f"gpu\ngpu ssh-ed25519 AAAA\n@strange gpu {public(KEYS[0])}\ngpu {public(KEYS[1])}\n"
    found = known(text)
    assert [line.key for line in found.lines] == [KEYS[1]]
    assert len(found.notes) == 3
    assert "/k, line 2" in found.notes[1]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    found = read_all([tmp_path / "missing", tmp_path / "folder", Path("/dev/null")])
    assert found.lines == []
    assert found.notes == [f"{tmp_path / 'folder'} is not a file"]


@given(st.binary(max_size=400))
def test_any_bytes(data: bytes) -> None:
    made = KnownHosts()
    made.parse(data, Path("/k"))
    assert made.judge(["gpu"], KEYS[0]).state in ("unknown", "changed")


@given(st.text(max_size=60), st.text(max_size=40))
def test_any_pattern(patterns: str, name: str) -> None:
    assert match_patterns(patterns, name) in (True, False)


@given(st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="*?!,|"), min_size=1, max_size=40))
def test_plain_names_match_themselves_hashed_or_not(name: str) -> None:
    salt = b"0123456789abcdef0123"
    digest = hmac.new(salt, name.lower().encode(), hashlib.sha1).digest()
    hashed = f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"
    assert match_patterns(name, name)
    assert match_patterns(hashed, name)


def test_append_keeps_what_is_there(tmp_path: Path) -> None:
    file = tmp_path / "config" / "known_hosts"
    append(file, "gpu", KEYS[0], "gpu")
    file.write_bytes(file.read_bytes().rstrip(b"\n"))
    append(file, "[gpu]:2222", KEYS[1], "a name\nwith a line break")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    found = read_all([file])
    assert (found.judge(["gpu"], KEYS[0]).state, found.judge(["[gpu]:2222"], KEYS[1]).state) == ("trusted", "trusted")
    assert len(file.read_text().splitlines()) == 2
    assert found.notes == []
    listed = subprocess.run(["ssh-keygen", "-F", "[gpu]:2222", "-f", str(file)], capture_output=True, text=True)
    assert public(KEYS[1]) in listed.stdout


def test_many_at_once(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: append(file, f"gpu{number}", KEYS[number % 3], "x"), range(24)))
    assert len(read_all([file]).lines) == 24
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith("tmp")] == []


def test_fingerprints_are_those_of_ssh_keygen(tmp_path: Path) -> None:
    path = keygen(tmp_path / "key")
    said = subprocess.run(["ssh-keygen", "-lf", f"{path}.pub"], capture_output=True, text=True, check=True).stdout
    key = asyncssh.read_public_key(f"{path}.pub")
    assert fingerprint(key) == said.split()[1]
    assert same_fingerprint(said.split()[1], key)
    assert same_fingerprint(f" {said.split()[1]}= ", key)
    assert not same_fingerprint(fingerprint(KEYS[0]), key)
    for bad in ("", "MD5:aa:bb", said.split()[1][:-1], said.split()[1].removeprefix("SHA256:")):
        with pytest.raises(RequestError, match="SHA256"):
            same_fingerprint(bad, key)
