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
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import numpy as np

WORDS, DIM, LAYERS, HEADS, KEY_HEADS, HIDDEN = 264, 128, 4, 4, 2, 384
ROWS, TOKENS = 8, 128
WIDTH = DIM // HEADS
RATE, WEIGHT_DECAY, BETAS, CLIP_NORM = 3e-4, 0.1, (0.9, 0.95), 1.0


def batch() -> tuple[Any, Any]:
    """Returns tokens and targets `[ROWS, TOKENS]`, the same for every rival."""
    tokens = np.random.default_rng(0).integers(1, 256, (ROWS, TOKENS + 1))
    return tokens[:, :-1].astype(np.int32), tokens[:, 1:].astype(np.int32)


def angles() -> Any:
    """Returns the angles of rotary positions, `[TOKENS, WIDTH / 2]`."""
    speeds = 10_000.0 ** (-np.arange(0, WIDTH, 2) / WIDTH)
    return np.outer(np.arange(TOKENS), speeds).astype(np.float32)


def serve(step: Callable[[], float], *, num_params: int, packages: tuple[str, ...]) -> None:
    """Runs steps as asked on stdin until it closes.

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
        began, used = time.perf_counter(), time.process_time()
        for _ in range(int(line)):
            loss = step()
        _say(
            seconds=time.perf_counter() - began,
            processor_s=time.process_time() - used,
            loss=loss,
            peak_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        )


def _say(**what: Any) -> None:
    print(json.dumps(what), flush=True)
