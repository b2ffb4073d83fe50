"""What instructions demand of their operands; errors name the instruction and the operand."""

from collections.abc import Collection
from typing import Any

from axcore.errors import KernelError
from axl_trainium.simulator.machine import Memory
from axl_trainium.simulator.tensor import Tensor

ON_CHIP = (Memory.SBUF, Memory.PSUM)


def check_memory(what: str, tensor: Any, *allowed: Memory) -> None:
    """Refuse what is not a tensor in one of the memories."""
    names = " or ".join(memory.value for memory in allowed)
    if not isinstance(tensor, Tensor):
        raise KernelError(f"{what} is {type(tensor).__name__}; expected a tensor in {names}.")
    if tensor.memory not in allowed:
        raise KernelError(f"{what} is in {tensor.memory.value}; the engine reaches {names}.")


def check_block_sizes(instruction: str, **tiles: Any) -> None:
    """Refuse operands that are not two-dimensional tiles on chip."""
    for name, tile in tiles.items():
        check_memory(f"{instruction}: {name}", tile, *ON_CHIP)
        if len(tile.shape) != 2:
            raise KernelError(f"{instruction}: {name} is {tile.shape}; expected two dimensions.")


def check_same_shape(instruction: str, **tiles: Tensor) -> None:
    """Refuse tiles of different shapes: engines do not broadcast."""
    if len({tile.shape for tile in tiles.values()}) > 1:
        shapes = ", ".join(f"{name} {tile.shape}" for name, tile in tiles.items())
        raise KernelError(f"{instruction}: shapes differ: {shapes}.")


def check_not_both_psum(instruction: str, **tiles: Tensor) -> None:
    """Refuse two inputs in PSUM, which has one port to the Vector Engine."""
    if all(tile.memory is Memory.PSUM for tile in tiles.values()):
        raise KernelError(
            f"{instruction}: {' and '.join(tiles)} are both in psum; one of them must be in sbuf.",
            hint="copy one with nisa.tensor_copy",
        )


def check_vector(what: str, tile: Any, partitions: int) -> None:
    """Refuse what is not one float32 a partition."""
    check_memory(what, tile, *ON_CHIP)
    if tile.shape != (partitions, 1) or tile.dtype != "float32":
        raise KernelError(
            f"{what} is {tile.dtype} {tile.shape}; expected float32 {(partitions, 1)}."
        )


def check_float(instruction: str, **tiles: Tensor) -> None:
    """Refuse integers where the engine computes in float32 and would round them."""
    for name, tile in tiles.items():
        if tile.dtype == "int32":
            raise KernelError(
                f"{instruction}: {name} is int32; expected floats.",
                hint="convert it with nisa.tensor_copy",
            )


def check_one_of(what: str, value: Any, allowed: Collection[Any]) -> None:
    """Refuse an operator that the instruction has not."""
    if value not in allowed:
        names = sorted(getattr(one, "__name__", str(one)) for one in allowed)
        name = getattr(value, "__name__", value)
        raise KernelError(f"{what} is {name}; expected one of {', '.join(names)}.")
