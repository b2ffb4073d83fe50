"""How long from `kill -9` of a process to the next step: axcore beside other ways to recover.

    python benchmarks/reliability/recovery_peers.py --tries 20 --torch-python VENV/bin/python

All take turns in one run: each try starts a run of equally many processes, waits until all is
ready, kills a random one, and waits until all that live have made a step. torchft and
nvidia-resiliency-ext are left out without the Python of an environment that has them:
`pip install torch torchft numpy nvidia-resiliency-ext`.
A try of each system takes about four minutes on two cores.
"""

import argparse
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import _paths  # noqa: F401 - first
from _peers import (
    Try,
    kill_axcore,
    kill_nvrx_in_process,
    kill_nvrx_launcher,
    kill_orbax,
    kill_torchft,
)
from _record import hardware
from _result import record_promise

from axcore.module import count_params
from axcore.testing.tiny import small_experiment

LONGEST_WAIT_S = 3.0
README = ("--min_replicas=1", "--quorum_tick_ms=100", "--join_timeout_ms=10000")
"""The lighthouse's options in torchft's README; a replica is dead after 5 s without a heartbeat."""
SHORT = (
    "--min_replicas=2",
    "--quorum_tick_ms=100",
    "--join_timeout_ms=1000",
    "--heartbeat_timeout_ms=1000",
)
IN_EXAMPLE = {"interval_s": 1.0, "gloo_s": 10.0}
"""The wrapper's own intervals, and the time limit of collectives on CPU in its examples."""
QUICK = {"interval_s": 0.1, "gloo_s": 2.0}
WITH_TORCH = (
    "torchft",
    "torchft_readme",
    "nvrx_launcher",
    "nvrx_process",
    "nvrx_process_quick",
)
SKIPPED = "not measured: no --torch-python was given"


def peers(torch_python: Path | None) -> dict[str, Callable[[Try], dict[str, Any]]]:
    """Return what takes turns; another way to recover is another entry."""
    found: dict[str, Callable[[Try], dict[str, Any]]] = {
        "orbax": kill_orbax,
        "axcore": partial(kill_axcore, spares=False),
        "axcore_spares": partial(kill_axcore, spares=True),
    }
    if torch_python is not None:
        torchft = partial(kill_torchft, python=torch_python)
        found["torchft"] = partial(torchft, lighthouse=SHORT)
        found["torchft_readme"] = partial(torchft, lighthouse=README)
        found["nvrx_launcher"] = partial(kill_nvrx_launcher, python=torch_python)
        found["nvrx_process"] = partial(kill_nvrx_in_process, python=torch_python, **IN_EXAMPLE)
        found["nvrx_process_quick"] = partial(kill_nvrx_in_process, python=torch_python, **QUICK)
    return found


def main() -> None:
    """Measure, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tries", type=int, default=5, help="of each system")
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0, help="of the ranks to kill and the moments")
    parser.add_argument("--torch-python", type=Path, help="of an environment with torchft")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no run is left behind
    began = time.monotonic()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        tries = take_turns(given, Path(name))
        ours = {"parameters": parameters(Path(name))}
    systems = {name: summary(found) for name, found in tries.items()}
    for axcore in (one for name, one in systems.items() if name.startswith("axcore")):
        axcore.update(ours, bytes=12 * ours["parameters"])
    if given.torch_python is None:
        systems |= {name: {"skipped": SKIPPED} for name in WITH_TORCH}
    path = record_promise(
        "recovery_peers",
        tries=given.tries,
        outcome="; ".join(f"{name}: {described(one)}" for name, one in systems.items()),
        seconds=time.monotonic() - began,
        command=command(given),
        hardware=hardware(),
        torch_versions=torch_versions(given.torch_python),
        processes=given.processes,
        seed=given.seed,
        systems=systems,
    )
    print(path)


def command(given: argparse.Namespace) -> str:
    """Return the command of this run, without this machine's paths."""
    words = ["python", "benchmarks/reliability/recovery_peers.py", f"--tries {given.tries}"]
    words += [f"--processes {given.processes}", f"--seed {given.seed}"]
    return " ".join(words + ["--torch-python VENV/bin/python"] * (given.torch_python is not None))


def take_turns(given: argparse.Namespace, scratch: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the tries of each system; a try in which nothing came back has its reason."""
    draw = random.Random(given.seed)
    systems = peers(given.torch_python)
    tries: dict[str, list[dict[str, Any]]] = {name: [] for name in systems}
    for number in range(given.tries):
        rank, wait_s = draw.randrange(given.processes), draw.uniform(0, LONGEST_WAIT_S)
        for name, one_try in systems.items():
            load = os.getloadavg()[0]
            try:
                found = one_try(Try(scratch / name, number, given.processes, rank, wait_s))
            except OSError as error:  # a process that ended, or nothing in time
                found = {"failed": repr(error)}
            tries[name].append({"rank": rank, "load_average_1min": load, **found})
            print(name, tries[name][-1], flush=True)
    return tries


def summary(tries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of a system, and its tries."""
    size = {key: one.pop(key) for one in tries for key in ("parameters", "bytes") if key in one}
    times = {key: [one[key] for one in tries if key in one] for key in ("to_step_s", "back_s")}
    return {
        "came_back": len(times["to_step_s"]),
        **{f"median_{key}": statistics.median(some) for key, some in times.items() if some},
        **{f"longest_{key}": max(some) for key, some in times.items() if some},
        **size,
        "tries": tries,
    }


def described(system: dict[str, Any]) -> str:
    """Return a system's outcome in words."""
    if "skipped" in system:
        return str(system["skipped"])
    words = f"{system['came_back']} of {len(system['tries'])} came back"
    if "median_to_step_s" in system:
        words += f", next step after {system['median_to_step_s']:.1f} s in the median"
    if "median_back_s" in system:
        words += f", the killed replica's after {system['median_back_s']:.1f} s"
    return words


def parameters(scratch: Path) -> int:
    """Return how many parameters axcore's run trains."""
    return count_params(small_experiment(scratch / "text").model.build().param_specs())


def torch_versions(python: Path | None) -> dict[str, str]:
    """Return the versions in the environment of a Python."""
    if python is None:
        return {}
    names = ("torch", "torchft", "nvidia-resiliency-ext")
    code = f"from importlib.metadata import version; print(*map(version, {names}))"
    found = subprocess.run([python, "-c", code], stdout=subprocess.PIPE, check=True, text=True)
    return dict(zip(names, found.stdout.split(), strict=True))


if __name__ == "__main__":
    main()
