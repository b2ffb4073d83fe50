"""The logical axes of an RMS normalisation call's arrays."""

from axcore.ops.rms_norm.types import RmsNormInputs, RmsNormSpec
from axcore.parallel.shard_op import OpSharding, axes, leading_axes


def rms_norm_sharding(inputs: RmsNormInputs, spec: RmsNormSpec) -> OpSharding:
    """Return how a call is split: by rows, whose width is whole."""
    rows = axes(*leading_axes(inputs.x.ndim - 1), None)
    return OpSharding(
        inputs=RmsNormInputs(rows, axes(None)),
        outputs=rows,
        backward={"dy": rows},
        split=("batch", "time", "heads"),
    )
