"""A compiled step's memory on one device: the compiler's totals, and what they are made of."""

import math
import re
from collections import Counter
from typing import Any

import attrs
import jax

from axcore.aot.hlo.buffers import Buffer, MemoryPeak
from axcore.aot.hlo.program import ModuleNames
from axcore.aot.report.report import LargeBuffer, Memory
from axcore.plugins import Hardware

_RESERVED_FRACTION = 0.02
"""Share of a chip's nominal memory that drivers keep for themselves."""

_NUM_LARGEST = 10

_NEEDED = re.compile(
    r"temporaries \((?P<size>[\d.]+)(?P<unit>[KMGT])\) exceeds available HBM"
    r"|Used (?P<used>[\d.]+)(?P<used_unit>[KMGT]) of \S+ hbm"
)
"""What compilers say that a refused program needs in all. The first form speaks of temporaries, but
it counts arguments and results: a sum over an argument of 20 GiB was refused with 20.00G."""

_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def capacity_bytes(hardware: Hardware) -> int | None:
    """Return the bytes that a program can have of a device's memory, None where unknown."""
    if hardware.memory_bytes is None:
        return None
    return int(hardware.memory_bytes * (1 - _RESERVED_FRACTION)) // hardware.devices_per_chip


def measured_memory(stats: Any, trainer: Any, peak: MemoryPeak, names: ModuleNames) -> Memory:
    """Return a program's memory.

    Args:
        stats: The compiler's memory statistics of the program.
        trainer: Whose step was compiled.
        peak: The buffers alive where most are.
        names: Names modules by scopes.
    """
    state = trainer.compiler.abstract_state()
    arguments = stats.argument_size_in_bytes
    parameters, optimizer = bytes_on_a_device(state.model), bytes_on_a_device(state.opt_state)
    results = stats.output_size_in_bytes - stats.alias_size_in_bytes
    program = stats.generated_code_size_in_bytes
    temporaries = stats.temp_size_in_bytes
    return Memory(
        capacity_bytes=capacity_bytes(trainer.hardware),
        peak_bytes=arguments + results + temporaries + program,
        parameters_bytes=parameters,
        optimizer_bytes=optimizer,
        batch_bytes=max(0, arguments - parameters - optimizer) + results,
        temporaries_bytes=temporaries,
        activations_bytes=sum(one.nbytes for one in peak.buffers if _is_kept(one)),
        program_bytes=program,
        host_bytes=stats.host_temp_size_in_bytes + stats.host_argument_size_in_bytes,
        largest=_largest(peak, names),
    )


def _largest(peak: MemoryPeak, names: ModuleNames) -> tuple[LargeBuffer, ...]:
    """Return buffers, those alike as one, and what takes most together first."""
    counts = Counter(
        LargeBuffer(
            nbytes=one.nbytes,
            shape=str(one.shape),
            module=names(one.op_name),
            is_activation=_is_kept(one),
        )
        for one in peak.buffers
    )
    alike = [attrs.evolve(one, count=count) for one, count in counts.items()]
    return tuple(sorted(alike, key=lambda one: -one.nbytes * one.count)[:_NUM_LARGEST])


def needed_bytes(refusal: str) -> int | None:
    """Return what a refused program needs in all; None where the compiler names no total."""
    found = _NEEDED.search(refusal)
    if found is None:
        return None
    size, unit = found["size"] or found["used"], found["unit"] or found["used_unit"]
    return int(float(size) * _UNITS[unit])


def memory_from_oom_error(refusal: str, trainer: Any) -> Memory | None:
    """Return the memory of a program that a compiler refuses; None where it names no total.

    The total contains arguments, results and temporaries, so what is not state and no batch of it
    is temporaries, the program among them.
    """
    needed = needed_bytes(refusal)
    if needed is None:
        return None
    state = trainer.compiler.abstract_state()
    parameters, optimizer = bytes_on_a_device(state.model), bytes_on_a_device(state.opt_state)
    batch = bytes_on_a_device(trainer.batch_sharding.abstract())
    return Memory(
        capacity_bytes=capacity_bytes(trainer.hardware),
        peak_bytes=needed,
        parameters_bytes=parameters,
        optimizer_bytes=optimizer,
        batch_bytes=batch,
        temporaries_bytes=max(0, needed - parameters - optimizer - batch),
    )


def _is_kept(buffer: Buffer) -> bool:
    """Return whether the forward pass makes a buffer that the backward pass reads."""
    is_forward = "jvp(" in buffer.op_name and "transpose(" not in buffer.op_name
    return is_forward and "transpose(" in buffer.last_use


def bytes_on_a_device(tree: Any) -> int:
    """Return the bytes that a device holds of abstract arrays with shardings."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
    )
