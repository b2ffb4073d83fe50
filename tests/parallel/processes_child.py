"""One of several processes that tell one another things; `test_processes.py` starts it.

Arguments: address, number of processes, index, and what is to go wrong.
"""

import json
import sys
import time

from axcore.errors import AxcoreError, CheckpointError
from axcore.parallel import (
    TimeLimits,
    barrier,
    from_each,
    from_first,
    gather,
    is_first,
    join_processes,
    leave,
    process_count,
    process_index,
    share,
)
from axcore.parallel.processes import coordination_client


def tried(speak):
    try:
        return speak()
    except AxcoreError as error:
        return [type(error).__name__, error.what, error.where, error.mend]
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
        time.sleep(2 if process_index() == 1 else 0)
        told = tried(lambda: barrier("step 4"))
        barrier("after", limit_s=60)
        print(json.dumps(told))
        return
    refused = CheckpointError("no room", where="/disk", mend="make room")
    told = {
        "count": process_count(),
        "first": is_first(),
        "gathered": [gather("a", f"{index}{i}") for i in range(3)],
        "from first": [from_first("b", lambda: {"from": index}) for _ in range(2)],
        "shared": share(list(range(5))),
        "first refuses": tried(lambda: from_first("c", fail_in(0, refused))),
        "second refuses": tried(lambda: from_each("d", fail_in(1, refused))),
        "first breaks": tried(lambda: from_first("e", fail_in(0, OSError("disk")))),
        "second breaks": tried(lambda: from_each("f", fail_in(1, OSError("disk")))),
        "each": from_each("f", lambda: process_index() + 10),
    }
    for _ in range(20):
        from_first("g", lambda: "much")
        gather("h", "much")
    barrier("all are done")
    told["keys left"] = len(coordination_client().key_value_dir_get("axcore/"))
    print(json.dumps(told), flush=True)
    barrier("all have printed")
    if wrong == "leave":
        leave(7 if is_first() else 9)


if __name__ == "__main__":
    main()
