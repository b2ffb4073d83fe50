"""What each rival of `tiny_peers.py` runs: one step at once, then as many as it is asked for.

Sizes, data and the optimizer's numbers are here, for rivals with and without jax. A line of JSON
says how the first step went; each line read from then on is a number of steps, answered by a line.
"""

import json
import os
import platform
import resource
import sys
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

import numpy as np

WORDS, DIM, LAYERS, HEADS, KEY_HEADS, HIDDEN = 264, 128, 4, 4, 2, 384
ROWS, TOKENS = 8, 128
WIDTH = DIM // HEADS
PRODUCTS = (
    *((DIM, HEADS * WIDTH), (DIM, KEY_HEADS * WIDTH), (DIM, KEY_HEADS * WIDTH), (DIM, DIM)),
    *((DIM, HIDDEN), (DIM, HIDDEN), (HIDDEN, DIM)),
)
"""Inputs and outputs of a layer's projections."""
RATE, WEIGHT_DECAY, BETAS, CLIP_NORM = 3e-4, 0.1, (0.9, 0.95), 1.0


def batch() -> tuple[Any, Any]:
    """Return tokens and targets `[ROWS, TOKENS]`, the same for every rival."""
    tokens = np.random.default_rng(0).integers(1, 256, (ROWS, TOKENS + 1))
    return tokens[:, :-1].astype(np.int32), tokens[:, 1:].astype(np.int32)


def use_one_core() -> None:
    """Keep this process to one core; call it before jax or torch count them."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def angles() -> Any:
    """Return the angles of rotary positions, `[TOKENS, WIDTH / 2]`."""
    speeds = 10_000.0 ** (-np.arange(0, WIDTH, 2) / WIDTH)
    return np.outer(np.arange(TOKENS), speeds).astype(np.float32)


def serve(step: Callable[[], float], *, num_params: int, packages: tuple[str, ...]) -> None:
    """Run steps as asked on stdin until it closes.

    Args:
        step: One step, which returns its loss when all of it is done.
        num_params: Of the model.
        packages: Whose versions are reported.
    """
    loss = step()
    _say(
        first_step_s=time.time() - float(os.environ["TINY_STARTED"]),
        first_loss=loss,
        num_params=num_params,
        versions={
            "python": platform.python_version(),
            **{name: version(name) for name in packages},
        },
    )
    for line in sys.stdin:
        times, loss = _timed(step, int(line))
        peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        _say(**times, loss=loss, peak_mib=peak_mib)


def serve_parts(parts: Mapping[str, Callable[[], Any]]) -> None:
    """Run parts of a step as asked on stdin, by name and how often, until it closes."""
    for part in parts.values():
        part()
    _say(parts=list(parts))
    for line in sys.stdin:
        name, times = line.split()
        _say(**_timed(parts[name], int(times))[0])


def _timed(call: Callable[[], Any], times: int) -> tuple[dict[str, float], Any]:
    began, used = time.perf_counter(), time.process_time()
    for _ in range(times):
        result = call()
    seconds, processor_s = time.perf_counter() - began, time.process_time() - used
    return {"seconds": seconds, "processor_s": processor_s}, result


def _say(**what: Any) -> None:
    print(json.dumps(what), flush=True)
