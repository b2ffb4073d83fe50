"""Kernels that the compiler did not write, and so knows no time of: theirs from FLOPs and bytes.

Attention kernels' FLOPs are counted from what they are called with. A forward kernel makes two
products of all queries with all keys. A backward kernel makes two as well, of scores and of their
gradients, and one for each gradient that it returns: five for all three in one kernel, seven for
two kernels. Causal attention is half of all pairs. A kernel may serve any call of as many queries
as it takes, or any at all where padding hides how many, and counts as their mean. Products by
group, of experts for example, take every row once that is expected to be of a group, and those of a
quantized matrix all of both. A kernel that states its FLOPs is believed, and one of which nothing
is known counts by the bytes that it moves.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import permutations

import attrs

from axcore.aot.cost.bytes_moved import bytes_moved
from axcore.aot.hlo.executions import Execution, executions
from axcore.aot.hlo.module_names import is_backward
from axcore.aot.hlo.program import Program
from axcore.aot.hlo.shapes import Shape
from axcore.ops import Call, ChosenKernel, occupancy_of

_TARGET = re.compile(r'custom_call_target="([^"]*)"')
_FLOATING = re.compile(r"b?f\d")
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
        dtype: Of its products: that of its queries, or of its largest operand.
        role: The op that it serves, `_backward` behind it in the backward pass, and the kernel's
            name where it is known: `attention/portable`; empty for any other.
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
    for one in executions(program):
        if _is_kernel(one):
            yield _custom_kernel(program, one, choices)


def _custom_kernel(
    program: Program, one: Execution, choices: Sequence[ChosenKernel]
) -> CustomKernel:
    operands = [one.computation.by_name[name].shape for name in one.instruction.operands]
    given = [array for shape in operands for array in shape.arrays]
    made = one.instruction.shape.arrays
    attention = 0.0
    if _op_by_name(one.instruction.name, choices) in ("", "attention", "attention_backward"):
        attention = _num_products(one, given) * _attention_product(given, choices)
    counted = {
        "attention": attention,
        "grouped_matmul": _grouped_product((*given, *made), choices),
        "quantized_dot": _quantized_product(given, made, choices),
    }
    stated = _stated_flops(one)
    op = next((name for name, flops in counted.items() if flops), "")
    share = occupancy_of(one.instruction.op_name) if op == "grouped_matmul" else 1.0
    return CustomKernel(
        name=one.instruction.name,
        op_name=one.instruction.op_name,
        times=one.times,
        flops=(counted.get(op, 0.0) if stated is None else stated) * share * one.times,
        nbytes=float(bytes_moved(program, one.instruction, one.computation) * one.times),
        dtype=_dtype_of_products(_heads(given)[:1] if attention else given),
        role=_role(op, choices, is_backward=is_backward(one.instruction.op_name)),
    )


def _is_kernel(one: Execution) -> bool:
    target = _TARGET.search(one.instruction.text)
    return (
        one.instruction.opcode == "custom-call"
        and target is not None
        and not _NOT_KERNELS.search(target[1])
    )


def _num_products(one: Execution, given: Sequence[Shape]) -> int:
    """Returns how many products an attention kernel makes."""
    if not is_backward(one.instruction.op_name):
        return 2
    dtypes = {array.dtype for array in _heads(given)[:1]}
    made = one.instruction.shape.arrays
    gradients = [one for one in made if len(one.dims) >= 4 or one.dtype in dtypes]
    return 2 + min(len(gradients), 3)


def _dtype_of_products(given: Sequence[Shape]) -> str:
    """Returns the dtype of the largest operand: lists of blocks, sizes and scales are small."""
    return max(given, key=lambda shape: shape.size).dtype if given else ""


def _role(op: str, choices: Sequence[ChosenKernel], *, is_backward: bool) -> str:
    """Returns an op with the kernel that serves it, where one kernel serves all its calls."""
    if not op:
        return ""
    role = op + "_backward" * is_backward
    chosen = [one for one in choices if one.call.op == role]
    chosen = chosen or [one for one in choices if one.call.op == op]
    names = {one.kernel.name for one in chosen}
    return f"{role}/{names.pop()}" if len(names) == 1 else role


def _stated_flops(one: Execution) -> float | None:
    stated = _COST.search(one.instruction.text)
    return float(stated[1]) if stated else None


def _attention_product(given: Sequence[Shape], choices: Sequence[ChosenKernel]) -> float:
    """Returns the FLOPs of one product of queries and keys; 0 where it is no attention."""
    calls = [choice.call for choice in choices if choice.call.op == "attention"]
    arrays = _heads(given)
    if not calls or len(arrays) < 3:
        return 0.0
    queries = arrays[0]
    of_length = [call for call in calls if call.shape("q")[1] in queries.dims[1:-1]]
    calls = of_length or calls
    return 2.0 * queries.size * sum(map(_visible, calls)) / len(calls)


def _grouped_product(arrays: Sequence[Shape], choices: Sequence[ChosenKernel]) -> float:
    """Returns the FLOPs of rows times a matrix of their group; 0 where it is no such product.

    Rows are a matrix, and matrices of groups a stack; in the gradient of those the stack is what
    comes out.
    """
    if not any(choice.call.op == "grouped_matmul" for choice in choices):
        return 0.0
    for stack in _of_rank(3, arrays):
        sizes = stack.dims[1:]
        for matrix in _of_rank(2, arrays):
            rows = [n for n in matrix.dims if matrix.size // n in sizes]
            if rows:
                return 2.0 * max(rows) * sizes[0] * sizes[1]
    return 0.0


def _quantized_product(
    given: Sequence[Shape], made: Sequence[Shape], choices: Sequence[ChosenKernel]
) -> float:
    """Returns the FLOPs of a product of two matrices of one byte a number; 0 where it is none."""
    if not any(choice.call.op == "quantized_dot" for choice in choices):
        return 0.0
    narrow = [one for one in _of_rank(2, given) if one.dtype.startswith(("f8", "s8"))]
    for result in _of_rank(2, made):
        rows, columns = result.dims
        for left, right in permutations(narrow, 2):
            depth = left.size // rows
            if rows in left.dims and columns in right.dims and right.size == depth * columns:
                return 2.0 * rows * columns * depth
    return 0.0


def _op_by_name(name: str, choices: Sequence[ChosenKernel]) -> str:
    """Returns the op of the chosen kernel that an instruction is named after; empty for none."""
    return next((one.call.op for one in choices if name.startswith(one.kernel.name)), "")


def _heads(arrays: Sequence[Shape]) -> list[Shape]:
    """Returns arrays of heads, side by side or as an axis of their own."""
    return [
        shape
        for shape in arrays
        if len(shape.dims) in (3, 4) and _FLOATING.match(shape.dtype) and shape.dims[-2] > 1
    ]


def _of_rank(rank: int, arrays: Sequence[Shape]) -> list[Shape]:
    return [shape for shape in arrays if len(shape.dims) == rank]


def _visible(call: Call) -> float:
    """Returns how many keys a query sees on average."""
    length = call.shape("k")[1]
    left, right = call.feature("left"), call.feature("right")
    if right != 0:
        return float(length)
    return min(length / 2, left + 1) if isinstance(left, int) else length / 2
