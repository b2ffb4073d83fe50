"""How long a step takes: the compiler's cycles where it gives them, else a roofline.

`step = compute + kernels + collectives`. Compute is the estimated cycles, with loops counted, over
the clock; without them each instruction takes the longer of its FLOPs over the peak and its bytes
over the memory's bandwidth. Kernels that the compiler did not write take the same of theirs.
Collectives count where nothing runs under them: those that are started and awaited only where they
take longer than everything else together.
"""

from collections.abc import Sequence

import attrs

from axcore.aot.bytes_moved import bytes_moved
from axcore.aot.collectives import Collective
from axcore.aot.custom_kernels import CustomKernel
from axcore.aot.executions import Execution, executions
from axcore.aot.flops import Product, dtype_name, products
from axcore.aot.program import Program
from axcore.plugins import Hardware

CYCLES = "estimated_cycles"


@attrs.frozen(kw_only=True)
class Cost:
    """What a scheduled instruction takes in all its runs.

    Args:
        op_name: The scopes under which it was traced.
        flops: Of its products.
        nbytes: Moved in the device's memory.
        cycles: The compiler's estimate; 0 where there is none.
        seconds: By cycles or roofline; None where the hardware's figures are not known.
    """

    op_name: str
    flops: float
    nbytes: float
    cycles: int
    seconds: float | None


def costs(program: Program, hardware: Hardware) -> tuple[Cost, ...]:
    """Returns what each scheduled instruction takes."""
    ran = tuple(executions(program))
    has_cycles = any(one.instruction.number(CYCLES) for one in ran)
    return tuple(_cost(program, one, hardware, has_cycles=has_cycles) for one in ran)


def _cost(program: Program, one: Execution, hardware: Hardware, *, has_cycles: bool) -> Cost:
    made = tuple(products(program, one.instruction, one.computation))
    nbytes = bytes_moved(program, one.instruction, one.computation)
    cycles = one.instruction.number(CYCLES) or 0
    if has_cycles:
        seconds = cycles / hardware.clock_hz if hardware.clock_hz else None
    else:
        seconds = roofline_s(made, nbytes, hardware)
    return Cost(
        op_name=(made[0].op_name if made else "") or program.scopes(one.instruction),
        flops=sum(product.flops for product in made) * one.times,
        nbytes=float(nbytes * one.times),
        cycles=cycles * one.times,
        seconds=None if seconds is None else seconds * one.times,
    )


def roofline_s(made: Sequence[Product], nbytes: float, hardware: Hardware) -> float | None:
    """Returns the longer of the time of products and that of bytes; None without figures."""
    if hardware.memory_bandwidth is None or not hardware.peak_flops:
        return None
    multiplying = sum(product.flops / _peak(product.dtype, hardware) for product in made)
    return max(multiplying, nbytes / (hardware.memory_bandwidth / hardware.devices_per_chip))


def kernel_s(kernel: CustomKernel, hardware: Hardware) -> float | None:
    """Returns the time of a kernel that the compiler did not write."""
    product = Product(kernel.flops, kernel.dtype, kernel.op_name)
    return roofline_s((product,), kernel.nbytes, hardware)


def exposed_s(found: Sequence[Collective], busy_s: float, hardware: Hardware) -> float | None:
    """Returns how long a step waits for collectives.

    Args:
        found: The program's collectives.
        busy_s: How long everything else takes.
        hardware: What it runs on.
    """
    if hardware.num_devices == 1:
        return 0.0
    if hardware.interconnect_bandwidth is None:
        return None
    links = hardware.interconnect_bandwidth / hardware.devices_per_chip
    waited = sum(one.sent_bytes for one in found if not one.is_hidden) / links
    under = sum(one.sent_bytes for one in found if one.is_hidden) / links
    return waited + max(0.0, under - busy_s)


def _peak(dtype: str, hardware: Hardware) -> float:
    """Returns a device's peak; float32 runs as narrowly as JAX lets it by default."""
    name = dtype_name(dtype)
    wanted = ("tensorfloat32", "bfloat16") if name == "float32" else (name,)
    peaks = [hardware.peak_flops[one] for one in wanted if one in hardware.peak_flops]
    return (peaks or [max(hardware.peak_flops.values())])[0] / hardware.devices_per_chip


def misses_loops(mfu: float | None, num_unknown: int) -> bool:
    """Tells whether a step is predicted faster than its chips can be, for loops counted once.

    Args:
        mfu: Model FLOPs over the peak in the predicted time.
        num_unknown: Loops whose rounds could not be read off.
    """
    return num_unknown > 0 and mfu is not None and mfu > 1.0
