"""Runs compiled rivals in turn, so that whatever disturbs the machine disturbs all of them."""

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax


def race(
    rivals: Mapping[str, Callable[..., Any]], *arguments: Any, repeats: int = 5
) -> dict[str, dict[str, float]]:
    """Return time, processor time and temporaries of each rival, compiled for `arguments`.

    Times are in seconds over `repeats` turns after one to warm up.
    """
    programs = {name: jax.jit(rival).lower(*arguments).compile() for name, rival in rivals.items()}
    times_s: dict[str, list[float]] = {name: [] for name in programs}
    processor_s: dict[str, list[float]] = {name: [] for name in programs}
    for turn in range(repeats + 1):
        for name, program in programs.items():
            start, used = time.perf_counter(), time.process_time()
            jax.block_until_ready(program(*arguments))
            if turn > 0:
                times_s[name].append(time.perf_counter() - start)
                processor_s[name].append(time.process_time() - used)
    return {
        name: {
            "median_s": round(statistics.median(times_s[name]), 4),
            "min_s": round(min(times_s[name]), 4),
            "processor_s": round(min(processor_s[name]), 4),
            "temporaries_mib": round(program.memory_analysis().temp_size_in_bytes / 2**20, 1),
        }
        for name, program in programs.items()
    }


def ratios(
    measured: Mapping[str, Mapping[str, float]], *, ours: str, rival: str
) -> dict[str, float]:
    """Return ours over the rival's: below 1 is better."""
    return {
        "median_time": round(measured[ours]["median_s"] / measured[rival]["median_s"], 3),
        "min_time": round(measured[ours]["min_s"] / measured[rival]["min_s"], 3),
        "processor_time": round(measured[ours]["processor_s"] / measured[rival]["processor_s"], 3),
        "temporaries": round(
            measured[ours]["temporaries_mib"] / measured[rival]["temporaries_mib"], 4
        ),
    }
