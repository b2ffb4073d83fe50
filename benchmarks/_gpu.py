"""What the benchmarks on a GPU share: contests, and results that grow with each of them."""

import json
import re
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import _record
import attrs
import jax
import jax.numpy as jnp
from _record import sources
from axl_gpu.detect import detect

Rivals = Mapping[str, Callable[..., Any]]
Figures = dict[str, Any]

OURS = "ours"
REPEATS, CALLS = 7, 10
"""Timings of each rival, in turn, and calls in each, which hide what it takes to start one."""


@attrs.frozen(kw_only=True)
class Contest:
    """Rivals for the same work.

    Args:
        name: Of the case.
        rivals: By name, functions of the arguments; our kernel is `ours`.
        arguments: What they are called with; shapes alone where there is no GPU.
        flops: Of one call, those of hidden pairs not counted.
        moved_bytes: What one call has to read and write.
    """

    name: str
    rivals: Rivals
    arguments: tuple[Any, ...]
    flops: float | None = None
    moved_bytes: float | None = None

    def compete(self) -> Figures:
        """Return time, speed and temporaries of each rival, or why it failed."""
        failures: dict[str, Figures] = {}
        programs = {}
        for name in sorted(self.rivals, key=lambda name: name == OURS):  # ours never ran: last
            try:
                programs[name] = jax.jit(self.rivals[name]).lower(*self.arguments).compile()
            except Exception as error:  # what compilers raise has no type in common
                failures[name] = failure(error)
        seconds = self._seconds(programs, failures)
        found = {
            name: {
                **self._speed(one),
                "temporaries_mib": round(temporaries_mib(programs[name]), 1),
            }
            for name, one in seconds.items()
        }
        return {
            "rivals": {**found, **failures},
            "ours_over_best_rival": ours_over_best_rival(seconds),
            **sources(),
        }

    def compile_for(self, device: Any) -> Figures:
        """Return the temporaries of each rival, compiled for a device that need not be here."""
        one = jax.sharding.SingleDeviceSharding(device)
        arguments = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=one), self.arguments
        )
        programs = {
            name: jax.jit(rival).lower(*arguments).compile() for name, rival in self.rivals.items()
        }
        return {
            "temporaries_mib": {
                name: round(temporaries_mib(program), 1) for name, program in programs.items()
            }
        }

    def trace(self) -> None:
        """Trace every rival, which needs no GPU."""
        for rival in self.rivals.values():
            jax.eval_shape(rival, *self.arguments)

    def _seconds(
        self, programs: Mapping[str, Callable[..., Any]], failures: dict[str, Figures]
    ) -> dict[str, float]:
        """Return the median time of each rival, run in turn; failures are added to `failures`.

        A kernel that breaks the device costs no other the turn that it had before.
        """
        times: dict[str, list[float]] = {name: [] for name in programs}
        for _ in range(REPEATS):
            for name in [one for one in programs if one not in failures]:
                try:
                    times[name].append(self._time(programs[name], is_first=not times[name]))
                except Exception as error:
                    failures[name] = failure(error)
                    if not device_answers():
                        return _medians(times, failures)
        return _medians(times, failures)

    def _time(self, program: Callable[..., Any], *, is_first: bool) -> float:
        if is_first:
            jax.block_until_ready(program(*self.arguments))
        start = time.perf_counter()
        jax.block_until_ready([program(*self.arguments) for _ in range(CALLS)])
        return (time.perf_counter() - start) / CALLS

    def _speed(self, seconds: float) -> Figures:
        figures = {"median_ms": round(1e3 * seconds, 4)}
        if self.flops is not None:
            figures["tflops_per_s"] = round(self.flops / seconds / 1e12, 1)
        if self.moved_bytes is not None:
            figures["gb_per_s"] = round(self.moved_bytes / seconds / 1e9, 1)
        return figures


def _medians(times: Mapping[str, list[float]], failures: Figures) -> dict[str, float]:
    return {
        name: statistics.median(found)
        for name, found in times.items()
        if found and name not in failures
    }


def ours_over_best_rival(seconds: Mapping[str, float]) -> float | None:
    """Return our time by the least of the others', None where there are not both."""
    others = [one for name, one in seconds.items() if name != OURS]
    if OURS not in seconds or not others:
        return None
    return round(seconds[OURS] / min(others), 3)


def failure(error: BaseException) -> Figures:
    """Return what is recorded of a rival that ended in an error."""
    lines = str(error).strip().splitlines() or ["it gave no reason"]
    return {"failed": f"{type(error).__name__}: {lines[0][:300]}"}


def device_answers() -> bool:
    """Return whether the device still computes: after a bad access it never does again."""
    try:
        return bool(jnp.ones(()) + 1 == 2)
    except jax.errors.JaxRuntimeError:
        return False


def temporaries_mib(program: Any) -> float:
    """Return what a compiled program takes in addition to arguments and results."""
    size: int = program.memory_analysis().temp_size_in_bytes
    return size / 2**20


def arrays(make: Callable[[], Any]) -> Any:
    """Return what `make` does on a GPU, its shapes where there is none."""
    return make() if jax.default_backend() == "gpu" else jax.eval_shape(make)


def normal(seed: int, *shape: int, dtype: Any = jnp.bfloat16) -> Any:
    """Return random numbers of that shape, or the shape where there is no GPU."""
    return arrays(lambda: jax.random.normal(jax.random.key(seed), shape).astype(dtype))


def median_seconds(run: Callable[[], Any], wait: Callable[[Any], Any], *, repeats: int) -> float:
    """Return the time of a call, as the median of batches of calls that the device queues up.

    Args:
        run: The call; it may return before the device is done.
        wait: Waits for what `run` returned.
        repeats: How many calls are in a batch, of which there are three after one to warm up.
    """
    times = []
    for _ in range(4):
        start = time.perf_counter()
        for _ in range(repeats):
            result = run()
        wait(result)
        times.append((time.perf_counter() - start) / repeats)
    return statistics.median(times[1:])


def results_name(subject: str, gpu: str) -> str:
    """Return the name of the file of a card's figures, so that no card writes over another's.

    >>> results_name("norm", "NVIDIA H100 80GB HBM3"), results_name("norm", "NVIDIA L40S")
    ('gpu_h100_norm', 'gpu_nvidia-l40s_norm')

    Args:
        subject: What was measured.
        gpu: The full name of the card, as its driver has it.
    """
    chip = detect("gpu", gpu) or re.sub(r"[^a-z0-9]+", "-", gpu.lower())
    return f"gpu_{chip}_{subject}"


def recorded(name: str, **card: Any) -> Figures:
    """Return the figures of `results/<name>.json`, to be added to; no others than of that card.

    Args:
        name: Of the file.
        card: What says which GPU the figures are of, and what else they must have in common.
    """
    file = _record.RESULTS / f"{name}.json"
    if not file.exists():
        return card
    figures: Figures = json.loads(file.read_text(encoding="utf-8"))["figures"]
    if any(figures.get(key) != value for key, value in card.items()):
        print(f"{file.name} begins again: what it held is not of {card}", flush=True)
        return card
    return figures
