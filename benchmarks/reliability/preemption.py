"""R10: preemption ends a run of several processes at an agreed step, with a checkpoint, in time.

    python benchmarks/reliability/preemption.py --tries 10

Each try starts 2 or 4 processes that log hardly ever, asks one of them to stop at a random step, by
SIGTERM or by a notice file, and takes the time until it has ended.

Its default form takes about 13 minutes on two cores.
"""

import argparse
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _paths import TESTS
from _result import record_promise
from quick_flags import compile_cache
from several_processes import finish, start_all
from texts import write_text

WORKER = TESTS / "trainer" / "processes_worker.py"
GRACE_S = 30.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tries", type=int, default=20)
    options = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        found = [one_try(Path(scratch), index) for index in range(options.tries)]
    good = [seconds for is_good, seconds in found if is_good and seconds < GRACE_S]
    text = (
        f"{len(good)} of {len(found)} at one step with its checkpoint; slowest "
        f"{max(seconds for _, seconds in found):.1f} s of {GRACE_S:.0f} s"
    )
    seconds = time.monotonic() - began
    print(text, record_promise("R10", tries=len(found), outcome=text, seconds=seconds))
    sys.exit(len(good) != len(found))


def one_try(scratch: Path, index: int) -> tuple[bool, float]:
    """Return whether all processes ended at one saved step, and after how many seconds."""
    text, run = scratch / "text", scratch / f"run{index}"
    if not text.exists():
        write_text(text)
    count = (2, 4)[index % 2]
    notice = {"notice": str(scratch / f"notice{index}")} if index % 4 > 1 else {}
    rare = dict.fromkeys(("max_steps", "logging.every_steps", "checkpoint.every_steps"), 10**6)
    changes = {**rare, "mesh": {"data": count}, "preemption_notice": notice.get("notice", "")}
    asked = {"ask_at": random.randint(1, 200), "ask_in": str(random.randrange(count))}
    task: dict[str, Any] = {"text": str(text), "dir": str(run), "set": changes, "own": {}}
    cache = compile_cache(scratch / "compiled")
    processes = start_all(
        WORKER, json.dumps({**task, **asked, **notice}), count=count, environment=cache
    )
    ended = [finish(process, timeout_s=600) for process in processes]
    if any(one.exit_code for one in ended):
        print(ended, flush=True)
        return False, GRACE_S
    told = [json.loads(one.stdout.splitlines()[-1]) for one in ended]
    (seconds,) = told[int(asked["ask_in"])]["stopped_after_s"]
    step = told[0]["step"]
    is_saved = (run / f"checkpoints/step_{step:08d}/manifest.json").exists()
    print(f"{index + 1}: {count} processes, step {step}, {seconds:.1f} s", flush=True)
    return is_saved and {one["step"] for one in told} == {step}, seconds


if __name__ == "__main__":
    main()
