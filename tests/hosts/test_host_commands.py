"""Do `hosts add|list|test|trust|remove` say what works and what does not, with the exit codes that scripts rely on?"""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import asyncssh
import pytest
from sshd_world import SshWorld, free_port, python

from eagle3ops import __version__
from eagle3ops.hosts.ssh.known_hosts import fingerprint


def hosts(*words: str) -> subprocess.CompletedProcess[str]:
    """The command, with nobody to ask."""
    command = [sys.executable, "-m", "eagle3ops", "hosts", *words]
    return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=100)


def at_a_terminal(*words: str, answer: str) -> tuple[int, str]:
    """The command at a terminal, where somebody types one answer as soon as something is asked."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-m", "eagle3ops", "hosts", *words])
    said, answered, deadline = "", False, time.monotonic() + 100
    while time.monotonic() < deadline:
        if not select.select([terminal], [], [], 1.0)[0]:
            continue
        try:
            data = os.read(terminal, 65536)
        except OSError:  # a terminal that is closed at the other end
            break
        if not data:
            break
        said += data.decode(errors="replace")
        if not answered and re.search(r"(\[yes/no\]|passphrase of [^:]*:|password of [^:]*:[0-9]*:) $", said):
            answered = True
            os.write(terminal, answer.encode() + b"\n")
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), said


def test_life_of_a_host(ssh_world: SshWorld) -> None:
    server = ssh_world.server()
    key = fingerprint(asyncssh.read_public_key(f"{server.host_key}.pub"))
    added = hosts("add", "gpu", server.url(), "--python", python(), "--root", "~/runs")
    assert (added.returncode, added.stdout) == (0, "")
    assert "hosts test gpu" in added.stderr
    assert json.loads(hosts("list", "--json").stdout)[1] == {
        "name": "gpu", "address": server.url(), "python": python(), "root": "~/runs",
    }  # fmt: skip
    assert "gpu" in hosts("list").stdout

    unknown = hosts("test", "gpu")
    assert unknown.returncode == 5
    assert "✗ host key" in unknown.stdout
    assert "hosts trust gpu" in unknown.stdout
    refused = hosts("trust", "gpu")
    assert refused.returncode == 5
    assert key in refused.stderr
    assert "hosts trust gpu --fingerprint SHA256:..." in refused.stderr, "a script is told what it has to give"
    assert hosts("trust", "gpu", "--fingerprint", "SHA256:" + "A" * 43).returncode == 5
    assert hosts("trust", "gpu", "--fingerprint", "nonsense").returncode == 2
    assert not ssh_world.own_known_hosts.exists()
    assert hosts("trust", "gpu", "--fingerprint", key).returncode == 0
    assert "already" in hosts("trust", "gpu", "--fingerprint", key).stderr

    good = hosts("test", "gpu")
    assert good.returncode == 0, good.stdout
    steps = [line.split(":")[0] for line in good.stdout.splitlines()]
    assert steps == ["✓ address", "✓ host key", "✓ login", "✓ agent", "✓ root", "✓ round trip", "✓ clock"]
    assert f"✓ root: {server.home}/runs" in good.stdout
    answer = json.loads(hosts("test", "gpu", "--json").stdout)
    assert answer["ok"] is True
    assert all(step["ok"] for step in answer["steps"])
    assert hosts("test", server.url()).returncode == 5, "the agent's Python is the entry's, which an address has not"

    server.stop()
    down = hosts("test", "gpu", "--json")
    assert down.returncode == 5
    assert json.loads(down.stdout)["steps"][-1]["ok"] is False
    assert hosts("remove", "gpu").returncode == 0
    assert hosts("remove", "gpu").returncode == 2


def test_a_host_with_another_version_is_said_to_have_one(ssh_world: SshWorld, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import eagle3ops; eagle3ops.__version__ = '0.9.9'\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    server = ssh_world.server(environment={"PYTHONPATH": path, "EAGLE3OPS_ROOT": str(tmp_path / "root")})
    ssh_world.trust(server)
    assert hosts("add", "gpu", server.url(), "--python", python()).returncode == 0
    good = hosts("test", "gpu")
    assert good.returncode == 0, good.stdout
    said = f"eagle3ops 0.9.9 there, {__version__} here"
    assert f"✓ version: {said}" in good.stdout
    assert "eagle3ops hosts install gpu" in good.stdout
    command = [sys.executable, "-m", "eagle3ops", "runs", "list", "--host", "gpu", "--json"]
    listed = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=100)
    assert (listed.returncode, json.loads(listed.stdout)) == (0, [])
    assert f"gpu: {said}" in listed.stderr


def test_a_script_is_told_which_jump_to_trust(ssh_world: SshWorld) -> None:
    target, jump = ssh_world.server(), ssh_world.server()
    far = f"Host far\n  HostName 127.0.0.1\n  Port {target.port}\n  ProxyJump jump\n"
    ssh_world.config(f"{far}Host jump\n  HostName 127.0.0.1\n  Port {jump.port}\n")
    key = fingerprint(asyncssh.read_public_key(f"{target.host_key}.pub"))
    refused = hosts("trust", "ssh://root@far", "--fingerprint", key)
    assert refused.returncode == 5
    assert f"hosts trust ssh://jump:{jump.port} --fingerprint" in refused.stderr


def test_a_new_address_forgets_neither_python_nor_root(ssh_home: Path) -> None:
    assert hosts("add", "gpu", "ssh://root@gpu:40022", "--python", "/opt/python", "--root", "/data").returncode == 0
    moved = hosts("add", "gpu", "ssh://root@gpu:40023", "--root", "/data2", "--json")
    assert json.loads(moved.stdout) == {
        "name": "gpu", "address": "ssh://root@gpu:40023", "python": "/opt/python", "root": "/data2", "new": False,
    }  # fmt: skip
    assert "as before: python /opt/python;" in moved.stderr


def test_wrong_requests(ssh_home: Path) -> None:
    for words in (
        ("test", "nowhere"),
        ("trust", "local"),
        ("add", "local", "gpu"),
        ("add", "a b", "gpu"),
        ("add", "gpu", "ssh://root:hunter2@gpu"),
        ("add", "gpu", "gpu", "--python", "bin/python"),
    ):
        result = hosts(*words)
        assert result.returncode == 2, words
        assert "hunter2" not in result.stderr
        assert "->" in result.stderr
    assert "local" in hosts("list").stdout


def test_this_machine(ssh_home: Path) -> None:
    result = hosts("test", "local")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "✓ agent" in result.stdout


def test_unreachable(ssh_home: Path) -> None:
    hosts("add", "gpu", f"ssh://root@127.0.0.1:{free_port()}")
    result = hosts("test", "gpu")
    assert result.returncode == 5
    assert "nothing listens" in result.stdout
    assert "    ->" in result.stdout


@pytest.mark.parametrize(("answer", "code"), [("yes", 0), ("no", 5), ("", 5), ("y", 5)])
def test_trust_at_a_terminal(ssh_world: SshWorld, answer: str, code: int) -> None:
    server = ssh_world.server()
    found, said = at_a_terminal("trust", server.url(), answer=answer)
    assert fingerprint(asyncssh.read_public_key(f"{server.host_key}.pub")) in said
    assert found == code, said
    assert ssh_world.own_known_hosts.exists() is (code == 0)


@pytest.mark.parametrize("question", ["[yes/no] ", "passphrase of"])
def test_interrupted_at_a_question(ssh_world: SshWorld, question: str) -> None:
    """Ctrl-C ends it there and then, without Enter, and leaves a terminal that shows what is typed."""
    server = ssh_world.server()
    if question == "passphrase of":
        ssh_world.trust(server)
        subprocess.run(["ssh-keygen", "-q", "-p", "-N", "open sesame", "-f", str(ssh_world.key)], check=True)
    words = ["test", server.url()] if question == "passphrase of" else ["trust", server.url()]
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-m", "eagle3ops", "hosts", *words])
    said, interrupted, echo_back, deadline = "", False, False, time.monotonic() + 60
    while time.monotonic() < deadline:
        if select.select([terminal], [], [], 0.5)[0]:
            try:
                data = os.read(terminal, 65536)
            except OSError:
                break
            said += data.decode(errors="replace")
        if interrupted:
            echo_back = echo_back or ("interrupted" in said and bool(termios.tcgetattr(terminal)[3] & termios.ECHO))
        elif re.search(re.escape(question) + r"[^\n]*$", said):
            shown = bool(termios.tcgetattr(terminal)[3] & termios.ECHO)
            assert shown is (question != "passphrase of")
            os.write(terminal, b"half an answer")
            os.write(terminal, b"\x03")
            interrupted = True
    else:
        os.kill(pid, signal.SIGKILL)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130, said
    assert echo_back, said
    assert "Traceback" not in said
    assert not ssh_world.own_known_hosts.exists()


def test_passphrase_at_a_terminal(ssh_world: SshWorld) -> None:
    server = ssh_world.server()
    ssh_world.trust(server)
    subprocess.run(["ssh-keygen", "-q", "-p", "-N", "open sesame", "-f", str(ssh_world.key)], check=True)
    hosts("add", "gpu", server.url(), "--python", python())
    code, said = at_a_terminal("test", "gpu", answer="open sesame")
    assert code == 0, said
    assert "open sesame" not in said
    assert "✓ agent" in said
    assert "ssh-add" in hosts("test", "gpu").stdout
