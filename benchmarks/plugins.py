"""What plugins cost: discovery, import, `axcore plugins`, and the choice of a kernel.

Each figure is the median of several fresh interpreters, but for the kernel choice, which is the
median of many choices in one, after the first.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _record import record

from axcore.testing import make_dist

NUM_DISTRIBUTIONS = 400
ROUNDS = 9
GOALS = {
    "discovery_of_400_ms": 15.0,
    "axcore_plugins_ms": 350.0,
    "import_of_four_plugins_ms": 40.0,
    "kernel_choice_us": 50.0,
}

DISCOVERY = """
import sys, time
from axcore.plugins.discovery import discover
from importlib.metadata import distributions
started = time.perf_counter()
found = discover()
took = time.perf_counter() - started
print(1e3 * took, len(found), len(list(distributions())))
"""

IMPORTS = """
import sys
from axcore.plugins import load_host
host = load_host({})
loaded = [plugin for plugin in host.plugins() if plugin.name != "core"]
assert all(plugin.state == "loaded" for plugin in loaded) and len(loaded) >= 4
assert "jax" not in sys.modules
print(1e3 * sum(plugin.import_time_s for plugin in loaded), len(loaded))
"""

CHOICE = """
import statistics, time
import jax.numpy as jnp
from axcore.ops import AttentionInputs, AttentionSpec, KernelPolicy, choose, use_policy
from axcore.ops.attention.op import ATTENTION_OP
from axcore.ops.plan import choose_and_record
from axcore.plugins import Hardware

q = jnp.zeros((2, 256, 4, 64), jnp.bfloat16)
call = ATTENTION_OP.call(AttentionInputs(q, q, q), AttentionSpec(scale=1.0, right=0), lse=False)
policy = KernelPolicy(hardware=Hardware.parse("cpu-8"))
times = []
with use_policy(policy):
    for _ in range(2000):
        started = time.perf_counter()
        choose_and_record(call)
        times.append(time.perf_counter() - started)
print(1e6 * times[0], 1e6 * statistics.median(times[1:]))
"""


def main() -> None:
    """Measure, prints and record."""
    with tempfile.TemporaryDirectory() as folder:
        crowd(Path(folder))
        discovery = [numbers(DISCOVERY, PYTHONPATH=folder) for _ in range(ROUNDS)]
    imports = [numbers(IMPORTS) for _ in range(ROUNDS)]
    first_us, choice_us = numbers(CHOICE)
    figures = {
        "discovery_of_400_ms": statistics.median(one[0] for one in discovery),
        "distributions": discovery[0][2],
        "axcore_plugins_ms": statistics.median(command("plugins") for _ in range(ROUNDS)),
        "empty_interpreter_ms": statistics.median(interpreter() for _ in range(ROUNDS)),
        "import_of_four_plugins_ms": statistics.median(one[0] for one in imports),
        "first_kernel_choice_us": first_us,
        "kernel_choice_us": choice_us,
    }
    figures = {name: round(value, 2) for name, value in figures.items()}
    for name, value in figures.items():
        print(f"{name:28} {value:10}   {f'goal: under {GOALS[name]}' if name in GOALS else ''}")
    print(record("plugins", {**figures, "goals": GOALS}))


def crowd(folder: Path) -> None:
    """Install distributions into a folder; one in a hundred brings a plugin."""
    for number in range(NUM_DISTRIBUTIONS):
        name = f"dist-{number}"
        package = make_dist(folder, name, "")
        if number % 100:
            info = folder / f"{package.name}-1.0.dist-info" / "entry_points.txt"
            info.write_text(f"[console_scripts]\n{name} = {package.name}:main\n")


def numbers(program: str, **environment: str) -> list[float]:
    """Return the numbers that a program prints in an interpreter of its own."""
    ran = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu", **environment},
    )
    return [float(word) for word in ran.stdout.split()]


def command(*arguments: str) -> float:
    """Return how many milliseconds a command of axcore takes in all."""
    started = time.perf_counter()
    axcore = [str(Path(sys.executable).parent / "axcore"), *arguments, "--json"]
    ran = subprocess.run(axcore, capture_output=True, text=True, check=True)
    took = time.perf_counter() - started
    assert json.loads(ran.stdout)
    return 1e3 * took


def interpreter() -> float:
    """Return how many milliseconds it takes to start Python and do nothing."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", ""], check=True)
    return 1e3 * (time.perf_counter() - started)


if __name__ == "__main__":
    main()
