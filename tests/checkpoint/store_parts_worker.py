"""One of several processes with a disk of its own each; `test_store_parts.py` starts it.

Arguments: address, number of processes, index, checkpoint directory with `{process}` for the index,
what to do, and for which steps. It prints a line of JSON for each of them.
"""

import json
import sys

from processes_worker import restore, save_now, shardings  # noqa: F401

from axcore.checkpoint import Checkpointer
from axcore.distributed import TimeLimits, exit_process, join_processes
from axcore.errors import AxcoreError


def main():
    address, count, index, directory, task, *steps = sys.argv[1:]
    limits = TimeLimits(join_s=60, barrier_s=60, heartbeat_s=10)
    join_processes(address, process_count=int(count), process_index=int(index), limits=limits)
    cfg = Checkpointer.Config(tries=2, retry_after_s=0.1, keep=3)
    with cfg.build(directory=directory.replace("{process}", index)) as checkpoints:
        if task == "restore":
            print(json.dumps(restore(checkpoints, None)), flush=True)
        for step in map(int, steps):
            save_now(checkpoints, step)
            print(json.dumps({"saved": step}), flush=True)


if __name__ == "__main__":
    try:
        main()
    except AxcoreError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        exit_process(error.exit_code)
