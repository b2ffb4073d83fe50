"""FLOPs and bytes of single operations: products, what an instruction moves, custom kernels.

Products are `dot`, `convolution`, and calls of libraries that multiply.
"""

import math
import re
from collections.abc import Iterator, Sequence
from itertools import permutations
from typing import TypeVar

import attrs

from axcore.aot.hlo.loops import Execution, executions
from axcore.aot.hlo.program import Computation, Instruction, Program, Shape, is_backward
from axcore.ops import Call, ChosenKernel, moved_bytes_of, occupancy_of

_LIBRARY_PRODUCT = re.compile(r'custom_call_target="__\w+\$(?:lt\$)?(?:matmul|gemm)')
_CONTRACTED = re.compile(r'(?:lhs_contracting_dims=\{|"lhs_contracting_dimensions":\[)([^\]}]*)')
_WINDOW = re.compile(r"window=\{([^}]*)\}")
_LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")


@attrs.frozen
class Product:
    """One product: its FLOPs, and the dtype of what it multiplies, as XLA names it."""

    flops: float
    dtype: str
    op_name: str


def products(program: Program, instruction: Instruction, within: Computation) -> Iterator[Product]:
    """Yield the products that a scheduled instruction makes, those inside of a fusion included."""
    if instruction.opcode == "fusion":
        called = program.computations[instruction.called["calls"]]
        for one in called.instructions:
            yield from products(program, one, called)
        return
    flops = _flops(instruction, within)
    if flops:
        operand = within.by_name[instruction.operands[0]].shape.arrays[0]
        yield Product(flops, operand.dtype, instruction.op_name)


def _flops(instruction: Instruction, within: Computation) -> float:
    if instruction.opcode == "convolution":
        return _convolution_flops(instruction, within)
    is_product = instruction.opcode == "dot" or _LIBRARY_PRODUCT.search(instruction.text)
    found = _CONTRACTED.search(instruction.text) if is_product else None
    if found is None:
        return 0.0
    lhs = within.by_name[instruction.operands[0]].shape
    contracted = math.prod(lhs.dims[int(dim)] for dim in re.findall(r"\d+", found[1]))
    return 2.0 * instruction.shape.arrays[0].size * contracted


def _convolution_flops(instruction: Instruction, within: Computation) -> float:
    """Count products inside of the input only: compilers write products as padded convolutions."""
    labels = _LABELS.search(instruction.text)
    assert labels is not None, instruction.text
    lhs, rhs = (within.by_name[name].shape for name in instruction.operands[:2])
    window = _window(instruction)
    flops = 2.0
    for label in labels[3]:
        size = instruction.shape.dims[labels[3].index(label)]
        if not label.isdigit():
            flops *= size
            continue
        dimension = int(label)
        taps = rhs.dims[labels[2].index(label)]
        pixels = lhs.dims[labels[1].index(label)]
        flops *= _pairs(size, taps, pixels, window, dimension)
    return flops * rhs.dims[labels[2].index("i")]


def _window(instruction: Instruction) -> dict[str, list[str]]:
    found = _WINDOW.search(instruction.text)
    parts = found[1].split() if found else []
    return {name: value.split("x") for name, _, value in (part.partition("=") for part in parts)}


def _pairs(outputs: int, taps: int, pixels: int, window: dict[str, list[str]], at: int) -> int:
    """Return how many pairs of an output and a tap of the kernel fall on a pixel of the input."""

    def number(name: str, default: int) -> int:
        return int(window[name][at].split("_")[0]) if name in window else default

    stride, low = number("stride", 1), number("pad", 0)
    dilation, spread = number("rhs_dilate", 1), number("lhs_dilate", 1)
    if taps == 1 and low == 0 and spread == 1:
        return outputs
    places = (
        output * stride + tap * dilation - low for output in range(outputs) for tap in range(taps)
    )
    return sum(place >= 0 and place % spread == 0 and place // spread < pixels for place in places)


def dtype_name(dtype: str) -> str:
    """Return XLA's dtype as `Hardware.peak_flops` names it: `bf16` is `bfloat16`."""
    if dtype.startswith("f8"):
        return "float8"
    named = {"bf16": "bfloat16", "f16": "float16", "f32": "float32", "s8": "int8", "u8": "int8"}
    return named.get(dtype, dtype)


T = TypeVar("T")

_FREE = (
    "parameter",
    "constant",
    "tuple",
    "get-tuple-element",
    "bitcast",
    "while",
    "call",
    "conditional",
    "after-all",
    "partition-id",
    "replica-id",
    "optimization-barrier",
)


# -- Bytes moved -----------------------------------------------------------------------------------
#
# A fusion reads its operands and writes its results once, whatever is inside. Where it takes or
# puts only a slice of an operand, as the body of a loop does with stacked layers, the slice counts;
# of an array into which it scatters, what it puts there. A kernel that is given more than it reads
# says what it moves by `moved_bytes_scope`. Smaller memories on the chip are left out.


def bytes_moved(program: Program, instruction: Instruction, within: Computation) -> int:
    """Return the bytes that one run of a scheduled instruction moves."""
    opcode = instruction.opcode
    if opcode in _FREE or opcode.endswith("-done") or 'target="AllocateBuffer"' in instruction.text:
        return 0
    operands = [within.by_name[name].shape for name in instruction.operands]
    if opcode == "fusion":
        return _fusion_bytes(program.computations[instruction.called["calls"]], operands)
    if opcode in ("dynamic-slice", "slice", "gather"):
        return 2 * instruction.shape.device_bytes
    if opcode in _COPIES_STARTED:
        return _started_bytes(instruction, operands[0])
    if opcode == "dynamic-update-slice":
        return 2 * operands[1].device_bytes
    if opcode == "scatter":
        return 2 * sum(shape.device_bytes for shape in _updates(operands))
    given = instruction.shape.device_bytes + sum(shape.device_bytes for shape in operands)
    stated = moved_bytes_of(instruction.op_name) if opcode == "custom-call" else None
    return given if stated is None else min(stated, given)


_COPIES_STARTED = ("copy-start", "slice-start")


def _started_bytes(instruction: Instruction, source: Shape) -> int:
    """Return the bytes of a copy on its way; its shape holds the source next to the target."""
    made = instruction.shape.arrays
    target = made[0] if instruction.opcode == "copy-start" else made[len(source.arrays)]
    return target.device_bytes + (target.nbytes if source.device_bytes else 0)


_IN_PLACE = ("dynamic-update-slice", "scatter")


def _fusion_bytes(fused: Computation, operands: list[Shape]) -> int:
    read = sum(
        _read_bytes(fused, parameter, operands[int(parameter.arguments)])
        for parameter in fused.instructions
        if parameter.opcode == "parameter"
    )
    return read + sum(_written_bytes(fused, name) for name in _results(fused))


def _read_bytes(fused: Computation, parameter: Instruction, shape: Shape) -> int:
    """Count slices where an operand is only sliced, and nothing where a slice is put into it."""
    same = _same_array(fused, parameter)
    read = 0
    for user in _users(fused, parameter.name):
        if user.opcode in ("dynamic-slice", "gather"):
            read += user.shape.device_bytes
        elif user.opcode not in _IN_PLACE or user.operands[0] not in same:
            return shape.device_bytes
    return min(read, shape.device_bytes)


def _users(fused: Computation, name: str) -> list[Instruction]:
    """Return what uses a value, looking through bitcasts."""
    users = []
    for one in fused.instructions:
        if name in one.operands:
            users += _users(fused, one.name) if one.opcode == "bitcast" else [one]
    return users


def _same_array(fused: Computation, parameter: Instruction) -> set[str]:
    names = {parameter.name}
    for one in fused.instructions:
        if one.opcode == "bitcast" and one.operands[0] in names:
            names.add(one.name)
    return names


def _results(fused: Computation) -> tuple[str, ...]:
    root = fused.root
    return root.operands if root.opcode == "tuple" else (root.name,)


def _written_bytes(fused: Computation, name: str) -> int:
    one = fused.by_name[name]
    while one.opcode == "bitcast":
        one = fused.by_name[one.operands[0]]
    if one.opcode == "dynamic-update-slice":
        return fused.by_name[one.operands[1]].shape.device_bytes
    if one.opcode == "scatter" and _is_given(fused, one.operands[0]):
        return sum(fused.by_name[given].shape.device_bytes for given in _updates(one.operands))
    return 0 if one.opcode == "parameter" else one.shape.device_bytes


def _is_given(fused: Computation, name: str) -> bool:
    """Return whether a value is a parameter, which is then written in place."""
    one = fused.by_name[name]
    while one.opcode == "bitcast":
        one = fused.by_name[one.operands[0]]
    return one.opcode == "parameter"


def _updates(operands: Sequence[T]) -> Sequence[T]:
    """Return what a scatter puts in: its operands are arrays, indices, and as many updates."""
    return operands[len(operands) // 2 + 1 :]


# -- Custom kernels --------------------------------------------------------------------------------
#
# The compiler did not write these, and so knows no time of them: theirs is from FLOPs and bytes.
#
# FLOPs of attention kernels are counted from what they are called with. A forward kernel makes two
# products of all queries with all keys. A backward kernel makes two as well, of scores and of their
# gradients, and one for each gradient that it returns: five for all three in one kernel, seven for
# two kernels. Causal attention is half of all pairs. A kernel may serve any call of as many queries
# as it takes, or any at all where padding hides how many, and counts as their mean. Grouped
# products, of experts for example, take every row once that is expected to be of a group, and those
# of a quantized matrix all of both. A kernel that states its FLOPs is believed, and one of which
# nothing is known counts by the bytes that it moves.


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
    """Yield the kernels that a program calls.

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
    """Return how many products an attention kernel makes."""
    if not is_backward(one.instruction.op_name):
        return 2
    dtypes = {array.dtype for array in _heads(given)[:1]}
    made = one.instruction.shape.arrays
    gradients = [one for one in made if len(one.dims) >= 4 or one.dtype in dtypes]
    return 2 + min(len(gradients), 3)


def _dtype_of_products(given: Sequence[Shape]) -> str:
    """Return the dtype of the largest operand: lists of blocks, sizes and scales are small."""
    return max(given, key=lambda shape: shape.size).dtype if given else ""


def _role(op: str, choices: Sequence[ChosenKernel], *, is_backward: bool) -> str:
    """Return an op with the kernel that serves it, where one kernel serves all its calls."""
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
    """Return the FLOPs of one product of queries and keys; 0 where it is not attention."""
    calls = [choice.call for choice in choices if choice.call.op == "attention"]
    arrays = _heads(given)
    if not calls or len(arrays) < 3:
        return 0.0
    queries = arrays[0]
    of_length = [call for call in calls if call.shape("q")[1] in queries.dims[1:-1]]
    calls = of_length or calls
    return 2.0 * queries.size * sum(map(_visible, calls)) / len(calls)


def _grouped_product(arrays: Sequence[Shape], choices: Sequence[ChosenKernel]) -> float:
    """Return the FLOPs of rows times a matrix of their group; 0 where it is not such a product.

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
    """Return the FLOPs of a product of two matrices of one byte a number; 0 where it is none."""
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
    """Return the op of the chosen kernel that an instruction is named after; empty for none."""
    return next((one.call.op for one in choices if name.startswith(one.kernel.name)), "")


def _heads(arrays: Sequence[Shape]) -> list[Shape]:
    """Return arrays of heads, side by side or as an axis of their own."""
    return [
        shape
        for shape in arrays
        if len(shape.dims) in (3, 4) and _FLOATING.match(shape.dtype) and shape.dims[-2] > 1
    ]


def _of_rank(rank: int, arrays: Sequence[Shape]) -> list[Shape]:
    return [shape for shape in arrays if len(shape.dims) == rank]


def _visible(call: Call) -> float:
    """Return how many keys a query sees on average."""
    length = call.shape("k")[1]
    left, right = call.feature("left"), call.feature("right")
    if right != 0:
        return float(length)
    return min(length / 2, left + 1) if isinstance(left, int) else length / 2
