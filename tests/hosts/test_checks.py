"""Do the doctor's checks read correctly what kernels, drivers, compilers and package metadata say?"""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3ops.hosts.doctor import checks_disk, checks_gpu, checks_python, checks_system, checks_tools, probing
from eagle3ops.hosts.doctor.checks_gpu import Modes
from eagle3ops.hosts.doctor.finding import by_name
from eagle3ops.telemetry.gpus import GpuFacts, GpuProcess, Inventory
from eagle3ops.telemetry.nvml import Absent

GIB = 1024**3

SGLANG_PINS = [
    "apache-tvm-ffi==0.1.9",
    "flashinfer_cubin==0.6.12",
    "flashinfer_python[cu13]==0.6.12",
    "sglang-kernel==0.4.4",
    "torch==2.11.0",
    'torchcodec==0.11.1; sys_platform != "linux"',
    "transformers==5.8.1",
    "xgrammar==0.2.1",
    'av==16.1.0; extra == "diffusion"',
    "aiohttp",
]
"""Some of what sglang 0.5.14 asks for."""
FITTING = {
    "sglang": "0.5.14",
    "apache-tvm-ffi": "0.1.9",
    "flashinfer-cubin": "0.6.12",
    "flashinfer-python": "0.6.12",
    "sglang-kernel": "0.4.4",
    "torch": "2.11.0+cu130",
    "transformers": "5.8.1",
    "xgrammar": "0.2.1",
}


def gpu(
    index: int = 0, *, processes: tuple[GpuProcess, ...] = (), mig: bool | None = False, state: str = "ok"
) -> GpuFacts:
    return GpuFacts(
        index=index,
        uuid=f"GPU-{index}",
        name="NVIDIA H200",
        memory_total=141 * GIB,
        pci_bus_id=None,
        processes=processes,
        mig=mig,
        state=state,
    )


def machine(*gpus: GpuFacts, driver: str = "580.159.04", cuda: str = "13.0") -> Inventory:
    return Inventory(gpus=gpus, absent=None, driver=driver, cuda=cuda)


NO_GPU = Inventory(gpus=(), absent=Absent.NO_LIBRARY, remedy="install it")


def test_a_good_gpu_host() -> None:
    found = by_name(checks_gpu.gpus(lambda: (machine(gpu(0), gpu(1)), {0: Modes((9, 0), True, True, 0)})))
    assert found["gpu.driver"].value == "580.159.04, runs CUDA up to 13.0"
    assert found["gpu.count"].value == "2 x NVIDIA H200, 141.0 GiB"
    assert "compute capability 9.0, persistence on, ECC on, MIG off" in found["gpu.0"].value
    assert all(finding.status == "ok" for finding in found.values())


@pytest.mark.parametrize(
    ("facts", "modes", "status", "words"),
    [
        (gpu(mig=True), Modes(), "warn", "MIG on"),
        (gpu(), Modes(persistence=False), "warn", "persistence off"),
        (gpu(), Modes(ecc=True, uncorrected=3), "bad", "3 uncorrected memory errors"),
        (gpu(state="lost"), Modes(), "bad", "lost"),
    ],
)
def test_gpus_with_something(facts: GpuFacts, modes: Modes, status: str, words: str) -> None:
    found = by_name(checks_gpu.gpus(lambda: (machine(facts), {0: modes})))["gpu.0"]
    assert found.status == status
    assert words in found.value
    assert found.remedy


def test_foreign_processes_are_named() -> None:
    process = GpuProcess(pid=7, name="python3", user="ann", memory_bytes=2 * GIB, visible=True)
    found = by_name(checks_gpu.gpus(lambda: (machine(gpu(1, processes=(process,))), {})))
    assert found["gpu.processes"].value == "GPU 1: python3 (pid 7, user ann), 2.0 GiB"
    assert found["gpu.processes"].status == "warn"


def test_drivers_that_do_not_serve() -> None:
    old = by_name(checks_gpu.gpus(lambda: (machine(gpu(), driver="470.82.01", cuda="11.4"), {})))
    assert old["gpu.driver"].status == "bad"
    torn = Inventory(gpus=(), absent=Absent.MISMATCH, remedy="reboot", detail="NVML: mismatch")
    assert checks_gpu.gpus(lambda: (torn, {}))[0].status == "bad"
    [none] = checks_gpu.gpus(lambda: (NO_GPU, {}))
    assert none.status in ("absent", "bad")
    assert "no NVIDIA driver library" in none.value


@pytest.mark.parametrize(
    ("archs", "capability", "runs"),
    [
        (["sm_80", "sm_90"], (9, 0), True),
        (["sm_80"], (8, 6), True),
        (["sm_86"], (8, 0), False),
        (["sm_80", "sm_90"], (12, 0), False),
        (["sm_90", "compute_90"], (12, 0), True),
        (["sm_90a"], (9, 0), True),
        (["sm_100a"], (10, 3), False),
        (["sm_100f"], (10, 3), True),
        (["sm_120", "compute_120"], (12, 1), True),
        (["sm_120"], (9, 0), False),
        (["compute_90a"], (12, 0), False),
        ([], (9, 0), None),
        (["gfx90a"], (9, 0), None),
    ],
)
def test_which_code_runs_on_which_gpu(archs: list[str], capability: tuple[int, int], runs: bool | None) -> None:
    assert checks_python.fits(archs, capability) is runs


SEEN = {"version": "2.11.0", "cuda": "13.0", "archs": ["sm_90"], "available": True, "devices": [[9, 0]], "nccl": "2.28"}


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        ({}, "ok", "sees 1 GPU"),
        ({"cuda": None}, "bad", "CPU only"),
        ({"available": False}, "bad", "sees no GPU, the driver has 1"),
        ({"devices": [[12, 0]]}, "bad", "no code for compute capability 12.0"),
    ],
)
def test_torch_and_the_gpus(change: dict[str, object], status: str, words: str) -> None:
    found = by_name(checks_python.torch(lambda name: "2.11.0", lambda: SEEN | change, lambda: machine(gpu())))
    assert found["python.torch"].status == status
    assert words in found["python.torch"].value


def test_torch_without_gpus_is_fine() -> None:
    [found] = checks_python.torch(lambda name: "2", lambda: {"version": "2", "cuda": None}, lambda: NO_GPU)
    assert found.status == "ok"


def engines(have: dict[str, str], pins: Sequence[str] = SGLANG_PINS) -> dict[str, str]:
    found = checks_python.engines(have.get, lambda name: pins)
    return {finding.name: f"{finding.status}: {finding.value}" for finding in found}


def test_engines_that_fit() -> None:
    found = engines(FITTING)
    assert found["engine.sglang"] == "ok: 0.5.14"
    assert found["engine.vllm"].startswith("absent")


@pytest.mark.parametrize(
    ("change", "name", "said"),
    [
        ({"sglang-kernel": "0.4.3"}, "engine.sglang", "bad: 0.5.14; sglang-kernel is 0.4.3, wants 0.4.4"),
        ({"torch": "2.13.0"}, "engine.sglang", "bad: 0.5.14; torch is 2.13.0, wants 2.11.0"),
        ({"transformers": "5.17.0"}, "engine.sglang", "warn: 0.5.14; transformers is 5.17.0, wants 5.8.1"),
        ({"sgl-kernel": "0.3.0"}, "engine.sglang_kernel", "bad: sglang-kernel 0.4.4 and sgl-kernel 0.3.0"),
        ({"flashinfer-cubin": "0.6.1"}, "engine.flashinfer", "bad: flashinfer-python 0.6.12, flashinfer-cubin 0.6.1"),
        (
            {"nvidia-nccl-cu12": "2.27", "nvidia-nccl-cu13": "2.28"},
            "engine.nccl",
            "warn: nvidia-nccl-cu12 2.27, nvidia-nccl-cu13 2.28",
        ),
    ],
)
def test_engines_that_do_not_fit(change: dict[str, str], name: str, said: str) -> None:
    assert engines(FITTING | change)[name] == said


def test_engine_without_its_kernel() -> None:
    have = {name: version for name, version in FITTING.items() if name != "sglang-kernel"}
    assert engines(have)["engine.sglang"] == "bad: 0.5.14; sglang-kernel 0.4.4 is missing"


@pytest.mark.parametrize(
    ("pinned", "have", "same"),
    [
        ("2.11.0", "2.11.0+cu130", True),
        ("2.11", "2.11.0", True),
        ("2.11.0+cu130", "2.11.0+cu129", False),
        ("4.0.0b15", "4.0.0b15", True),
        ("4.0.0b15", "4.0.0", False),
        ("0.4.4", "0.4.40", False),
    ],
)
def test_pins(pinned: str, have: str, same: bool) -> None:
    assert checks_python.same_version(pinned, have) is same


NVCC = """nvcc: NVIDIA (R) Cuda compiler driver
Copyright (c) 2005-2025 NVIDIA Corporation
Cuda compilation tools, release 13.0, V13.0.88
Build cuda_13.0.r13.0/compiler.36424714_0
"""


def test_what_programs_say() -> None:
    assert checks_gpu.parse_nvcc(NVCC) == (13, 0)
    assert probing.version_in("gcc (Debian 12.2.0-14+deb12u1) 12.2.0") == "12.2.0"
    assert probing.version_in("rustc 1.95.0 (59807616e 2026-04-14)") == "1.95.0"
    assert probing.version_in("no version at all 7") is None
    assert probing.version_key("580.159.04") == (580, 159, 4)
    listed = checks_tools.parse_ldconfig(
        "2 libs found in cache\n\tlibnuma.so.1 (libc6,x86-64) => /lib/x86_64-linux-gnu/libnuma.so.1\n"
        "\tlibnccl.so.2 (libc6,x86-64, OS ABI: Linux 3.2.0) => /usr/lib/libnccl.so.2\n"
    )
    assert listed == {"libnuma.so.1": ["/lib/x86_64-linux-gnu/libnuma.so.1"], "libnccl.so.2": ["/usr/lib/libnccl.so.2"]}


@pytest.mark.parametrize(
    ("scope", "capabilities", "may"),
    [("", 0, True), ("0", 0, True), ("1", 0, False), ("1", 1 << 19, True), ("2", None, False), ("3", 1 << 19, False)],
)
def test_who_may_look_into_processes(scope: str, capabilities: int | None, may: bool) -> None:
    assert checks_tools.ptrace_verdict(scope, capabilities)[0] is may


MOUNTS = r"""22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
40 27 0:50 / /home rw,relatime shared:5 - nfs4 server:/home rw,vers=4.2
41 40 0:51 / /home/ann/my\040disk rw,noexec - fuse.sshfs ann@there:/ rw
42 27 0:52 / /data rw - tmpfs none ro
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "ext4"),
        ("/homes", "ext4"),
        ("/home", "nfs4"),
        ("/home/ann/x", "nfs4"),
        ("/home/ann/my disk/x", "fuse.sshfs"),
    ],
)
def test_the_mount_of_a_path(path: str, kind: str) -> None:
    mounts = checks_disk.parse_mounts(MOUNTS)
    found = checks_disk.mount_of(path, mounts)
    assert found is not None
    assert found.kind == kind
    assert [(mount.point, mount.noexec, mount.read_only) for mount in mounts[-2:]] == [
        ("/home/ann/my disk", True, False),
        ("/data", False, True),
    ]


def test_what_the_kernel_says() -> None:
    assert checks_system.parse_meminfo("MemTotal: 24 kB\nHugePages_Total:  3\n") == {
        "MemTotal": 24576,
        "HugePages_Total": 3,
    }
    assert checks_system.parse_os_release('ID=debian\nPRETTY_NAME="Debian 12"\n# no\n')["PRETTY_NAME"] == "Debian 12"
    assert checks_system.parse_cgroup("4:memory:/a/b\n2:cpu,cpuacct:/\n0::/user.slice\nnonsense\n") == {
        "memory": "/a/b",
        "cpu": "/",
        "cpuacct": "/",
        "": "/user.slice",
    }
    assert checks_system.parse_cpu_max("250000 100000") == 2.5
    assert checks_system.parse_cpu_max("max 100000") is None
    assert checks_system.parse_cpu_max("-1 100000") is None
    assert checks_tools.count_list("0-3,8\n") == 5
    assert checks_tools.count_list("") is None
    assert checks_tools.count_list("3-1") is None
    assert checks_tools.capabilities_of("Name:\tx\nCapEff:\t000001ffffffffff\n") == 0x1FFFFFFFFFF


def test_proxies_lose_their_credentials() -> None:
    assert checks_system.without_credentials("http://ann:secret@proxy:3128/") == "http://proxy:3128"
    assert checks_system.without_credentials("ann:secret@proxy:3128") == "proxy:3128"
    assert "secret" not in checks_system.without_credentials("http://ann:secret@[::1")


@pytest.mark.parametrize(
    ("said", "ended"),
    [
        ("KillUserProcesses=no\nKillOnlyUsers=\nKillExcludeUsers=root\n", False),
        ("KillUserProcesses=yes\nKillOnlyUsers=\nKillExcludeUsers=root\n", True),
        ("KillUserProcesses=yes\nKillOnlyUsers=\nKillExcludeUsers=root ann\n", False),
        ("KillUserProcesses=yes\nKillOnlyUsers=bob\nKillExcludeUsers=root\n", False),
        ("KillUserProcesses=yes\nKillOnlyUsers=bob ann\n", True),
        ("Failed to connect to bus\n", False),
    ],
)
def test_whose_runs_end_at_the_logout(said: str, ended: bool) -> None:
    assert checks_system.ended_at_logout(checks_system.parse_properties(said), "ann") is ended


LINES = st.text(alphabet=st.characters(codec="utf-8"), max_size=200)
WORDS = r"MemTotal:| 12| kB|0::/| - |rw| |release |13.0|=>|(|)|/x|ff|==|torch|[a]|;|-|,|0-3|\040|\777|²|٣|sm_90|CapEff:"
PIECES = st.lists(
    st.sampled_from([*WORDS.split("|"), "torch_1_1", "cuda.shm.0.f.1", "\n", "\t"]),
    max_size=30,
).map("".join)


@given(st.one_of(LINES, PIECES))
def test_no_text_breaks_a_parser(text: str) -> None:
    checks_system.parse_os_release(text)
    checks_system.parse_meminfo(text)
    checks_system.parse_cgroup(text)
    checks_system.parse_cpu_max(text)
    checks_system.ended_at_logout(checks_system.parse_properties(text), text)
    assert "@" not in checks_system.without_credentials(text)
    for mount in checks_disk.parse_mounts(text):
        assert checks_disk.mount_of(mount.point, [mount]) in (mount, None)
    checks_disk.owner_of(text)
    checks_gpu.parse_nvcc(text)
    checks_tools.parse_ldconfig(text)
    checks_tools.count_list(text)
    checks_tools.capabilities_of(text)
    checks_python.parse_pin(text)
    checks_python.mismatches([text], lambda name: None)
    checks_python.fits([text], (9, 0))
    checks_python.same_version(text, text)
    probing.version_in(text)
    probing.version_key(text)


@given(st.integers(0, 99), st.integers(0, 99))
def test_nvcc_round_trip(major: int, minor: int) -> None:
    assert checks_gpu.parse_nvcc(NVCC.replace("release 13.0", f"release {major}.{minor}")) == (major, minor)


@given(
    st.from_regex(r"[A-Za-z][A-Za-z0-9._-]{0,10}[A-Za-z0-9]", fullmatch=True),
    st.from_regex(r"[0-9]\.[0-9]{1,3}(rc[0-9])?", fullmatch=True),
)
def test_pin_round_trip(name: str, version: str) -> None:
    for spelling in (f"{name}=={version}", f"{name}[a,b] (== {version})"):
        assert checks_python.parse_pin(spelling) == (checks_python.normal(name), version)
    assert checks_python.parse_pin(f"{name}>={version}") is None
