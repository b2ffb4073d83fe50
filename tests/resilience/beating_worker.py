"""A supervised process that makes steps and goes wrong as it is asked to; it needs no jax.

Arguments: a run directory, its index, the number of processes, steps to make, and faults as JSON,
each an index, a step, a name and the number of attempts in which it is triggered; files count them.
What a fault does is real. No process is a step ahead, as in a collective. The variable ATTEMPT, or
the coordinator's address, names the attempt. A file `enough` ends the run before its last step. A
standby worker notes its process in a file; the fault "spared" waits for those of all before it
kills, and "bereft" kills them, too.
"""

import ctypes
import json
import os
import signal
import sys
import time
from pathlib import Path

from axcore.resilience.heartbeat import connect_heartbeat
from axcore.resilience.standby_workers import StandbyControl

STEP_S = 0.02


def trigger(name, heartbeat, standby_workers):
    if name == "data_wait":
        heartbeat.report(phase="data_wait")
        time.sleep(3600)
    elif name == "save":
        heartbeat.report(phase="save")
        time.sleep(3600)
    elif name == "gil":
        ctypes.PyDLL(None).sleep(3600)  # a PyDLL holds the GIL in its calls
    elif name == "raise":
        raise ArithmeticError("a poisoned batch")
    elif name in ("spared", "bereft"):
        while not all(map(size_of, standby_workers)):
            time.sleep(STEP_S)
        doomed = [file.read_text() for file in standby_workers] if name == "bereft" else []
        for pid in (*doomed, os.getpid()):
            os.kill(int(pid), signal.SIGKILL)
    elif name.startswith("late"):
        time.sleep(0.5)  # after another process has said that it lost one
        sys.exit(int(name.removeprefix("late")))
    elif name.startswith("exit"):
        sys.exit(int(name.removeprefix("exit")))
    else:
        os.kill(os.getpid(), signal.Signals[name])
        time.sleep(1)  # another thread may be the one that takes the signal


def wait_for_others(folder, index, count, step, asked):
    """Returns when all processes of the attempt are at this step."""
    folder.mkdir(exist_ok=True)
    (folder / str(index)).write_text("x" * step)
    while any(size_of(folder / str(other)) < step for other in range(count)):
        time.sleep(STEP_S)
        if asked:
            sys.exit(130)


def note_process(path):
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{os.getpid()}\n")


def size_of(path):
    return path.stat().st_size if path.exists() else 0


def main():
    directory, index, count, steps, faults = sys.argv[1:6]  # an agent adds --dir
    if index == "-":  # as an agent says it
        index, count = os.environ["AXCORE_PROCESS_ID"], os.environ["AXCORE_NUM_PROCESSES"]
    heartbeat = connect_heartbeat()
    run = Path(directory)
    run.mkdir(exist_ok=True)
    standby_workers = [run / f"standby_{each}" for each in range(int(count))]
    StandbyControl(heartbeat).wait(lambda: note_process(standby_workers[int(index)]))
    attempt = os.environ.get("ATTEMPT") or os.environ["AXCORE_COORDINATOR"].replace(":", "_")
    (run / "config.txt").touch()
    asked = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: asked.append(1))
    print("ready", flush=True)
    for step in range(1, int(steps) + 1):
        heartbeat.report(step=step, phase="step")
        for at, when, name, times in json.loads(faults):
            triggered = run / f"struck_{at}_{when}_{name}"
            before = size_of(triggered)
            if (at, when) == (int(index), step) and before < times:
                triggered.write_text("x" * (before + 1))
                trigger(name, heartbeat, standby_workers)
        wait_for_others(run / attempt, int(index), int(count), step, asked)
        if (run / "enough").exists():
            (run / attempt / index).write_text("x" * int(steps))  # the others wait no more
            break
    (run / f"done_{index}").write_text(str(os.getpid()))


if __name__ == "__main__":
    main()
