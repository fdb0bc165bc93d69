"""What kind of process is this, and for what does it wait in the kernel?"""

import re

FAMILIES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile(pattern))
    for name, pattern in (
        ("futex", r"^_*futex"),
        ("poll", r"^(?:do_|ep_|_*sys_)?e?poll|^poll_schedule|^do_select|^do_pselect|^do_sys_poll"),
        ("sleep", r"nanosleep|^schedule_hrtimeout"),
        ("pipe_write", r"pipe_write"),
        ("pipe_read", r"pipe_read|^wait_for_partner"),
        ("wait", r"^do_wait|^kernel_wait|^do_wait_"),
        ("stop", r"^do_signal_stop|^ptrace_stop|^do_notify_parent"),
        ("lock", r"flock|locks_lock|^posix_lock|fcntl_setlk"),
        (
            "disk",
            r"^folio_|^wait_on_page|^io_sched|^nfs|^rpc_|^jbd2|^xfs_|^ext4_|^fuse|request_wait|^blk_|^ceph|^cv_wait",
        ),
        ("socket", r"^inet_|^sk_|^unix_|^wait_woken|^tcp_|^skb_|^__skb_"),
    )
)
"""Kernel functions change their names; these families do not. Of futex to socket, in that order."""
_COMPILERS = re.compile(
    r"^(?:nvcc|cicc|ptxas|cudafe\+\+|fatbinary|nvlink|ninja|cmake|make|cc1(?:plus)?|c\+\+|cc|[gc]\+\+|gcc|clang(?:\+\+)?|"
    r"ld(?:\.\w+)?|lld|collect2|as|rustc|gcc-real)(?:[-.\d]\S*)?$"
)
_HELPERS = re.compile(
    r"^(?:nvidia-smi|nvidia-debugdump|sh|bash|dash|sed|awk|grep|cat|file|git|uname|lscpu|lspci|numactl|ldconfig|which|"
    r"tee|sleep|timeout|env|setsid|py-spy|gdb|tail|head|ps|df|free|hostname|ibv_devinfo)$"
)
_TRACKER = re.compile(r"resource_tracker|_inductor.compile_worker")


def family(wchan: str | None) -> str:
    """For what a process waits in the kernel, in one word; empty where it runs or nothing is known."""
    if not wchan or wchan == "0":
        return ""
    return next((name for name, pattern in FAMILIES if pattern.search(wchan)), "other")


def is_compiler(name: str) -> bool:
    """It is a part of a compiler, by its name."""
    return _COMPILERS.match(name) is not None


def is_helper(name: str, command: str) -> bool:
    """It does a small thing beside the work; that it is stopped or dead means nothing for the work.

    Args:
        name: of the process, as the kernel has it.
        command: its command line.
    """
    return _HELPERS.match(name) is not None or _TRACKER.search(command[:500]) is not None
