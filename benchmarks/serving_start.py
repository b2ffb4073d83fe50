"""How long `axcore serve` takes until it answers, with no compiled programs at hand and with all.

A run of `tiny` of a few steps is served by a process of its own; it has answered when the text of a
completion is there. Processor time is that of the process until then, of all its threads: it says
the same on a busy machine. The process ends when its log says that all programs are compiled, so
that the next one finds all of them. `--before` names a checkout of an older version, which takes
turns. Goal: 8 s with nothing compiled, on two cores.

    python benchmarks/serving_start.py [--before CHECKOUT] [--rounds 3]
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _record import REPOSITORY, record

BODY = {"prompt": "def ", "max_tokens": 8, "temperature": 0}
GOAL_S = 8
LONGEST_S = 900
ALL_COMPILED = "all programs are compiled"


def train(folder: Path, checkout: Path) -> Path:
    """Return a run that a version trained for a few steps."""
    run = folder / "tiny"
    command = ["train", "tiny", "--dir", str(run), "--set", "max_steps=60"]
    subprocess.run(
        [sys.executable, "-m", "axcore", *command, "--set", "eval_every_steps=60"],
        env=_environment(checkout, folder),
        cwd=checkout,  # `-m` looks there first
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return run


def start(run: Path, checkout: Path, cache: Path) -> dict[str, float]:
    """Return how long a server takes from its start to its first answer, and to all programs."""
    started = time.perf_counter()
    log = cache / "stderr.txt"
    with serving(run, checkout, cache, log=log) as server:
        assert server.stdout is not None
        line = server.stdout.readline()
        url = next((word for word in line.split() if word.startswith("http")), None)
        if url is None:
            raise RuntimeError(f"the server did not start: {line}{log.read_text()}")
        sent = urllib.request.Request(
            url + "v1/completions",
            data=json.dumps(BODY).encode(),
            headers={"content-type": "application/json"},
        )
        with urllib.request.urlopen(sent, timeout=LONGEST_S) as reply:
            assert json.load(reply)["choices"]
        first_s, processor_s = time.perf_counter() - started, processor_seconds(server.pid)
        while ALL_COMPILED not in log.read_text():
            if server.poll() is not None or time.perf_counter() - started > LONGEST_S:
                raise RuntimeError(f"never said {ALL_COMPILED!r}: {log.read_text()}")
            time.sleep(0.02)
        all_s = time.perf_counter() - started
    return {
        "in_all_s": round(first_s, 2),
        "processor_s": round(processor_s, 2),
        "all_compiled_s": round(all_s, 2),
    }


@contextlib.contextmanager
def serving(
    run: Path, checkout: Path, cache: Path, *, log: Path
) -> Iterator["subprocess.Popen[str]"]:
    """Yield a process that serves a run, and end it."""
    with log.open("w") as errors:
        server = subprocess.Popen(
            [sys.executable, "-m", "axcore", "serve", str(run), "--port", "0"],
            env=_environment(checkout, cache),
            cwd=checkout,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    with server:
        try:
            yield server
        finally:
            server.kill()


def processor_seconds(pid: int) -> float:
    """Return the processor time of a process so far, of all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    ticks: int = os.sysconf("SC_CLK_TCK")
    return sum(int(one) for one in fields[11:13]) / ticks


def measure(folder: Path, checkouts: dict[str, Path], rounds: int) -> dict[str, Any]:
    """Return the medians of each version, in turns: first with nothing compiled, then with all."""
    found: dict[str, dict[str, list[dict[str, float]]]] = {
        name: {"nothing_compiled": [], "compiled_before": []} for name in checkouts
    }
    runs = {name: train(folder / name, checkout) for name, checkout in checkouts.items()}
    for _ in range(rounds):
        for name, checkout in checkouts.items():
            with tempfile.TemporaryDirectory() as cache:
                for when, times in found[name].items():
                    times.append(start(runs[name], checkout, Path(cache)))
                    print(name, when, times[-1], flush=True)
    return {
        name: {when: _medians(times) for when, times in parts.items()}
        for name, parts in found.items()
    }


def _medians(times: list[dict[str, float]]) -> dict[str, float]:
    return {name: round(statistics.median(one[name] for one in times), 2) for name in times[0]}


def _environment(checkout: Path, cache: Path) -> dict[str, str]:
    return {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(checkout),
        "XDG_CACHE_HOME": str(cache),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, help="a checkout of an older version")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    checkouts = {"now": REPOSITORY}
    if given.before is not None:
        checkouts["before"] = given.before.resolve()
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(Path(folder), checkouts, given.rounds)
    print("written to", record("serving_start", {"goal_s": GOAL_S, **figures}))


if __name__ == "__main__":
    main()
