"""One process of a run of several in which the last device of process 1 is slow.

Arguments: address, number of processes, index, and a folder. It prints the id of its last device.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import jax
from guarded_run import guarded_config

from axcore.distributed import TimeLimits, join_processes
from axcore.resilience.faults import FaultPlan, SlowDevice
from axcore.resilience.stragglers import StragglerCheck


class EagerCheck(StragglerCheck):
    """One that waits for the probe to be compiled."""

    def on_start(self, trainer, directory):
        super().on_start(trainer, directory)
        self._probe.result()


def main():
    address, count, index, folder = sys.argv[1:]
    limits = TimeLimits(join_s=60, barrier_s=60, heartbeat_s=20)
    join_processes(address, process_count=int(count), process_index=int(index), limits=limits)
    # Together: four devices of two processes, which probe at the same time, have two cores.
    slow = SlowDevice(at_step=1, process=1, device=1, factor=8)
    check = EagerCheck.Config(patience=3, device_ratio=3.0, device_share=1e9)
    guards = (FaultPlan.Config(faults=(slow,)), check)
    guarded_config(Path(folder) / "text", *guards, max_steps=10).build().run(
        Path(folder) / "run", quiet=True
    )
    print(json.dumps({"slow": max(device.id for device in jax.local_devices())}))


if __name__ == "__main__":
    main()
