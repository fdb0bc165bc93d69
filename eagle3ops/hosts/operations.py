"""What can an agent be asked to do? The table of its ops."""

from eagle3ops.hosts import operations_events, operations_files, operations_host, operations_logs, operations_runs
from eagle3ops.hosts.operations_base import Operation

_ALL: tuple[Operation, ...] = (
    *operations_host.OPERATIONS,
    *operations_runs.OPERATIONS,
    *operations_events.OPERATIONS,
    *operations_logs.OPERATIONS,
    *operations_files.OPERATIONS,
)

OPERATIONS: dict[str, Operation] = {found.name: found for found in _ALL}

CONTROL = ("stop", "more")
"""Ops about another request; the agent itself carries them out."""

NAMES: tuple[str, ...] = (*OPERATIONS, *CONTROL)
