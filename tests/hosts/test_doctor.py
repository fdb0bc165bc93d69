"""Does the doctor find what is there, name what is wrong, and come back whatever hangs?"""

import json
import os
import subprocess
import sys
import threading
import time
from argparse import Namespace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sshd_world import SshWorld, python

from eagle3ops.cli import main
from eagle3ops.commands.doctor import ASCII_MARKS, doctor, read_findings, told
from eagle3ops.errors import ExitCode, HostUnreachable
from eagle3ops.hosts.address import parse_address
from eagle3ops.hosts.doctor import checks_disk, checks_gpu, checks_python, checks_system, checks_tools
from eagle3ops.hosts.doctor.capabilities import summarise
from eagle3ops.hosts.doctor.examination import Check, checks, examine, examine_all
from eagle3ops.hosts.doctor.finding import Finding, absent, bad, by_name, from_json, ok, warn
from eagle3ops.hosts.doctor.probing import NoAnswer, find_program, run
from eagle3ops.hosts.registry import Host, Registry

EXPECTED = {
    "system.os",
    "system.memory",
    "limits.nofile",
    "limits.cgroup",
    "limits.logout",
    "numa.nodes",
    "disk.root",
    "disk.cache",
    "disk.tmp",
    "gpu.driver",
    "gpu.leases",
    "cuda.nvcc",
    "cuda.home",
    "python.version",
    "python.eagle3ops",
    "python.torch",
    "python.transformers",
    "engine.sglang",
    "engine.vllm",
    "engine.flashinfer",
    "tool.gcc",
    "tool.py-spy",
    "tool.ptrace",
    "network.proxy",
    "hub.token",
    "can.reference_cpu",
    "can.sglang",
}


def whole(findings: list[Finding]) -> dict[str, Finding]:
    """The findings by name, after making sure that each stands once and only what is fine has no remedy."""
    names = [finding.name for finding in findings]
    assert len(set(names)) == len(names)
    for finding in findings:
        assert finding.value
        assert (finding.remedy is None) == (finding.status == "ok"), finding
    return by_name(findings)


def script(folder: Path, name: str, text: str) -> Path:
    """A program."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_this_machine(tmp_path: Path) -> None:
    root, cache = tmp_path / "root", tmp_path / "cache"
    found = whole(examine(root, cache))
    assert found.keys() >= EXPECTED
    assert found["python.torch"].status in ("ok", "absent", "bad")
    assert str(root) in found["disk.root"].value
    assert sys.executable in found["python.version"].value
    assert not root.exists()
    assert not cache.exists()
    rows = json.loads(json.dumps([finding.as_json() for finding in found.values()]))
    assert read_findings({"findings": rows}) == list(found.values())


def test_one_check_takes_no_other_with_it(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def hang() -> list[Finding]:
        # As a file on a mount whose server is gone: the kernel does not come back.
        return [ok("disk.hung", pipe.read_text())]

    def fail() -> list[Finding]:
        raise PermissionError("not for you")

    before = threading.active_count()
    found = whole(
        examine_all(
            [Check("disk.hung", hang, 0.3), Check("tool.broken", fail), Check("x.good", lambda: [ok("x.good", "1")])]
        )
    )
    assert found["x.good"].status == "ok"
    assert found["disk.hung"].value == "could not be checked: no answer within 0.3 s"
    assert found["tool.broken"].value == "could not be checked: not for you"
    assert found["disk.hung"].status == found["tool.broken"].status == "warn"
    pipe_writer = os.open(pipe, os.O_WRONLY)
    os.close(pipe_writer)
    deadline = time.monotonic() + 20
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before


def test_nothing_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    wanted = [check for check in checks(tmp_path, tmp_path) if check.name.startswith(("tool.", "cuda.", "numa."))]
    found = whole(examine_all(wanted))
    for name in ("tool.gcc", "tool.git", "tool.py-spy", "tool.cmake", "cuda.nvcc"):
        assert found[name].status == "absent", found[name]
    assert found["can.kernels"].status == "absent"


def test_a_systemd_that_ends_runs_at_the_logout_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks_system, "SYSTEMD", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    monkeypatch.setenv("LOGNAME", "ann")
    for answer, status in (("yes", "bad"), ("no", "ok")):
        script(tmp_path / "bin", "loginctl", f'[ "$1" = show-session ] && echo KillUserProcesses={answer}')
        (found,) = whole(checks_system.logout()).values()
        assert (found.name, found.status) == ("limits.logout", status)
    script(tmp_path / "bin", "loginctl", "sleep 987")
    monkeypatch.setattr(checks_system, "run", lambda argv: run(argv, limit=0.5))
    (found,) = whole(checks_system.logout()).values()
    assert (found.status, "had not ended" in found.value) == ("warn", True)


def test_hung_nvcc_is_named_and_its_children_are_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = tmp_path / "pid"
    script(tmp_path / "bin", "nvcc", f"sleep 987 & echo $! > {mark}; wait")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setattr(checks_gpu, "run", lambda argv: run(argv, limit=1.0))
    found = by_name(checks_gpu.cuda())
    assert found["cuda.nvcc"].status == "bad"
    assert "had not ended after 1 s" in found["cuda.nvcc"].value
    sleeper = Path("/proc") / mark.read_text().strip()
    deadline = time.monotonic() + 20
    while sleeper.exists() and "State:\tZ" not in (sleeper / "status").read_text() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not sleeper.exists() or "State:\tZ" in (sleeper / "status").read_text()


@pytest.mark.parametrize(
    ("text", "value"),
    [("exit 3", "exit 3, no output"), ("echo hello", "exit 0, hello"), ("head -c 300000 /dev/zero", "exit 0")],
)
def test_program_that_says_nonsense(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, value: str) -> None:
    script(tmp_path / "bin", "clang", text)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    [found] = checks_tools.program("clang")
    assert found.status == "warn"
    assert value in found.value


def test_toolkits_that_do_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    says = "echo 'Cuda compilation tools, release 13.0, V13.0.88'"
    for name in ("cuda-a", "cuda-b"):
        (tmp_path / name / "nvvm").mkdir(parents=True)
        script(tmp_path / name / "bin", "nvcc", says)
    monkeypatch.setenv("PATH", str(tmp_path / "cuda-a" / "bin"), prepend=os.pathsep)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda-a"))
    assert by_name(checks_gpu.cuda())["cuda.home"].status == "ok"
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda-b"))
    assert by_name(checks_gpu.cuda())["cuda.home"].status == "warn"
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda-c"))
    assert by_name(checks_gpu.cuda())["cuda.home"].status == "bad"
    monkeypatch.delenv("CUDA_HOME")
    monkeypatch.delenv("CUDA_PATH", raising=False)
    assert by_name(checks_gpu.cuda())["cuda.home"].status == "ok"
    script(tmp_path / "elsewhere", "nvcc", says)
    monkeypatch.setenv("PATH", str(tmp_path / "elsewhere"), prepend=os.pathsep)
    assert "wrapper" in by_name(checks_gpu.cuda())["cuda.home"].value


def test_secrets_are_not_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_canary")
    monkeypatch.setenv("HTTPS_PROXY", "http://ann:canary@proxy.example:3128")
    monkeypatch.delenv("https_proxy", raising=False)
    found = by_name(checks_system.network())
    assert found["hub.token"] == ok("hub.token", "HF_TOKEN is set")
    assert "https_proxy=http://proxy.example:3128" in found["network.proxy"].value
    assert "canary" not in repr(found)


FULL = """
import json, os, sys
from pathlib import Path
from eagle3ops.hosts.doctor.checks_disk import shared_memory, space
rows = []
for name in ("small", "full", "inodes", "readonly"):
    rows += space(name, Path(sys.argv[1], name, "not", "yet"), small=20 * 2**30, locks=True)
rows += shared_memory(Path(sys.argv[1], "small"))
print(json.dumps([row.as_json() for row in rows]))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_small_full_and_read_only_disks(tmp_path: Path) -> None:
    for name in ("small", "full", "inodes", "readonly"):
        (tmp_path / name).mkdir()
    mounts = (
        f"cd {tmp_path} && mount -t tmpfs -o size=2m none small && mount -t tmpfs -o size=64k none full && "
        "head -c 99999 /dev/zero >full/x 2>/dev/null; mount -t tmpfs -o size=1m,nr_inodes=40 none inodes && "
        "touch inodes/$(seq -s ' inodes/' 1 38) && mount -t tmpfs -o ro none readonly && "
        f'exec {sys.executable} -c "$0" {tmp_path}'
    )
    ran = subprocess.run(["unshare", "-m", "sh", "-c", mounts, FULL], capture_output=True, text=True, check=False)
    if "Operation not permitted" in ran.stderr or "ermission denied" in ran.stderr:
        pytest.skip("mount namespaces are not permitted here")
    assert ran.returncode == 0, ran.stderr
    found = by_name(from_json(row) for row in json.loads(ran.stdout))
    assert found["small"].status == "bad"
    assert "tmpfs" in found["small"].value
    assert found["full"].status == "bad"
    assert "cannot be written: No space left on device" in found["full"].value
    assert found["inodes"].status == "warn"
    assert "1 inodes left" in found["inodes"].value
    assert found["readonly"].status == "bad"
    assert "Read-only file system" in found["readonly"].value
    assert found["disk.shm"].status == "warn"


def test_leftovers_in_shared_memory(tmp_path: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    for name in (f"torch_{gone.pid}_123_0", f"__KMP_REGISTERED_LIB_{gone.pid}_0", f"cuda.shm.0.{gone.pid:x}.1"):
        (tmp_path / name).write_bytes(b"x" * 8192)
    for name in (f"torch_{os.getpid()}_5_0", f"cuda.shm.0.{os.getpid():x}.1", "psm_ab12", "torch_", "note"):
        (tmp_path / name).write_bytes(b"x")
    assert checks_disk.leftovers(tmp_path) == (3, 3 * 8192)
    assert checks_disk.leftovers(tmp_path / "missing") == (0, 0)


def test_torch_that_hangs_or_crashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "torch"
    package.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (package / "__init__.py").write_text("import os; print('banner'); os.abort()")
    [found] = checks_python.torch(version=lambda name: "9.9")
    assert found.status == "bad"
    assert "exit code -6" in found.value
    (package / "__init__.py").write_text("raise ImportError('libcudart.so.13: cannot open shared object file')")
    [found] = checks_python.torch(version=lambda name: "9.9")
    assert "libcudart.so.13" in found.value
    (package / "__init__.py").write_text("import time; time.sleep(987)")
    monkeypatch.setattr(checks_python, "TORCH_LIMIT_S", 0.5)
    with pytest.raises(NoAnswer, match="had not ended"):
        checks_python.torch(version=lambda name: "9.9")


def test_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EAGLE3OPS_CACHE", str(tmp_path / "cache"))
    code = main(["doctor", "--root", str(tmp_path / "root"), "--json"])
    rows = json.loads(capsys.readouterr().out)
    found = whole([from_json(row) for row in rows])
    assert code == (1 if any(finding.status == "bad" for finding in found.values()) else 0)


def test_over_ssh(ssh_world: SshWorld, capsys: pytest.CaptureFixture[str]) -> None:
    server = ssh_world.server()
    ssh_world.trust(server)
    Registry().add(Host(name="gpu", address=parse_address(server.url()), python=python()))
    code = doctor(Namespace(doctor_host="gpu"), None, json=True)
    found = whole([from_json(row) for row in json.loads(capsys.readouterr().out)])
    assert found.keys() >= EXPECTED
    assert str(server.home) in found["disk.root"].value
    assert code in (ExitCode.DONE, ExitCode.FAILED)
    server.stop()
    with pytest.raises(HostUnreachable) as caught:
        doctor(Namespace(doctor_host="gpu"), None, json=True)
    assert caught.value.exit_code == 5


SOME = [
    ok("system.os", "Linux"),
    warn("gpu.0", "H200 " * 40, "do this " * 40),
    bad("disk.root", "full\x1b]0;title\x07", "free \x9bspace"),
    absent("tool.gdb", "none", "x" * 300),
    ok("unheard.of", "from a newer agent"),
]


def test_told_fits_and_does_not_steer_the_terminal() -> None:
    text = told(SOME, width=80)
    assert all(len(line) <= 80 for line in text.splitlines())
    assert all(character.isprintable() or character == "\n" for character in text)
    for mark in "✓!✗–":
        assert mark in text
    assert "unheard" in text
    assert "2 fine  ! 1 to mind  ✗ 1 bad" in text
    told(SOME, width=80, marks=ASCII_MARKS).encode("ascii")
    coloured = told(SOME, width=80, coloured=True)
    assert "\x1b[1;31m✗\x1b[0m root" in coloured


def test_what_is_beside_the_interpreter_is_found() -> None:
    assert find_program(Path(sys.executable).name) == sys.executable
    assert find_program("no-such-program-anywhere") is None


@given(
    st.dictionaries(
        st.sampled_from(["name", "status", "value", "remedy", "more"]),
        st.one_of(st.none(), st.text(), st.just("ok"), st.integers()),
    )
)
def test_findings_from_elsewhere(row: dict[str, object]) -> None:
    try:
        found = from_json(row)
    except ValueError:
        return
    assert from_json(found.as_json()) == found
    told([found], width=80)


def test_summary_names_what_is_missing() -> None:
    found = by_name(summarise([ok("python.torch", "2"), ok("python.transformers", "5"), ok("disk.root", "1 TiB")]))
    assert found["can.reference_cpu"].status == "ok"
    assert "missing: a GPU with its driver" in found["can.reference_gpu"].value
    assert "sglang-kernel" in found["can.sglang"].value
