"""What can an agent be asked to do? The table of its ops, from every room that has some."""

from eagle3ops.hosts.agent import (
    ops_events,
    ops_files,
    ops_forensics,
    ops_host,
    ops_incidents,
    ops_ledger,
    ops_logs,
    ops_merged,
    ops_processes,
    ops_runs,
    ops_spec,
)
from eagle3ops.hosts.agent.operation import Operation
from eagle3ops.outputs import ops_drafters, ops_patches, ops_training

_ALL: tuple[Operation, ...] = (
    *ops_host.OPERATIONS,
    *ops_runs.OPERATIONS,
    *ops_processes.OPERATIONS,
    *ops_spec.OPERATIONS,
    *ops_events.OPERATIONS,
    *ops_ledger.OPERATIONS,
    *ops_incidents.OPERATIONS,
    *ops_logs.OPERATIONS,
    *ops_merged.OPERATIONS,
    *ops_forensics.OPERATIONS,
    *ops_files.OPERATIONS,
    *ops_training.OPERATIONS,
    *ops_drafters.OPERATIONS,
    *ops_patches.OPERATIONS,
)

OPERATIONS: dict[str, Operation] = {found.name: found for found in _ALL}
