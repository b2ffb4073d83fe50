"""Attention kernels under a mesh: each device works on its own rows and heads, with no
communication. For kernels that the compiler cannot split by itself.
"""

from collections.abc import Callable

import attrs
from jax import Array

from axcore.ops import AttentionInputs
from axcore.parallel.attention_split import AttentionSplit


def on_each_device(attend: Callable[[AttentionInputs], Array], inputs: AttentionInputs) -> Array:
    """Returns `attend(inputs)`, computed in parts where a mesh is set.

    Where the call stands inside of a `shard_map` it has been split already.

    Args:
        attend: From queries, keys, values and segments to the output `[B, T, N, V]`.
        inputs: With no parts but those.
    """
    split = AttentionSplit.of(inputs)
    if split is None or not split.free_axes:
        return attend(inputs)
    split = attrs.evolve(split, time=())
    output_spec, _ = split.output_specs()
    output: Array = split.in_parts(attend, inputs, output_spec)
    return output
