"""The logical axes of a decode-matmul call's arrays."""

from axcore.ops.decode_matmul.types import DecodeMatmulInputs, DecodeMatmulSpec
from axcore.parallel.shard_op import OpSharding, axes


def decode_matmul_sharding(inputs: DecodeMatmulInputs, spec: DecodeMatmulSpec) -> OpSharding:
    """Return how a call is split: not at all; on a mesh, layers leave products to the compiler."""
    whole = axes(None, None)
    weight = axes(*(None for _ in inputs.weight.shape))
    return OpSharding(inputs=DecodeMatmulInputs(whole, weight, whole), outputs=whole, split=())
