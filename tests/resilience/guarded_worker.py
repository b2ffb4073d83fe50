"""One process of a run of several in which process 1 sleeps at each step.

Arguments: address, number of processes, index, and a folder. It prints the warnings that it saw.
"""

import json
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from guarded_run import guarded_config

from axcore.config import update_config
from axcore.distributed import TimeLimits, join_processes
from axcore.resilience.faults import FaultPlan, SlowStep
from axcore.resilience.stragglers import StragglerCheck


def main():
    address, count, index, folder = sys.argv[1:]
    limits = TimeLimits(join_s=60, barrier_s=60, heartbeat_s=20)
    join_processes(address, process_count=int(count), process_index=int(index), limits=limits)
    slow = SlowStep(at_step=1, process=1, seconds=2.0, times=1000)
    guards = (FaultPlan.Config(faults=(slow,)), StragglerCheck.Config(patience=2))
    cfg = guarded_config(Path(folder) / "text", *guards, **{"logging.every_steps": 2}, max_steps=8)
    cfg = update_config(cfg, {"data.batch_size": 12})
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        cfg.build().run(Path(folder) / "run", quiet=True)
    named = [str(one.message) for one in seen if "waiting" in str(one.message)]
    print(json.dumps({"warnings": named}))


if __name__ == "__main__":
    main()
