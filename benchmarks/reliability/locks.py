"""R15: of eight processes that want one directory exactly one gets it, also after a kill -9.

    python benchmarks/reliability/locks.py [RACES]

In each race eight processes ask at once for a lock; the others must name the one that has it. Then
it is killed, or stopped and asked past before it is killed, and the next race begins in the same
directory.

Its default form takes about 6 minutes on two cores.
"""

import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _result import record_promise

WORKER = Path(__file__).parents[2] / "tests/checkpoint/locking_worker.py"
Process = subprocess.Popen[str]


def start(lock: Path) -> Process:
    return subprocess.Popen(
        [sys.executable, str(WORKER), str(lock)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def line(process: Process) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def go(processes: list[Process]) -> list[str]:
    for one in processes:
        assert one.stdin is not None
        one.stdin.write("\n")
        one.stdin.flush()
    return [line(one) for one in processes]


def ready(lock: Path, count: int) -> list[Process]:
    processes = [start(lock) for _ in range(count)]
    assert [line(one) for one in processes] == ["ready"] * count
    return processes


def race(lock: Path, draw: random.Random) -> str | None:
    """Return what went wrong, None where all was well."""
    processes = ready(lock, 8)
    answers = go(processes)
    try:
        if answers.count("won") != 1:
            return f"{answers.count('won')} of 8 won"
        winner = processes[answers.index("won")]
        named = [f"pid {winner.pid} on" in answer for answer in answers if answer != "won"]
        if not all(named):
            return f"{named.count(False)} did not name the holder: {answers}"
        if draw.random() < 0.5:
            winner.send_signal(signal.SIGSTOP)
            late = ready(lock, 1)
            processes += late
            if go(late) == ["won"]:
                return "a stopped holder lost the lock"
        return None
    finally:
        for one in processes:
            one.kill()
            one.communicate()


def main() -> None:
    races = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    draw, started = random.Random(0), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        found = [race(Path(folder, "writer.lock"), draw) for _ in range(races)]
    problems = [one for one in found if one]
    outcome = f"{races - len(problems)} of {races} races of 8 had one winner, named by the others"
    print(outcome, problems)
    seconds = time.perf_counter() - started
    record_promise("R15", tries=races, outcome=outcome, seconds=seconds, problems=problems)
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
