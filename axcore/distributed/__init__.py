"""Several processes: joining them, host collectives between them, and leaving."""

from axcore.distributed.host_collectives import (
    all_gather_object,
    all_gather_str,
    barrier,
    broadcast_object,
    decide_together,
    gather_object,
)
from axcore.distributed.message_tree import MessageTree
from axcore.distributed.processes import (
    TimeLimits,
    end_waits,
    exit_process,
    is_process_zero,
    join_processes,
    leave_processes,
    naming_lost_processes,
    on_leaving,
    process_count,
    process_index,
    reachable_host,
    shard_for_process,
    time_limits,
)

__all__ = [
    "MessageTree",
    "TimeLimits",
    "all_gather_object",
    "all_gather_str",
    "barrier",
    "broadcast_object",
    "decide_together",
    "end_waits",
    "exit_process",
    "gather_object",
    "is_process_zero",
    "join_processes",
    "leave_processes",
    "naming_lost_processes",
    "on_leaving",
    "process_count",
    "process_index",
    "reachable_host",
    "shard_for_process",
    "time_limits",
]
