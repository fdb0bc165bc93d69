"""What does this machine have and lack, and what is to be done about it?

Each check runs in a thread of its own, all at once: one that raises, or that hangs in a dead mount or a broken driver,
becomes a finding of its own and takes no other with it. Nothing is changed and nothing on the network is asked.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from eagle3ops.hosts.doctor import capabilities, checks_disk, checks_gpu, checks_python, checks_system, checks_tools
from eagle3ops.hosts.doctor.finding import Finding, warn
from eagle3ops.hosts.doctor.probing import Pending

__all__ = ["Check", "Finding", "checks", "examine", "examine_all"]

CHECK_LIMIT_S = 8.0
"""Longer than any command of a check may take, so that the check can say which one it was."""
GIB = 1024**3


@dataclass(frozen=True, slots=True)
class Check:
    """A question to this machine."""

    name: str
    """Also the finding's name when there is no answer."""
    ask: Callable[[], list[Finding]]
    limit: float = CHECK_LIMIT_S
    """Seconds after which it is given up."""


def checks(root: Path, cache: Path) -> list[Check]:
    """All checks, in the order in which they are told."""
    partial = functools.partial
    torch_limit = checks_python.TORCH_LIMIT_S + 5
    return [
        Check("system.os", checks_system.system),
        Check("system.cpu", checks_system.processor),
        Check("system.memory", checks_system.memory),
        Check("system.clock", checks_system.clock),
        Check("limits.nofile", checks_system.limits),
        Check("limits.cgroup", checks_system.groups),
        Check("limits.logout", checks_system.logout),
        Check("numa.nodes", checks_tools.numa),
        Check("disk.root", partial(checks_disk.space, "disk.root", root, small=20 * GIB, locks=True)),
        Check("disk.cache", partial(checks_disk.space, "disk.cache", cache, small=5 * GIB, locks=False)),
        Check("disk.tmp", partial(checks_disk.space, "disk.tmp", Path("/tmp"), small=2 * GIB, locks=False)),
        Check("disk.shm", checks_disk.shared_memory),
        Check("gpu.driver", checks_gpu.gpus),
        Check("gpu.leases", checks_gpu.leases),
        Check("cuda.nvcc", checks_gpu.cuda),
        Check("python.version", checks_python.python),
        Check("python.torch", checks_python.torch, torch_limit),
        Check("engine.sglang", checks_python.engines),
        *(Check(checks_tools.PROGRAMS[name][0], partial(checks_tools.program, name)) for name in checks_tools.PROGRAMS),
        Check("tool.py-spy", checks_tools.stacks, CHECK_LIMIT_S + 5),
        Check("hub.home", checks_system.network),
    ]


def examine(root: Path, cache: Path) -> list[Finding]:
    """Look at this machine: what there is, in the order of `checks`, and at the end what it can do (`can.*`).

    Takes about two seconds and the time that importing torch takes in a process of its own. Never raises for what it
    finds; blocks, so that an event loop calls it in a thread.
    """
    return examine_all(checks(root, cache))


def examine_all(asked: Sequence[Check]) -> list[Finding]:
    """Ask all at once, and sum up."""
    pending = [(check, Pending(check.ask)) for check in asked]
    found: list[Finding] = []
    for check, answer in pending:
        try:
            found += answer.result(check.limit)
        except Exception as error:  # noqa: BLE001  (the boundary: one check must not take the others with it)
            found.append(_unanswered(check, error))
    return [*found, *capabilities.summarise(found)]


def _unanswered(check: Check, error: Exception) -> Finding:
    reason = str(error) or type(error).__name__
    remedy = "look at it by hand; a mount whose server is gone, a hung driver or a missing right is the usual cause"
    return warn(check.name, f"could not be checked: {reason}", remedy)
