"""R4, R13, R14, R18: the tests that inject their faults, again and again.

    python benchmarks/reliability/again.py R4 --tries 20

Faults whose moment matters have scripts of their own, which choose it at random. Those of a full
disk, of a slow process, of a loop of crashes and of a ledger strike at a fixed place; what could
differ from one try to the next is how threads and processes interleave.

Its default form takes about 75 minutes on two cores.
"""

import argparse
import re
import subprocess
import sys
import time

from _paths import ROOT, TESTS
from _result import record_promise

FAULTS = {
    "R4": ("checkpoint/test_failing_disks.py",),
    "R13": ("resilience/test_stragglers.py",),
    "R14": ("resilience/test_supervisor.py", "trainer/test_not_finite.py"),
    "R18": ("resilience/test_goodput.py",),
}
"""Files of `tests` that hold each promise."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("promises", nargs="*", choices=[*FAULTS, []])
    parser.add_argument("--tries", type=int, default=20)
    options = parser.parse_args()
    outcomes = [repeat(name, options.tries) for name in options.promises or FAULTS]
    sys.exit(not all(outcomes))


def repeat(promise: str, tries: int) -> bool:
    """Run the tests of a promise so often; returns whether all passed each time."""
    began = time.monotonic()
    counts = [count_passed(promise) for _ in range(tries)]
    passed = [count for count in counts if count]
    text = f"{len(passed)} of {tries} rounds of {max(counts)} tests passed"
    seconds = time.monotonic() - began
    print(text, record_promise(promise, tries=tries, outcome=text, seconds=seconds), flush=True)
    return len(passed) == tries


def count_passed(promise: str) -> int:
    """Return how many tests passed; 0 where one did not, or was skipped."""
    files = [str(TESTS / file) for file in FAULTS[promise]]
    program = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *files]
    ran = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=False)
    summary = ran.stdout.splitlines()[-1]
    if ran.returncode or "skipped" in summary:
        print(ran.stdout[-4000:], flush=True)
        return 0
    (count,) = re.findall(r"(\d+) passed", summary)
    return int(count)


if __name__ == "__main__":
    main()
