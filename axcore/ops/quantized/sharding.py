"""The logical axes of a narrow product's operands.

Rows, the leading dimensions of an activation, are split; the width that is summed over forward is
whole. The gradient of a weight is a sum over rows: each device adds up its own.
"""

from axcore.ops.quantized.types import MatmulSpec, Operands, QuantizedArray
from axcore.parallel.shard_op import OpSharding, leading_axes

ROWS = ("batch", "time", "heads")

Axes = tuple[str | None, ...]


def quantized_dot_sharding(operands: Operands, spec: MatmulSpec) -> OpSharding:
    """Return how one product is split."""
    rows = (*leading_axes(operands.lhs.values.ndim - 1), None)
    if spec.product == "weight_gradient":
        return OpSharding(
            inputs=Operands(_axes(operands.lhs, rows), _axes(operands.rhs, rows)),
            outputs=(None, None),
            split=ROWS,
            combine=lambda partition, _, total: partition.summed(total, *ROWS),
        )
    return OpSharding(
        inputs=Operands(_axes(operands.lhs, rows), _axes(operands.rhs, (None, None))),
        outputs=rows,
        split=ROWS,
    )


def _axes(operand: QuantizedArray, axes: Axes) -> QuantizedArray:
    """Return the axes of an operand and of its scale, whose dimensions of size 1 are broadcast."""
    shape = operand.scale.shape
    scale: Axes = tuple(
        None if size == 1 else axis for size, axis in zip(shape, axes[: len(shape)], strict=True)
    )
    return QuantizedArray(axes, scale)  # type: ignore[arg-type]
