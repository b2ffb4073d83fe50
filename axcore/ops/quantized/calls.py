"""From a quantized dot to the abstract calls of its products, which kernels accept or refuse."""

from axcore.ops.dispatch.call import Call
from axcore.ops.quantized.types import MatmulRole, Quantization, QuantizedDotSpec

QUANTIZED_DOT = "quantized_dot"


def matmul_calls(
    x_RK: tuple[int, ...],
    w_KN: tuple[int, ...],
    spec: QuantizedDotSpec,
    *,
    dtype: str,
    weight_gradient_dtype: str | None = None,
) -> dict[MatmulRole, Call]:
    """Return the call of every product that `spec` makes narrow, from the shapes of its operands.

    Arrays are `lhs` and `rhs`, narrow. Features are the name of the product, that of the dtype of
    its result, `dtype`, and the grain of the scales, `lhs_per` and `rhs_per`.
    """
    x, w = (x_RK, spec.inputs), (w_KN, spec.weights)
    dy = ((*x_RK[:-1], w_KN[1]), spec.gradients)
    operands: dict[MatmulRole, tuple[_Operand, _Operand]] = {
        "forward": (x, w),
        "input_gradient": (dy, w),
    }
    if spec.weight_gradient:
        operands["weight_gradient"] = (x, dy)
    dtypes = {"weight_gradient": weight_gradient_dtype or dtype}
    return {
        name: _call(name, lhs, rhs, dtypes.get(name, dtype))
        for name, (lhs, rhs) in operands.items()
    }


_Operand = tuple[tuple[int, ...], Quantization]


def _call(product: MatmulRole, lhs: _Operand, rhs: _Operand, dtype: str) -> Call:
    operands = {"lhs": lhs, "rhs": rhs}
    return Call(
        op=QUANTIZED_DOT,
        shapes=tuple((name, shape) for name, (shape, _) in operands.items()),
        dtypes=tuple((name, how.format) for name, (_, how) in operands.items()),
        features=(
            ("product", product),
            ("dtype", dtype),
            *((f"{name}_per", how.per) for name, (_, how) in operands.items()),
        ),
    )
