"""What layers ask for: operations with a reference, a portable answer, and kernels chosen by
hardware. See `docs/design/` and the `attention` and `cross_entropy` functions."""

from axcore.ops.attention import attention
from axcore.ops.cross_entropy import cross_entropy, cross_entropy_sums
from axcore.ops.cross_entropy_types import CrossEntropySums

__all__ = ["CrossEntropySums", "attention", "cross_entropy", "cross_entropy_sums"]
