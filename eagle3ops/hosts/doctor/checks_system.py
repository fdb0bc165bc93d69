"""What kind of machine is this host, and what does its system allow?"""

import getpass
import os
import platform
import re
import resource
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

from eagle3ops.hosts.doctor.finding import Finding, absent, bad, ok, warn
from eagle3ops.hosts.doctor.probing import NoAnswer, find_program, first_line, read_text, run
from eagle3ops.words import human_bytes, human_seconds

GIB = 1024**3
MIB = 1024**2


def parse_os_release(text: str) -> dict[str, str]:
    """The settings of /etc/os-release."""
    found = {}
    for line in text.splitlines():
        key, equals, value = line.strip().partition("=")
        if equals and key.isidentifier():
            found[key] = value.strip("\"'")
    return found


def parse_meminfo(text: str) -> dict[str, int]:
    """/proc/meminfo in bytes (counts without a unit as they stand)."""
    found = {}
    for line in text.splitlines():
        match = re.fullmatch(r"([\w()]+):\s+(\d+)( kB)?\s*", line, re.ASCII)
        if match:
            found[match[1]] = int(match[2]) * (1024 if match[3] else 1)
    return found


def system() -> list[Finding]:
    """Operating system, kernel, architecture, container, WSL."""
    release = platform.release()
    name = parse_os_release(read_text("/etc/os-release")).get("PRETTY_NAME") or platform.system()
    value = f"{name}, kernel {release}, {platform.machine()}"
    if sys.platform != "linux":
        remedy = "this machine can show runs; run them on a Linux host: eagle3ops hosts add NAME ADDRESS"
        return [warn("system.os", value, remedy)]
    found = [ok("system.os", value)]
    if "microsoft" in release.lower():
        remedy = (
            "keep the root inside the Linux file system, not under /mnt; NVML shows no processes under WSL, so that "
            "foreign use of a GPU is seen only by its memory"
        )
        found.append(warn("system.container", f"WSL (kernel {release})", remedy))
    else:
        found.append(ok("system.container", container() or "none seen"))
    return found


def container() -> str | None:
    """The kind of container around this process, as far as it shows."""
    named = read_text("/run/systemd/container").strip() or os.environ.get("container", "")  # noqa: SIM112  (podman's and systemd-nspawn's spelling)
    if named:
        return named
    if Path("/.dockerenv").exists():
        return "docker"
    if Path("/run/.containerenv").exists():
        return "podman"
    groups = read_text("/proc/1/cgroup")
    return next((kind for kind in ("kubepods", "docker", "containerd", "lxc") if kind in groups), None)


def memory() -> list[Finding]:
    """Memory, swap and huge pages."""
    info = parse_meminfo(read_text("/proc/meminfo"))
    total, available = info.get("MemTotal"), info.get("MemAvailable")
    found = []
    if total is None or available is None:
        remedy = "/proc/meminfo is missing or unreadable: mount /proc, or look at the container's security profile"
        found.append(warn("system.memory", "unknown", remedy))
    else:
        value = f"{human_bytes(available)} of {human_bytes(total)} available"
        short = "end what uses it; generating, extracting and training the demo's target take about 4 GiB"
        found.append(ok("system.memory", value) if available >= 4 * GIB else warn("system.memory", value, short))
    swap = info.get("SwapTotal", 0)
    used = swap - info.get("SwapFree", 0)
    value = "none" if not swap else f"{human_bytes(used)} of {human_bytes(swap)} used"
    if swap and used > swap / 2 and total and available is not None and available < total / 10:
        found.append(warn("system.swap", value, "the machine is short of memory and swaps: end what is not needed"))
    else:
        found.append(ok("system.swap", value))
    found.append(_huge_pages(info))
    return found


def _huge_pages(info: dict[str, int]) -> Finding:
    count, size = info.get("HugePages_Total", 0), info.get("Hugepagesize", 2 * MIB)
    chosen = re.search(r"\[(\w+)\]", read_text("/sys/kernel/mm/transparent_hugepage/enabled"))
    transparent = f"transparent: {chosen[1] if chosen else 'unknown'}"
    if count == 0:
        return ok("system.hugepages", f"none reserved, {transparent}")
    free = info.get("HugePages_Free", 0)
    value = f"{count} of {human_bytes(size)} reserved, {free} free, {transparent}"
    if free * size > 4 * GIB:
        remedy = f"{human_bytes(free * size)} of memory serve nothing else: lower vm.nr_hugepages unless it is meant"
        return warn("system.hugepages", value, remedy)
    return ok("system.hugepages", value)


def parse_cgroup(text: str) -> dict[str, str]:
    """/proc/PID/cgroup: controller -> path; the unified hierarchy under ''."""
    found = {}
    for line in text.splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3 and parts[2].startswith("/"):
            for controller in parts[1].split(","):
                found[controller] = parts[2]
    return found


def _group_folders(controller: str, mount: Path) -> list[Path]:
    """This process's control group and those around it. Inside a container the path may lead nowhere: then the top."""
    path = parse_cgroup(read_text("/proc/self/cgroup")).get(controller)
    if path is None:
        return []
    folders = [mount / path.strip("/"), *(mount / str(parent).strip("/") for parent in Path(path).parents)]
    return list(dict.fromkeys(folders))


def _lowest(values: list[float]) -> float | None:
    return min(values, default=None)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def parse_cpu_max(text: str) -> float | None:
    """CPUs allowed by cgroup v2's `cpu.max` ("200000 100000"); None for "max"."""
    parts = text.split()
    if len(parts) != 2:
        return None
    quota, period = _number(parts[0]), _number(parts[1])
    return quota / period if quota is not None and period and quota > 0 and period > 0 else None


def groups() -> list[Finding]:
    """What the control group allows."""
    base = Path("/sys/fs/cgroup")
    limits: list[float] = []
    cpus: list[float] = []
    for folder in _group_folders("", base):
        limit = _number(read_text(folder / "memory.max").strip())
        cpu = parse_cpu_max(read_text(folder / "cpu.max"))
        limits += [] if limit is None else [limit]
        cpus += [] if cpu is None else [cpu]
    for folder in _group_folders("memory", base / "memory"):
        limit = _number(read_text(folder / "memory.limit_in_bytes").strip())
        limits += [] if limit is None or limit >= 2**60 else [limit]
    for folder in _group_folders("cpu", base / "cpu"):
        quota, period = read_text(folder / "cpu.cfs_quota_us").strip(), read_text(folder / "cpu.cfs_period_us").strip()
        cpu = parse_cpu_max(f"{quota} {period}")
        cpus += [] if cpu is None else [cpu]
    memory_limit, cpu_limit = _lowest(limits), _lowest(cpus)
    value = "memory: no limit" if memory_limit is None else f"memory: {human_bytes(memory_limit)}"
    value += ", CPU: no limit" if cpu_limit is None else f", CPU: {cpu_limit:g} cores"
    if memory_limit is not None and memory_limit < 4 * GIB:
        return [warn("limits.cgroup", value, "give the container or the service at least 4 GiB of memory")]
    if cpu_limit is not None and cpu_limit < 2:
        return [warn("limits.cgroup", value, "give the container or the service at least 2 CPUs")]
    return [ok("limits.cgroup", value)]


def processor() -> list[Finding]:
    """CPUs and which of them this process may use."""
    model = re.search(r"^model name\s*:\s*(.+)$", read_text("/proc/cpuinfo"), re.MULTILINE)
    count = os.cpu_count() or 1
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else count
    value = f"{count} logical CPUs" + (f", {usable} usable" if usable != count else "")
    value += f", {model[1].strip()}" if model else ""
    load = os.getloadavg()[0]
    value += f", load {load:.1f}"
    if load > 2 * count:
        return [warn("system.cpu", value, "the machine is busy: timings will vary; see what runs with `top`")]
    return [ok("system.cpu", value)]


def clock() -> list[Finding]:
    """Time of the host and of its last boot."""
    now = time.time()
    boot = re.search(r"^btime (\d+)$", read_text("/proc/stat"), re.MULTILINE)
    value = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(now))
    if boot is not None:
        value += f", up {human_seconds(max(0.0, now - int(boot[1])))}"
    if now < 1_700_000_000:
        return [warn("system.clock", value, "the clock is years behind: set it, or certificates will be refused")]
    return [ok("system.clock", value)]


def _amount(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else f"{value:,}"


def _below(value: int, wanted: int) -> bool:
    return value != resource.RLIM_INFINITY and value < wanted


def limits() -> list[Finding]:
    """Resource limits of this process, which what it starts will have as well."""
    found = []
    for name, kind, wanted, option in (
        ("nofile", resource.RLIMIT_NOFILE, 4096, "n"),
        ("nproc", getattr(resource, "RLIMIT_NPROC", None), 4096, "u"),
    ):
        if kind is None:
            continue
        soft, hard = resource.getrlimit(kind)
        value = f"{_amount(soft)} (hard {_amount(hard)})"
        remedy = f"raise it: `ulimit -{option} 65536`, for good in /etc/security/limits.conf or LimitNOFILE/TasksMax"
        found.append(warn(f"limits.{name}", value, remedy) if _below(soft, wanted) else ok(f"limits.{name}", value))
    found.append(_memlock())
    stack = resource.getrlimit(resource.RLIMIT_STACK)[0]
    value = _bytes_or_unlimited(stack)
    remedy = "raise it to 8 MiB: `ulimit -s 8192`; compilers and deep recursion need it"
    found.append(warn("limits.stack", value, remedy) if _below(stack, 8 * MIB) else ok("limits.stack", value))
    core = resource.getrlimit(resource.RLIMIT_CORE)[0]
    pattern = first_line(read_text("/proc/sys/kernel/core_pattern")) or "unknown"
    found.append(ok("limits.core", f"{_bytes_or_unlimited(core)}, to `{pattern}`"))
    return found


def _bytes_or_unlimited(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else human_bytes(value)


def _memlock() -> Finding:
    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    value = _bytes_or_unlimited(soft)
    if soft != resource.RLIM_INFINITY and any(Path("/sys/class/infiniband").glob("*")):
        remedy = "InfiniBand is here and NCCL locks memory for it: set memlock to unlimited in limits.conf"
        return warn("limits.memlock", value, remedy)
    return ok("limits.memlock", value)


SYSTEMD = Path("/run/systemd/system")
"""There when systemd looks after this machine."""


def parse_properties(text: str) -> dict[str, str]:
    """What `loginctl show-session` prints: `Name=value`, a line each."""
    pairs = (line.strip().partition("=") for line in text.splitlines())
    return {name: value for name, equals, value in pairs if equals and name.isidentifier()}


def ended_at_logout(properties: dict[str, str], user: str) -> bool:
    """Does systemd end what a user has left running when they log out? By logind's own three settings."""
    only, excluded = (properties.get(name, "").split() for name in ("KillOnlyUsers", "KillExcludeUsers"))
    return properties.get("KillUserProcesses") == "yes" and user not in excluded and (not only or user in only)


def logout() -> list[Finding]:
    """What becomes of a run when whoever started it logs out."""
    name, asks = "limits.logout", find_program("loginctl")
    if asks is None or not SYSTEMD.exists():
        return [ok(name, "runs go on: no systemd ends sessions here")]
    try:
        ran = run([asks, "show-session", "--property=KillUserProcesses,KillOnlyUsers,KillExcludeUsers"])
    except (OSError, NoAnswer) as error:
        remedy = "see that `loginctl show-session` answers; runs end at the logout if it says KillUserProcesses=yes"
        return [warn(name, f"unknown: {error}", remedy)]
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = ""
    if ended_at_logout(parse_properties(ran.output), user):
        remedy = (
            f"exempt this user: KillExcludeUsers=root {user}, or set KillUserProcesses=no, in "
            "/etc/systemd/logind.conf, then `systemctl restart systemd-logind` as root"
        )
        return [bad(name, f"systemd ends everything that {user or 'this user'} has running, runs as well", remedy)]
    return [ok(name, "runs go on")]


PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


def without_credentials(address: str) -> str:
    """A proxy's address without user name and password."""
    try:
        parts = urlsplit(address if "//" in address else f"//{address}")
        host, port = parts.hostname, parts.port
    except ValueError:
        return "set, not readable as an address"
    if not host:
        return "set, not readable as an address"
    return f"{parts.scheme + '://' if parts.scheme else ''}{host}{f':{port}' if port else ''}"


def network() -> list[Finding]:
    """Proxy settings and the model hub's; nothing is contacted, and no token's value is shown."""
    shown = []
    for name in PROXIES:
        value = os.environ.get(name) or os.environ.get(name.upper())
        if value:
            shown.append(f"{name}={value if name == 'no_proxy' else without_credentials(value)}")
    found = [ok("network.proxy", ", ".join(shown) or "none set")]
    home = os.environ.get("HF_HOME") or "~/.cache/huggingface"
    offline = ", offline by HF_HUB_OFFLINE" if os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0") else ""
    found.append(ok("hub.home", f"{home}{'' if os.environ.get('HF_HOME') else ' (HF_HOME is not set)'}{offline}"))
    kept = Path(os.environ.get("HF_TOKEN_PATH") or Path(home).expanduser() / "token")
    if os.environ.get("HF_TOKEN"):
        found.append(ok("hub.token", "HF_TOKEN is set"))
    elif kept.is_file():
        found.append(ok("hub.token", f"kept in {kept}"))
    else:
        remedy = "only gated models need one: `hf auth login` on the host"
        found.append(absent("hub.token", "neither HF_TOKEN nor a kept token", remedy))
    return found
