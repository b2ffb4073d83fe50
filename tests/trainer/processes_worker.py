"""One process of a run of several; `test_processes.py` starts it.

Arguments: address, number of processes, index, and a JSON object of what to do. It trains for some
steps and prints what it saw as JSON.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import jax
from training_worker import config_of

from axcore.config import update_config
from axcore.distributed import TimeLimits, exit_process, join_processes
from axcore.errors import AxcoreError
from axcore.trainer import PhaseStarted, StepsDone, stop_signals


def main():
    address, count, index, text = sys.argv[1:]
    task = json.loads(text)
    os.chdir(task.get("cwd", ".").format(index=index))
    limits = TimeLimits(join_s=60, barrier_s=60, heartbeat_s=20)
    join_processes(address, process_count=int(count), process_index=int(index), limits=limits)
    seen, asked_at = [], []
    if "stop_at" in task:
        stop_signals.AGREE_EVERY_S = 0  # so that they stop at that very step

    def watch(event):
        if isinstance(event, PhaseStarted):
            watch_phase(event)
        else:
            seen.append(type(event).__name__)
        for name, number in (("stop", signal.SIGTERM), ("kill", signal.SIGKILL)):
            is_due = isinstance(event, StepsDone) and event.step == task.get(f"{name}_at")
            if is_due and int(index) == task[f"{name}_in"]:
                os.kill(os.getpid(), number)

    def watch_phase(event):
        """Asks this process to stop when so many steps have begun, as a scheduler does."""
        watch_phase.steps += event.label == "step"
        if "freeze_in" in task and event.label == "step":
            print("in its first step", flush=True)
            if int(index) == task["freeze_in"]:
                os.kill(os.getpid(), signal.SIGSTOP)
        if watch_phase.steps == task.get("ask_at") and index == task["ask_in"] and not asked_at:
            asked_at.append(time.monotonic())
            if "notice" in task:
                Path(task["notice"]).touch()
            else:
                os.kill(os.getpid(), signal.SIGTERM)

    watch_phase.steps = 0
    watch.sees_phases = True
    own = task["own"].get(index, {})
    cfg = update_config(config_of(task["text"]), {"data.seq_len": 32, **task["set"], **own})
    trainer = cfg.build()
    result = trainer.run(
        task["dir"].format(index=index), [watch], quiet=True, returns_when_stopped=True
    )
    shard = trainer.batch_sharding.shard
    told = {"step": result.step, "validation": result.validation, "events": seen}
    told["stopped_after_s"] = [time.monotonic() - asked for asked in asked_at]
    print(json.dumps({**told, "share": [shard.index, shard.count], "devices": jax.device_count()}))


if __name__ == "__main__":
    try:
        main()
    except AxcoreError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        exit_process(error.exit_code)
