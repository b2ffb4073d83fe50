"""One of several processes that exchange values; `test_processes.py` starts it.

Arguments: address, number of processes, index, and what is to go wrong.
"""

import json
import sys

from axcore.distributed import (
    TimeLimits,
    all_gather_object,
    all_gather_str,
    barrier,
    broadcast_object,
    exit_process,
    is_process_zero,
    join_processes,
    process_count,
    process_index,
    shard_for_process,
)
from axcore.distributed.processes import coordination_client
from axcore.errors import AxcoreError, CheckpointError


def tried(speak):
    try:
        return speak()
    except AxcoreError as error:
        return [type(error).__name__, error.what, error.where, error.hint]
    except OSError as error:
        return ["as it is", str(error)]


def fail_in(index, error):
    def make():
        if process_index() == index:
            raise error
        return process_index()

    return make


def main():
    address, count, index, wrong = sys.argv[1:]
    limits = TimeLimits(join_s=60, barrier_s=1.0 if wrong == "late" else 60, heartbeat_s=20)
    join_processes(address, process_count=int(count), process_index=int(index), limits=limits)
    if wrong == "late":
        barrier("first", limit_s=60)
        if process_index() == 1:
            barrier("the others have given up", limit_s=60)
        told = tried(lambda: barrier("step 4"))
        if process_index() == 0:
            barrier("the others have given up", limit_s=60)
        barrier("after", limit_s=60)
        print(json.dumps(told))
        return
    refused = CheckpointError("no room", where="/disk", hint="make room")
    told = {
        "count": process_count(),
        "first": is_process_zero(),
        "gathered": [all_gather_str("a", f"{index}{i}") for i in range(3)],
        "from first": [broadcast_object("b", lambda: {"from": index}) for _ in range(2)],
        "shared": shard_for_process(list(range(5))),
        "first refuses": tried(lambda: broadcast_object("c", fail_in(0, refused))),
        "second refuses": tried(lambda: all_gather_object("d", fail_in(1, refused))),
        "first breaks": tried(lambda: broadcast_object("e", fail_in(0, OSError("disk")))),
        "second breaks": tried(lambda: all_gather_object("f", fail_in(1, OSError("disk")))),
        "each": all_gather_object("f", lambda: process_index() + 10),
    }
    for _ in range(20):
        broadcast_object("g", lambda: "much")
        all_gather_str("h", "much")
    barrier("all are done")
    told["keys left"] = len(coordination_client().key_value_dir_get("axcore/"))
    print(json.dumps(told), flush=True)
    barrier("all have printed")
    if wrong == "leave":
        exit_process(7 if is_process_zero() else 9)


if __name__ == "__main__":
    main()
