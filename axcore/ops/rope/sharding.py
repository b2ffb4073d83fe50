"""The logical axes of a rotary-position call's arrays."""

from axcore.ops.attention.sharding import HEADS
from axcore.ops.rope.types import RopeInputs, RopeSpec
from axcore.parallel.shard_op import OpSharding, axes


def rope_sharding(inputs: RopeInputs, spec: RopeSpec) -> OpSharding:
    """Return how a call is split: by rows, time, and heads as attention splits them."""
    heads, angles = axes("batch", "time", HEADS, None), axes("batch", "time", None)
    return OpSharding(
        inputs=RopeInputs(heads, angles, angles),
        outputs=heads,
        split=("batch", "time", HEADS),
    )
