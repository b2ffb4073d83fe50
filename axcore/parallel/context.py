"""`sharding_activations`: what a program is traced in, to run on a mesh."""

import contextlib
from collections.abc import Iterator

from axcore.ops.attention_partition import use_attention_partition
from axcore.parallel.activations import ActivationSharding, use_sharding
from axcore.parallel.attention_over_time import AttentionOverTime


@contextlib.contextmanager
def sharding_activations(sharding: ActivationSharding) -> Iterator[None]:
    """Makes hints and attention work by this mesh and these rules while code runs or is traced."""
    with use_sharding(sharding), use_attention_partition(AttentionOverTime(sharding.attention)):
        yield
