"""Replaces `nki.isa`: the instructions that kernels use, with what the hardware demands of each.

Every engine computes in float32 and rounds to the dtype of `dst`. Sources are the pages named in
`axl_trainium.signatures`. Two demands are stricter than the documentation: copies by DMA do not
convert, and products say whether they accumulate. Errors name the instruction and the operand.
"""

import functools
import inspect
from collections.abc import Callable, Collection
from enum import Enum
from typing import Any

import numpy as np

from axcore.errors import KernelError
from axl_trainium.signatures import ISA
from axl_trainium.simulator.language import ACTIVATIONS, BINARY, COMPARISONS, REDUCTIONS
from axl_trainium.simulator.machine import Array, Memory
from axl_trainium.simulator.tensor import Tensor

_ON_CHIP = (Memory.SBUF, Memory.PSUM)


def _check_memory(what: str, tensor: Any, *allowed: Memory) -> None:
    """Refuse what is not a tensor in one of the memories."""
    names = " or ".join(memory.value for memory in allowed)
    if not isinstance(tensor, Tensor):
        raise KernelError(f"{what} is {type(tensor).__name__}; expected a tensor in {names}.")
    if tensor.memory not in allowed:
        raise KernelError(f"{what} is in {tensor.memory.value}; the engine reaches {names}.")


def _check_block_sizes(instruction: str, **tiles: Any) -> None:
    """Refuse operands that are not two-dimensional tiles on chip."""
    for name, tile in tiles.items():
        _check_memory(f"{instruction}: {name}", tile, *_ON_CHIP)
        if len(tile.shape) != 2:
            raise KernelError(f"{instruction}: {name} is {tile.shape}; expected two dimensions.")


def _check_same_shape(instruction: str, **tiles: Tensor) -> None:
    """Refuse tiles of different shapes: engines do not broadcast."""
    if len({tile.shape for tile in tiles.values()}) > 1:
        shapes = ", ".join(f"{name} {tile.shape}" for name, tile in tiles.items())
        raise KernelError(f"{instruction}: shapes differ: {shapes}.")


def _check_not_both_psum(instruction: str, **tiles: Tensor) -> None:
    """Refuse two inputs in PSUM, which has one port to the Vector Engine."""
    if all(tile.memory is Memory.PSUM for tile in tiles.values()):
        raise KernelError(
            f"{instruction}: {' and '.join(tiles)} are both in psum; one of them must be in sbuf.",
            hint="copy one with nisa.tensor_copy",
        )


def _check_vector(what: str, tile: Any, partitions: int) -> None:
    """Refuse what is not one float32 a partition."""
    _check_memory(what, tile, *_ON_CHIP)
    if tile.shape != (partitions, 1) or tile.dtype != "float32":
        raise KernelError(
            f"{what} is {tile.dtype} {tile.shape}; expected float32 {(partitions, 1)}."
        )


def _check_float(instruction: str, **tiles: Tensor) -> None:
    """Refuse integers where the engine computes in float32 and would round them."""
    for name, tile in tiles.items():
        if tile.dtype == "int32":
            raise KernelError(
                f"{instruction}: {name} is int32; expected floats.",
                hint="convert it with nisa.tensor_copy",
            )


def _check_one_of(what: str, value: Any, allowed: Collection[Any]) -> None:
    """Refuse an operator that the instruction has not."""
    if value not in allowed:
        names = sorted(getattr(one, "__name__", str(one)) for one in allowed)
        name = getattr(value, "__name__", value)
        raise KernelError(f"{what} is {name}; expected one of {', '.join(names)}.")


STATIONARY_COLUMNS = 128
MOVING_COLUMNS = 512
LOWEST = float(np.finfo(np.float32).min)


class reduce_cmd(Enum):  # noqa: N801 - the SDK's name
    """What becomes of an engine's accumulators."""

    idle = 0
    reset_reduce = 1


def _instruction(function: Callable[..., None]) -> Callable[..., None]:
    """Return the instruction with the public signature; what is not simulated is refused."""
    name = function.__name__
    signature = ISA[name].signature()
    known = inspect.signature(function).parameters

    @functools.wraps(function)
    def instruction(*args: Any, **kwargs: Any) -> None:
        given = signature.bind(*args, **kwargs).arguments
        for argument in given:
            if argument not in known:
                raise KernelError(f"{name}: the simulator does not know {argument}.")
        function(**given)

    return instruction


@_instruction
def dma_copy(dst: Tensor, src: Tensor) -> None:
    """Copy between HBM and SBUF, or within them."""
    for name, tensor in (("dst", dst), ("src", src)):
        _check_memory(f"dma_copy: {name}", tensor, Memory.HBM, Memory.SBUF)
    if dst.dtype != src.dtype:
        raise KernelError(
            f"dma_copy: src is {src.dtype} and dst {dst.dtype}.",
            hint="convert on chip with nisa.tensor_copy",
        )
    dst.write(src.read("dma_copy"), "dma_copy")


@_instruction
def memset(dst: Tensor, value: float) -> None:
    """Fill `dst`."""
    _check_block_sizes("memset", dst=dst)
    dst.write(np.full(dst.shape, value), "memset")


@_instruction
def iota(dst: Tensor, pattern: list[list[int]], offset: int, channel_multiplier: int = 0) -> None:
    """Write `offset + partition * channel_multiplier + step * column`."""
    _check_memory("iota: dst", dst, Memory.SBUF)
    if dst.dtype != "int32" or len(pattern) != 1:
        raise KernelError(f"iota: the simulator knows int32 and one step, not {dst.dtype}.")
    (step, count) = pattern[0]
    partition = np.arange(dst.shape[0])[:, None] * channel_multiplier
    dst.write(offset + partition + step * np.arange(count)[None, :], "iota")


@_instruction
def tensor_copy(dst: Tensor, src: Tensor) -> None:
    """Copy on chip, through float32 where dtypes differ."""
    what = "tensor_copy"
    _check_block_sizes(what, dst=dst, src=src)
    dst.write(src.read(what) if dst.dtype == src.dtype else _float(src, what), what)


@_instruction
def nc_matmul(
    dst: Tensor, stationary: Tensor, moving: Tensor, accumulate: bool | None = None
) -> None:
    """Write or adds `stationary.T @ moving`; the Tensor Engine reads SBUF and writes PSUM."""
    what = "nc_matmul"
    _check_block_sizes(what, dst=dst, stationary=stationary, moving=moving)
    _check_memory(f"{what}: dst", dst, Memory.PSUM)
    for name, tile, columns in (
        ("stationary", stationary, STATIONARY_COLUMNS),
        ("moving", moving, MOVING_COLUMNS),
    ):
        _check_memory(f"{what}: {name}", tile, Memory.SBUF)
        _check_float(what, **{name: tile})
        if tile.shape[1] > columns:
            raise KernelError(f"{what}: {name} has {tile.shape[1]} columns; at most {columns}.")
    if stationary.shape[0] != moving.shape[0]:
        raise KernelError(
            f"{what}: stationary has {stationary.shape[0]} partitions and moving "
            f"{moving.shape[0]}; it sums over them."
        )
    if (stationary.dtype == "float32") != (moving.dtype == "float32"):
        raise KernelError(
            f"{what}: stationary is {stationary.dtype} and moving {moving.dtype}; float32 goes "
            "with float32 only."
        )
    if dst.dtype != "float32":
        raise KernelError(f"{what}: dst is {dst.dtype}; products are summed in float32.")
    if accumulate is None:
        raise KernelError(f"{what}: say whether dst is added to: accumulate=True or False.")
    product = _float(stationary, what).T @ _float(moving, what)
    dst.write(dst.read(what) + product if accumulate else product, what)


@_instruction
def nc_transpose(dst: Tensor, data: Tensor) -> None:
    """Transpose a tile by the Tensor Engine, which reads SBUF and writes PSUM."""
    what = "nc_transpose"
    _check_block_sizes(what, dst=dst, data=data)
    _check_memory(f"{what}: dst", dst, Memory.PSUM)
    _check_memory(f"{what}: data", data, Memory.SBUF)
    if data.shape[1] > STATIONARY_COLUMNS:
        raise KernelError(f"{what}: data is {data.shape}; at most 128 by {STATIONARY_COLUMNS}.")
    if dst.dtype != data.dtype:
        raise KernelError(f"{what}: data is {data.dtype} and dst {dst.dtype}; expected the same.")
    dst.write(data.read(what).T, what)


@_instruction
def activation(
    dst: Tensor,
    op: Callable[[Array], Array],
    data: Tensor,
    bias: float | Tensor | None = None,
    scale: float | Tensor = 1.0,
    reduce_op: Callable[..., Array] | None = None,
    reduce_res: Tensor | None = None,
    reduce_cmd: reduce_cmd = reduce_cmd.idle,
) -> None:
    """Write `op(data * scale + bias)`, and its sum over columns where that is asked for."""
    what = "activation"
    _check_block_sizes(what, dst=dst, data=data)
    _check_one_of(f"{what}: op", op, ACTIVATIONS)
    _check_float(what, dst=dst, data=data)
    scaled = _float(data, what) * _operand(f"{what}: scale", scale, data)
    result = op(scaled + _operand(f"{what}: bias", 0.0 if bias is None else bias, data))
    dst.write(result, what)
    if reduce_res is not None:
        _check_one_of(f"{what}: reduce_op", reduce_op, (np.add,))
        _check_resets(what, reduce_cmd)
        _check_vector(f"{what}: reduce_res", reduce_res, data.shape[0])
        reduce_res.write(result.sum(axis=1, keepdims=True), what)


@_instruction
def reciprocal(dst: Tensor, data: Tensor) -> None:
    """Write `1 / data`."""
    _check_block_sizes("reciprocal", dst=dst, data=data)
    _check_float("reciprocal", dst=dst, data=data)
    dst.write(np.float32(1) / _float(data, "reciprocal"), "reciprocal")


@_instruction
def tensor_tensor(
    dst: Tensor, data1: Tensor, data2: Tensor, op: Callable[[Array, Array], Array]
) -> None:
    """Write `op(data1, data2)`."""
    what = "tensor_tensor"
    _check_block_sizes(what, dst=dst, data1=data1, data2=data2)
    _check_same_shape(what, data1=data1, data2=data2)
    _check_not_both_psum(what, data1=data1, data2=data2)
    _check_one_of(f"{what}: op", op, BINARY)
    _check_float(what, dst=dst, data1=data1, data2=data2)
    dst.write(_apply(op, _float(data1, what), _float(data2, what)), what)


@_instruction
def tensor_scalar(
    dst: Tensor,
    data: Tensor,
    op0: Callable[[Array, Array], Array],
    operand0: float | Tensor,
    reverse0: bool = False,
    op1: Callable[[Array, Array], Array] | None = None,
    operand1: float | Tensor | None = None,
    reverse1: bool = False,
) -> None:
    """Write `op1(op0(data, operand0), operand1)`; operands are one number, or one a partition."""
    what = "tensor_scalar"
    _check_block_sizes(what, dst=dst, data=data)
    _check_float(what, dst=dst, data=data)
    _check_one_of(f"{what}: op0", op0, BINARY)
    first = _operand(f"{what}: operand0", operand0, data)
    result = _apply(op0, _float(data, what), first, is_reversed=reverse0)
    if op1 is not None:
        _check_one_of(f"{what}: op1", op1, BINARY)
        second = _operand(f"{what}: operand1", operand1, data)
        result = _apply(op1, result, second, is_reversed=reverse1)
    dst.write(result, what)


@_instruction
def scalar_tensor_tensor(
    dst: Tensor,
    data: Tensor,
    op0: Callable[[Array, Array], Array],
    operand0: float | Tensor,
    op1: Callable[[Array, Array], Array],
    operand1: Tensor,
    reverse0: bool = False,
    reverse1: bool = False,
) -> None:
    """Write `op1(op0(data, operand0), operand1)`, where `operand1` is a tile of data's shape."""
    what = "scalar_tensor_tensor"
    _check_block_sizes(what, dst=dst, data=data, operand1=operand1)
    _check_same_shape(what, data=data, operand1=operand1)
    _check_not_both_psum(what, data=data, operand1=operand1)
    _check_float(what, dst=dst, data=data, operand1=operand1)
    for name, op in (("op0", op0), ("op1", op1)):
        _check_one_of(f"{what}: {name}", op, BINARY)
    first = _operand(f"{what}: operand0", operand0, data)
    result = _apply(op0, _float(data, what), first, is_reversed=reverse0)
    dst.write(_apply(op1, result, _float(operand1, what), is_reversed=reverse1), what)


@_instruction
def tensor_reduce(
    dst: Tensor,
    op: Any,
    data: Tensor,
    axis: int,
    negate: bool = False,
    keepdims: bool = False,
) -> None:
    """Write the reduction over columns; partitions cannot be reduced so."""
    what = "tensor_reduce"
    _check_block_sizes(what, dst=dst, data=data)
    _check_float(what, dst=dst, data=data)
    _check_one_of(f"{what}: op", op, REDUCTIONS)
    if axis != 1 or not keepdims:
        raise KernelError(f"{what}: the simulator knows axis=1 with keepdims=True, not {axis}.")
    result = op.reduce(_float(data, what), axis=1, keepdims=True)
    dst.write(-result if negate else result, what)


@_instruction
def range_select(
    dst: Tensor,
    on_true_tile: Tensor,
    comp_op0: Callable[[Array, Array], Array],
    comp_op1: Callable[[Array, Array], Array],
    bound0: Tensor,
    bound1: Tensor,
    reduce_cmd: reduce_cmd = reduce_cmd.reset_reduce,
    reduce_res: Tensor | None = None,
    reduce_op: Callable[..., Array] = np.maximum,
    range_start: int = 0,
    on_false_value: float = LOWEST,
) -> None:
    """Keep columns whose number is within the bounds of their row; the others become the lowest.

    Only from NeuronCore-v3 on.
    """
    what = "range_select"
    _check_block_sizes(what, dst=dst, on_true_tile=on_true_tile)
    _check_float(what, dst=dst, on_true_tile=on_true_tile)
    for name, op in (("comp_op0", comp_op0), ("comp_op1", comp_op1)):
        _check_one_of(f"{what}: {name}", op, COMPARISONS)
    partitions, columns = on_true_tile.shape
    for name, bound in (("bound0", bound0), ("bound1", bound1)):
        _check_vector(f"{what}: {name}", bound, partitions)
    if on_false_value != LOWEST:
        raise KernelError(f"{what}: on_false_value is {on_false_value}; it must be {LOWEST}.")
    place = np.float32(range_start) + np.arange(columns, dtype=np.float32)[None, :]
    is_kept = comp_op0(place, bound0.read(what)) & comp_op1(place, bound1.read(what))
    result = np.where(is_kept, _float(on_true_tile, what), np.float32(LOWEST))
    dst.write(result, what)
    if reduce_res is not None:
        _check_one_of(f"{what}: reduce_op", reduce_op, (np.maximum,))
        _check_resets(what, reduce_cmd)
        _check_vector(f"{what}: reduce_res", reduce_res, partitions)
        reduce_res.write(result.max(axis=1, keepdims=True), what)


def _float(tile: Tensor, what: str) -> Array:
    return tile.read(what).astype(np.float32)


def _apply(
    op: Callable[[Array, Array], Array], left: Array, right: Array, *, is_reversed: bool = False
) -> Array:
    return (op(right, left) if is_reversed else op(left, right)).astype(np.float32)


def _operand(what: str, value: Any, data: Tensor) -> Array:
    """Return a number, or a vector of one float32 a partition."""
    if isinstance(value, (int, float)):
        return np.asarray(value, np.float32)
    _check_vector(what, value, data.shape[0])
    return value.read(what)


def _check_resets(what: str, command: reduce_cmd) -> None:
    if command is not reduce_cmd.reset_reduce:
        raise KernelError(
            f"{what}: reduce_res is given and reduce_cmd is {command.name}; expected reset_reduce."
        )
