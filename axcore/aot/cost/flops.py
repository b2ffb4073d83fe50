"""FLOPs of a program's products: `dot`, `convolution`, and calls of libraries that multiply.

A multiplication and an addition are two. What is not a product is left out: beside products it
takes next to none of the FLOPs, and its time shows in the bytes it moves.
"""

import math
import re
from collections.abc import Iterator

import attrs

from axcore.aot.hlo.program import Computation, Instruction, Program

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
    """Yields the products that a scheduled instruction makes, those inside of a fusion included."""
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
    """Counts products inside of the input only: compilers write products as padded convolutions."""
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
    """Returns how many pairs of an output and a tap of the kernel fall on a pixel of the input."""

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
    """Returns XLA's dtype as `Hardware.peak_flops` names it: `bf16` is `bfloat16`."""
    if dtype.startswith("f8"):
        return "float8"
    named = {"bf16": "bfloat16", "f16": "float16", "f32": "float32", "s8": "int8", "u8": "int8"}
    return named.get(dtype, dtype)
