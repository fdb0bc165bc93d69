"""Which programs are there to build kernels, to look into hung processes, to fetch sources?"""

import os
import re
from pathlib import Path

from eagle3ops.hosts.doctor.finding import Finding, absent, ok, warn
from eagle3ops.hosts.doctor.probing import NoAnswer, find_program, first_line, read_text, run, version_in

KERNELS = "needed only to build kernels"
CAP_SYS_PTRACE = 19

PROGRAMS: dict[str, tuple[str, str]] = {
    "gcc": ("tool.gcc", f"{KERNELS}: install gcc (Debian, Ubuntu: build-essential)"),
    "g++": ("tool.g++", f"{KERNELS}: install g++ (Debian, Ubuntu: build-essential)"),
    "clang": ("tool.clang", "an alternative to gcc; nothing needs it"),
    "ninja": ("tool.ninja", f"{KERNELS} at run time (torch, flashinfer): pip install ninja"),
    "cmake": ("tool.cmake", f"{KERNELS} from source (sgl-kernel, vLLM): pip install cmake"),
    "rustc": ("tool.rustc", "needed only to build tokenizers or the SGLang router from source: https://rustup.rs"),
    "gdb": ("tool.gdb", "shows the C side of a hung process: install gdb"),
    "git": ("tool.git", "needed only to install from a repository: install git"),
}


def program(name: str) -> list[Finding]:
    """Path and version of one of `PROGRAMS`."""
    finding, remedy = PROGRAMS[name]
    path = find_program(name)
    if path is None:
        return [absent(finding, "not on PATH", remedy)]
    broken = f"run `{name} --version` by hand; reinstall it, or take its folder off PATH"
    try:
        ran = run([path, "--version"])
    except (OSError, NoAnswer) as error:
        return [warn(finding, f"{path}: {error}", broken)]
    version = version_in(ran.output)
    if ran.code != 0 or version is None:
        return [warn(finding, f"{path}: exit {ran.code}, {first_line(ran.output) or 'no output'}", broken)]
    return [ok(finding, f"{version}, {path}")]


def capabilities_of(status: str) -> int | None:
    """The effective capabilities of /proc/PID/status as a bit mask."""
    match = re.search(r"^CapEff:\s*([0-9a-fA-F]{1,16})$", status, re.MULTILINE)
    return int(match[1], 16) if match else None


def ptrace_verdict(scope: str, capabilities: int | None) -> tuple[bool, str]:
    """May this user look into their own processes? By Yama's `ptrace_scope` (empty: no Yama) and capabilities."""
    may = capabilities is not None and bool(capabilities >> CAP_SYS_PTRACE & 1)
    if scope in ("", "0"):
        return True, "Yama is off" if scope == "" else "ptrace_scope 0"
    if scope == "3":
        return False, "ptrace_scope 3: nobody may until the next boot"
    if may:
        return True, f"ptrace_scope {scope}, CAP_SYS_PTRACE"
    return False, f"ptrace_scope {scope}, no CAP_SYS_PTRACE"


def stacks() -> list[Finding]:
    """py-spy, and whether the kernel lets it look."""
    scope = read_text("/proc/sys/kernel/yama/ptrace_scope").strip()
    allowed, why = ptrace_verdict(scope, capabilities_of(read_text("/proc/self/status")))
    remedy = (
        "stacks of hung engines stay unseen: `sysctl kernel.yama.ptrace_scope=0` as root, or run with CAP_SYS_PTRACE"
    )
    found = [ok("tool.ptrace", why) if allowed else warn("tool.ptrace", why, remedy)]
    path = find_program("py-spy")
    if path is None:
        text = "SGLang's watchdog and ours call it to show where a process hangs: pip install py-spy"
        return [*found, absent("tool.py-spy", "not on PATH", text)]
    broken = "run it by hand: py-spy dump --pid PID; reinstall it: pip install --force-reinstall py-spy"
    try:
        version = version_in(run([path, "--version"]).output)
        # The proof: it shows this very process, which is not its child.
        shown = run([path, "dump", "--nonblocking", "--pid", str(os.getpid())])
    except (OSError, NoAnswer) as error:
        return [*found, warn("tool.py-spy", f"{path}: {error}", broken)]
    value = f"{version or 'version unknown'}, {path}"
    if shown.code != 0:
        return [*found, warn("tool.py-spy", f"{value}: {first_line(shown.output)}", remedy)]
    return [*found, ok("tool.py-spy", f"{value}, works")]


def parse_ldconfig(text: str) -> dict[str, list[str]]:
    """`ldconfig -p`: library name -> paths."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        match = re.fullmatch(r"\s+(\S+) \([^)]*\) => (/.+)", line)
        if match:
            found.setdefault(match[1], []).append(match[2])
    return found


def libraries() -> dict[str, list[str]]:
    """What the dynamic linker knows; empty where there is no ldconfig."""
    path = find_program("ldconfig") or next(
        (p for p in ("/sbin/ldconfig", "/usr/sbin/ldconfig") if Path(p).exists()), ""
    )
    if not path:
        return {}
    try:
        return parse_ldconfig(run([path, "-p"]).output)
    except (OSError, NoAnswer):
        return {}


def count_list(text: str) -> int | None:
    """How many numbers a kernel list as `0-3,8` names; None for what is no list."""
    total = 0
    for part in text.strip().split(","):
        match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", part, re.ASCII)
        if match is None:
            return None
        first = int(match[1])
        last = int(match[2] or first)
        if last < first:
            return None
        total += last - first + 1
    return total


def numa() -> list[Finding]:
    """Memory nodes, numactl, libnuma and its header."""
    nodes = count_list(read_text("/sys/devices/system/node/online"))
    found = [ok("numa.nodes", "unknown to this kernel" if nodes is None else f"{nodes}")]
    several = nodes is not None and nodes > 1
    tool = find_program("numactl")
    library = libraries().get("libnuma.so.1", [])
    header = next((path for path in ("/usr/include/numa.h", "/usr/local/include/numa.h") if Path(path).exists()), None)
    remedy = "binds engines to the memory beside their GPU: install numactl (Debian, Ubuntu: numactl libnuma1)"
    for name, path in (("numa.numactl", tool), ("numa.library", library[0] if library else None)):
        if path is not None:
            found.append(ok(name, path))
        elif several:
            found.append(warn(name, f"not found, and there are {nodes} nodes", remedy))
        else:
            found.append(absent(name, "not found; with one node nothing needs it", remedy))
    if header is not None:
        found.append(ok("numa.header", header))
    else:
        text = "needed only to build sgl-kernel from source: install libnuma-dev (numactl-devel)"
        found.append(absent("numa.header", "numa.h not found", text))
    return found
