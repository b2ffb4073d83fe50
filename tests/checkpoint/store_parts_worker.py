"""One of several processes with a disk of its own each; `test_store_parts.py` starts it.

Arguments: address, number of processes, index, checkpoint directory with `{process}` for the index,
JSON of what to do, and for which steps. It prints a line of JSON for each of them.
"""

import json
import os
import sys
import warnings
from pathlib import Path

import numpy as np
from processes_worker import error_of, restore, save_now, template, values_of
from saving_worker import die_before

from axcore.checkpoint import Checkpointer, manifest, single_replica
from axcore.distributed import TimeLimits, exit_process, join_processes
from axcore.errors import AxcoreError


def tell(**found):
    print(json.dumps(found), flush=True)


def load(checkpoints, step):
    """Loads leaf by leaf, as initial weights are; says whether all was right."""
    checkpoints.verify_or_replace(step)
    w = checkpoints.load(step, {"w": template()["w"]})["w"]
    number = checkpoints.load(step, {"step": template()["step"]})["step"]
    shards = [(one.data, values_of(step)[one.index]) for one in w.addressable_shards]
    shards += [(one.data, step) for one in number.addressable_shards]
    return {"loaded": all(np.array_equal(*pair) for pair in shards)}


def main():
    address, count, index, directory, task, *steps = sys.argv[1:]
    task = json.loads(task)
    limits = TimeLimits(join_s=60, barrier_s=60, heartbeat_s=10)
    join_processes(address, process_count=int(count), process_index=int(index), limits=limits)
    place = directory.replace("{process}", index)
    manifest.PIECE_BYTES = task.get("piece bytes", manifest.PIECE_BYTES)
    single_replica._ROUND_BYTES = task.get("round bytes", single_replica._ROUND_BYTES)
    os.environ["AWS_SDK_UA_APP_ID"] = f"process-{index}"
    cfg = Checkpointer.Config(
        tries=2, retry_after_s=0.1, keep=task.get("keep", 3),
        single_replica_restore=task.get("single replica", False),
    )  # fmt: skip
    with cfg.build(directory=place) as checkpoints:
        if task.get("dies at") == "restore" and int(index) == task["who"]:
            die_before(*task["before"])
        if task.get("restores"):
            tell(**restore(checkpoints, None))
        if "loads" in task:
            tell(**load(checkpoints, task["loads"]))
        for step in map(int, steps):
            # After the first step, whose names end alike.
            if step == task.get("dies at") and int(index) == task["who"]:
                die_before(*task["before"])
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                error = error_of(lambda step=step: save_now(checkpoints, step))
            staging = Path(place.partition("?staging=")[2])
            tell(
                step=step,
                error=error,
                steps=checkpoints.steps(),
                warnings=[str(one.message) for one in caught],
                left=[path.name for path in staging.iterdir()],
            )


if __name__ == "__main__":
    try:
        main()
    except AxcoreError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        exit_process(error.exit_code)
