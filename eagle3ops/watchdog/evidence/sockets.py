"""To whom do the processes speak over TCP: who listens, who waits for an answer to a call, whose data nobody takes?

From /proc/PID/net/tcp and tcp6, which list all sockets of a network namespace; which of them belong to the processes is
known by their open files.
"""

import contextlib
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eagle3ops.telemetry.procfs import read_at
from eagle3ops.watchdog.incidents.incident import Evidence

TABLE_BYTES = 16 << 20
MOST_SOCKETS = 2000
_STATES = {
    1: "ESTABLISHED", 2: "SYN_SENT", 3: "SYN_RECV", 4: "FIN_WAIT1", 5: "FIN_WAIT2", 6: "TIME_WAIT", 7: "CLOSE",
    8: "CLOSE_WAIT", 9: "LAST_ACK", 10: "LISTEN", 11: "CLOSING", 12: "NEW_SYN_RECV",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TcpSocket:
    """A line of the kernel's table."""

    local: str
    """`127.0.0.1:30000`."""
    peer: str
    state: str
    unsent: int
    """Bytes that the peer has not acknowledged; for one that listens 0."""
    unread: int
    """Bytes that its owner has not taken; for one that listens, connections that wait to be accepted."""
    inode: int


def parse_tcp(text: str) -> list[TcpSocket]:
    """/proc/net/tcp or tcp6; lines that are none are passed over."""
    found = []
    for line in text.split("\n"):
        words = line.split()
        if len(words) < 10 or not words[0].endswith(":"):
            continue
        unsent, _, unread = words[4].partition(":")
        with contextlib.suppress(ValueError, struct.error, OSError):
            found.append(
                TcpSocket(
                    local=_address(words[1]),
                    peer=_address(words[2]),
                    state=_STATES.get(int(words[3], 16), words[3][:8]),
                    unsent=int(unsent, 16),
                    unread=int(unread, 16),
                    inode=int(words[9]),
                )
            )
    return found


def _address(text: str) -> str:
    """Hexadecimal, in words of 32 bits as the processor keeps them."""
    address, _, port = text.partition(":")
    number = int(port, 16)
    raw = bytes.fromhex(address)
    words = struct.unpack(f">{len(raw) // 4}I", raw)
    native = struct.pack(f"={len(words)}I", *words)
    if len(native) == 4:
        return f"{socket.inet_ntop(socket.AF_INET, native)}:{number}"
    if native[:12] == b"\0" * 10 + b"\xff\xff":
        return f"{socket.inet_ntop(socket.AF_INET, native[12:])}:{number}"
    return f"[{socket.inet_ntop(socket.AF_INET6, native)}]:{number}"


def of_processes(processes: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The TCP sockets of these processes: pids, local, peer, state, unsent, unread.

    Args:
        processes: `procfs.details` of each.
    """
    owners: dict[int, list[int]] = {}
    spaces: dict[str, int] = {}
    for process in processes:
        for inode in ((process["files"] or {}).get("sockets") or {}).values():
            with contextlib.suppress(ValueError):
                owners.setdefault(int(inode), []).append(process["pid"])
        with contextlib.suppress(OSError):
            spaces.setdefault(os.readlink(f"/proc/{process['pid']}/ns/net"), process["pid"])
    found: list[dict[str, Any]] = []
    for pid in spaces.values():
        for table in ("tcp", "tcp6"):
            for one in parse_tcp(_whole(f"/proc/{pid}/net/{table}")):
                if one.inode in owners and len(found) < MOST_SOCKETS:
                    found.append(
                        {
                            "pids": sorted(set(owners[one.inode])),
                            "local": one.local,
                            "peer": one.peer,
                            "state": one.state,
                            "unsent": one.unsent,
                            "unread": one.unread,
                        }
                    )
    return found


def _whole(path: str) -> str:
    """A table of the kernel comes in pages: one read is not all."""
    if read_at(path, limit=1) is None:
        return ""
    parts, size = [], 0
    with contextlib.suppress(OSError), open(path, "rb") as file:
        while size < TABLE_BYTES and (part := file.read(1 << 20)):
            parts.append(part)
            size += len(part)
    return b"".join(parts).decode("ascii", "replace")


def findings(sockets: Sequence[Mapping[str, Any]], names: Mapping[int, str]) -> list[Evidence]:
    """What stands out among the sockets."""
    found: list[Evidence] = []
    calling = [one for one in sockets if one["state"] == "SYN_SENT"]
    found += [Evidence(f"{_who(one, names)} calls {one['peer']} and gets no answer (SYN_SENT)") for one in calling[:4]]
    listening = [one for one in sockets if one["state"] == "LISTEN"]
    for one in [one for one in listening if one["unread"] > 0][:4]:
        words = f"{_count(one['unread'], 'waits', 'wait')} to be accepted by {_who(one, names)} at {one['local']}"
        found.append(Evidence(words))
    full = [one for one in sockets if one["state"] != "LISTEN" and one["unread"] > 0]
    if full:
        most = max(full, key=lambda one: one["unread"])
        words = f"{_count(len(full), 'holds', 'hold')} data that nobody reads, the most that of {_who(most, names)}"
        found.append(Evidence(f"{words} from {most['peer']} ({most['unread']} bytes)"))
    closed = [one for one in sockets if one["state"] == "CLOSE_WAIT"]
    if closed:
        words = f"{_count(len(closed), 'was', 'were')} closed by the other side and not by {_who(closed[0], names)}"
        found.append(Evidence(words))
    return found


def _count(number: int, one: str, many: str) -> str:
    return f"1 connection {one}" if number == 1 else f"{number} connections {many}"


def _who(one: Mapping[str, Any], names: Mapping[int, str]) -> str:
    pid = one["pids"][0]
    return names.get(pid, f"pid {pid}")
