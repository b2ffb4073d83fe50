"""Kernels that the compiler did not write, and so knows no time of: theirs from FLOPs and bytes.

Attention kernels' FLOPs are counted from what they are called with. A forward kernel makes two
products of all queries with all keys; a backward pass in one kernel makes five, and one in two
kernels, for queries and for keys and values, seven. Causal attention is half of all pairs. Products
by group, of experts for example, take every row once. A kernel that states its FLOPs is believed,
and one of which nothing is known counts by the bytes that it moves.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence

import attrs

from axcore.aot.cost.bytes_moved import bytes_moved
from axcore.aot.hlo.executions import Execution, executions
from axcore.aot.hlo.module_names import is_backward
from axcore.aot.hlo.program import Program
from axcore.aot.hlo.shapes import Shape
from axcore.ops import Call, ChosenKernel

_TARGET = re.compile(r'custom_call_target="([^"]*)"')
_COST = re.compile(r'"flops":"?(\d+)')
_NOT_KERNELS = re.compile(r"AllocateBuffer|AssumeGatherIndicesInBound|Sharding|\$.*(matmul|gemm)")


@attrs.frozen(kw_only=True)
class CustomKernel:
    """One call of a kernel, as often as it runs.

    Args:
        name: Of the instruction.
        op_name: The scopes under which it was traced.
        times: How often it runs.
        flops: Of all runs; 0 where they are not known.
        nbytes: Moved in all runs.
        dtype: Of its first array.
        role: `attention`, `attention_backward`, or nothing for any other.
    """

    name: str
    op_name: str
    times: int
    flops: float
    nbytes: float
    dtype: str
    role: str = ""


def custom_kernels(program: Program, choices: Sequence[ChosenKernel]) -> Iterator[CustomKernel]:
    """Yields the kernels that a program calls.

    Args:
        program: The program.
        choices: The kernels that were chosen while it was traced, with the calls they serve.
    """
    found = [one for one in executions(program) if _is_kernel(one)]
    backward = Counter(one.computation.name for one in found if _is_backward(one))
    for one in found:
        given = [one.computation.by_name[name].shape for name in one.instruction.operands]
        moved = bytes_moved(program, one.instruction, one.computation)
        num_backward = backward[one.computation.name] if _is_backward(one) else 0
        attention = _num_products(num_backward) * _attention_product(given, choices)
        grouped = _grouped_product((*given, *one.instruction.shape.arrays), choices)
        stated = _stated_flops(one)
        yield CustomKernel(
            name=one.instruction.name,
            op_name=one.instruction.op_name,
            times=one.times,
            flops=(attention or grouped if stated is None else stated) * one.times,
            nbytes=float(moved * one.times),
            dtype=given[0].dtype if given else "",
            role="attention" * bool(attention) + "_backward" * bool(attention and num_backward),
        )


def _is_kernel(one: Execution) -> bool:
    target = _TARGET.search(one.instruction.text)
    return (
        one.instruction.opcode == "custom-call"
        and target is not None
        and not _NOT_KERNELS.search(target[1])
    )


def _is_backward(one: Execution) -> bool:
    return is_backward(one.instruction.op_name)


def _num_products(num_backward: int) -> float:
    """Returns a kernel's products, where so many kernels share the backward pass, 0 for forward."""
    if num_backward == 0:
        return 2.0
    return 5.0 if num_backward == 1 else 7.0 / num_backward


def _stated_flops(one: Execution) -> float | None:
    stated = _COST.search(one.instruction.text)
    return float(stated[1]) if stated else None


def _attention_product(given: Sequence[Shape], choices: Sequence[ChosenKernel]) -> float:
    """Returns the FLOPs of one product of queries and keys; 0 where it is no attention."""
    calls = [choice.call for choice in choices if choice.call.op == "attention"]
    arrays = [shape for shape in given if len(shape.dims) == 4]
    if not calls or len(arrays) < 3:
        return 0.0
    queries = arrays[0]
    length = calls[0].shape("k")[1]
    return 2.0 * queries.size * sum(_visible(call, length) for call in calls) / len(calls)


def _grouped_product(arrays: Sequence[Shape], choices: Sequence[ChosenKernel]) -> float:
    """Returns the FLOPs of rows times a matrix of their group; 0 where it is no such product.

    Rows are a matrix, and matrices of groups a stack; in the gradient of those the stack is what
    comes out.
    """
    if not any(choice.call.op == "grouped_matmul" for choice in choices):
        return 0.0
    stacks = [shape for shape in arrays if len(shape.dims) == 3]
    matrices = [shape for shape in arrays if len(shape.dims) == 2]
    for stack in stacks:
        sizes = stack.dims[1:]
        for matrix in matrices:
            rows = [n for n in matrix.dims if matrix.size // n in sizes]
            if rows:
                return 2.0 * max(rows) * sizes[0] * sizes[1]
    return 0.0


def _visible(call: Call, length: int) -> float:
    """Returns how many keys a query sees on average."""
    left, right = call.feature("left"), call.feature("right")
    if right != 0:
        return float(length)
    return min(length / 2, left + 1) if isinstance(left, int) else length / 2
