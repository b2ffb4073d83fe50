"""Context parallelism: attention where time is split over devices."""

from axcore.ops.attention.context_parallel.forms import context_parallel_attention

__all__ = [
    "context_parallel_attention",
]
