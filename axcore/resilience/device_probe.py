"""`DeviceProbe`: how long each device of this process takes, alone, for the same small programs.

In a run every device waits in collectives for the slowest one, so the time of a step names none.
These programs talk to no other device: products of matrices for the speed of a chip's arithmetic,
passes over an array for that of its memory.
"""

import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding

from axcore.plugins import Hardware

PROGRAMS = ("compute", "memory")

# At the peak, which takes about twice as long in fact: long beside the tenth of a millisecond in
# which a host dispatches a program and hears of its end, and short beside a slice of a scheduler,
# so that some repeats are not interrupted on a busy host.
_PROGRAM_S = 1e-3
# One product: longer than what starts it.
_PRODUCT_S = 5e-5
# More than chips have of faster memory.
_ARRAY_BYTES = 256 * 2**20
_REPEATS, _MOST_REPEATS = 5, 20
_UNUSUAL = 1.1


@attrs.frozen
class ProbeWork:
    """What a device does in a probe.

    Args:
        size: Rows and columns of the matrices.
        products: How many are computed, one after the other.
        dtype: Of the matrices.
        array_bytes: Of the array that is read and written.
        passes: How often it is.
    """

    size: int
    products: int
    dtype: str
    array_bytes: int
    passes: int

    @classmethod
    def on(cls, hardware: Hardware) -> "ProbeWork":
        """Return work that takes a chip one or two milliseconds for each program.

        Where its peaks are unknown, as those of a host's own processor, it is a small fixed amount.
        """
        # By figures that all processes know, and not by a measurement: the same work for everyone
        # without a message, and no slow device that decides for all.
        dtype = "bfloat16" if "bfloat16" in hardware.peak_flops else "float32"
        flops = hardware.peak_flops.get(dtype)
        bandwidth = hardware.memory_bandwidth
        if flops is None or bandwidth is None:
            return cls(size=256, products=1, dtype="float32", array_bytes=2**20, passes=16)
        flops, bandwidth = (one / hardware.devices_per_chip for one in (flops, bandwidth))
        size = 2 ** int(np.log2((flops * _PRODUCT_S / 2) ** (1 / 3)))
        return cls(
            size=size,
            products=max(1, round(flops * _PROGRAM_S / (2 * size**3))),
            dtype=dtype,
            array_bytes=_ARRAY_BYTES,
            passes=max(1, round(bandwidth * _PROGRAM_S / (2 * _ARRAY_BYTES))),
        )

    def compute(self, one: jax.Array) -> jax.Array:
        """Multiply a matrix again and again; `one` keeps the compiler from knowing the values."""
        # The matrix of a cosine transform: it keeps the size of what it is multiplied with.
        half = jnp.arange(self.size, dtype=jnp.float32) + 0.5
        cosines = jnp.cos(jnp.pi / self.size * half[:, None] * half[None]) * one
        factor = (cosines * np.sqrt(2 / self.size)).astype(self.dtype)
        made: jax.Array = jax.lax.fori_loop(0, self.products, lambda _, x: x @ factor, factor)
        return made[0, 0]

    def memory(self, one: jax.Array) -> jax.Array:
        """Read and write an array again and again."""
        array = jnp.broadcast_to(one, (self.array_bytes // 4,))
        made: jax.Array = jax.lax.fori_loop(0, self.passes, lambda _, x: 0.5 * x + one, array)
        return made[0]


class DeviceProbe:
    """The programs of a probe, compiled for each device; making one runs nothing on them.

    Args:
        devices: Of this process.
        work: The same in all processes.
    """

    def __init__(self, devices: Sequence[jax.Device], work: ProbeWork) -> None:
        self._programs = [
            (device, [_compiled(made, device) for made in (work.compute, work.memory)])
            for device in devices
        ]
        self._last: deque[dict[int, list[float]]] = deque(maxlen=5)

    def seconds(self) -> dict[int, list[float]]:
        """Return each device's seconds for each of `PROGRAMS`, by its id; nothing else may run."""
        ones = {device: jax.device_put(np.float32(1), device) for device, _ in self._programs}
        for one in ones.values():
            one.block_until_ready()
        found: dict[int, list[float]] = {}
        # One device after the other: they would compete for the threads of their host, and its
        # interruptions would look like slowness. Rounds over all of them, so that an interruption
        # of some milliseconds spoils one repeat of a device and not all.
        for number in range(_MOST_REPEATS):
            for device, programs in self._programs:
                if number < _REPEATS or self._is_unusual(device, found[device.id]):
                    row = [_seconds(run, ones[device], device) for run in programs]
                    # The shortest: a host delays some repeats, a slow device is slow in each.
                    found[device.id] = [*map(min, row, found.get(device.id, row))]
        self._last.append(found)
        return found

    def _is_unusual(self, device: jax.Device, row: Sequence[float]) -> bool:
        """Whether a device takes longer than before, by chance unless more repeats say the same."""
        before = zip(*(one[device.id] for one in self._last), strict=True)
        return any(
            own > _UNUSUAL * statistics.median(times)
            for own, times in zip(row, before, strict=False)
        )


def _compiled(function: Callable[[jax.Array], jax.Array], device: jax.Device) -> Any:
    one = jax.ShapeDtypeStruct((), jnp.float32, sharding=SingleDeviceSharding(device))  # type: ignore[no-untyped-call]
    return jax.jit(function).lower(one).compile()


def _seconds(program: Any, one: jax.Array, device: jax.Device) -> float:
    began = time.perf_counter()
    for _ in range(_times(device)):
        made = program(one)
    made.block_until_ready()
    return time.perf_counter() - began


# -- Devices that are slow on purpose --------------------------------------------------------------


_slowed: dict[int, tuple[int, float]] = {}
"""How many times as much a device has to do, and until when, by its id."""


def slow_down(device: jax.Device, factor: int, seconds: float) -> None:
    """Let a device do so many times the work of each probe, for some seconds."""
    _slowed[device.id] = factor, time.monotonic() + seconds


def _times(device: jax.Device) -> int:
    factor, until = _slowed.get(device.id, (1, 0.0))
    return factor if time.monotonic() < until else 1
