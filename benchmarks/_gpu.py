"""What the benchmarks on a GPU share: they say what is missing, and time without the host."""

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any


def stop_where_something_is_missing(packages: Sequence[str] = ()) -> None:
    """Ends the process, before anything is written, with all that the benchmark lacks here.

    Args:
        packages: What it imports beside jax; `torch` must see the GPU as well.
    """
    import importlib.util

    import jax

    missing = []
    if jax.default_backend() != "gpu":
        missing.append(f"a GPU: jax found {jax.default_backend()} alone")
    for package in packages:
        if importlib.util.find_spec(package) is None:
            missing.append(f"{package}: it is not installed")
        elif package == "torch" and not importlib.import_module("torch").cuda.is_available():
            missing.append("a GPU for torch: it has no CUDA, or finds no device")
    if missing:
        print("this benchmark has not run; it lacks " + "; ".join(missing), file=sys.stderr)
        sys.exit(1)


def median_seconds(run: Callable[[], Any], wait: Callable[[Any], Any], *, repeats: int) -> float:
    """Returns the time of a call, as the median of batches of calls that the device queues up.

    Args:
        run: The call; it may return before the device is done.
        wait: Waits for what `run` returned.
        repeats: How many calls are in a batch, of which there are five after one to warm up.
    """
    times = []
    for _ in range(6):
        start = time.perf_counter()
        for _ in range(repeats):
            result = run()
        wait(result)
        times.append((time.perf_counter() - start) / repeats)
    return statistics.median(times[1:])


def gpu() -> dict[str, str]:
    """Returns the GPU as jax names it, and the day."""
    import datetime

    import jax

    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    return {"gpu": jax.devices()[0].device_kind, "date": day}
