"""Block sizes of the attention kernels.

The defaults are what fits the registers and the shared memory of an H100 without spilling, as its
assembler reports. On an H200 the forward pass's were the best of five at heads of 128; no others
were tried on a chip.
"""

from collections.abc import Iterator
from typing import Any

import attrs

from axcore.ops import BlockSizeTable, Call, power_of_two
from axcore.plugins import Hardware
from axl_gpu.kernels.attention.arrays import ForwardBlockSizes

PROCESSORS = 132
"""Of the GPUs that this is for."""


@attrs.frozen
class BackwardBlockSizes:
    """Block sizes of the backward kernels.

    Args:
        dq_queries: Queries of a warp group that sums their gradients.
        dq_keys: Keys that it goes through at once.
        dq_stages: Blocks of keys that are in shared memory at once.
        dkv_queries: Queries that a warp group goes through at once.
        dkv_keys: Keys of a warp group that sums their gradients.
        dkv_stages: Blocks of queries that are in shared memory at once.
        num_groups: Warp groups of a thread block that multiply.
        num_kernels: 2 for one of queries and one of keys; 1 for one of all, by the sizes of keys.
    """

    dq_queries: int = 64
    dq_keys: int = 64
    dq_stages: int = 2
    dkv_queries: int = 64
    dkv_keys: int = 64
    dkv_stages: int = 2
    num_groups: int = 2
    num_kernels: int = 2

    @property
    def dq(self) -> ForwardBlockSizes:
        """Those of the kernel for queries."""
        return ForwardBlockSizes(self.dq_queries, self.dq_keys, self.num_groups, self.dq_stages)

    @property
    def dkv(self) -> ForwardBlockSizes:
        """Those of the kernel for keys and values, or for all."""
        return ForwardBlockSizes(self.dkv_queries, self.dkv_keys, self.num_groups, self.dkv_stages)


def _forward_default(call: Call, hardware: Hardware) -> ForwardBlockSizes:
    return ForwardBlockSizes(
        # Heads of 256: two groups' queries take 64 KiB and two stages of 64 keys with values 128
        # KiB, of 227; 128 keys would take 256 KiB.
        queries=64,
        keys=64 if _is_wide(call) else 128,
        num_groups=2,
        num_stages=2,
    )


def _forward_candidates(call: Call, hardware: Hardware) -> Iterator[ForwardBlockSizes]:
    yield _forward_default(call, hardware)
    yield attrs.evolve(_forward_default(call, hardware), num_programs=PROCESSORS)
    for num_stages in () if _is_wide(call) else (2, 3, 4):
        yield ForwardBlockSizes(queries=64, keys=64, num_groups=2, num_stages=num_stages)


def _is_wide(call: Call) -> bool:
    """Return whether rows of a block take shared memory that others have two of."""
    return max(call.shape("q")[3], call.shape("v")[3]) > 128


def _backward_default(call: Call, hardware: Hardware) -> BackwardBlockSizes:
    if _is_wide(call):
        # At 256, queries and gradients of outputs of one group take 64 KiB next to two stages of
        # 128 KiB in all. Those of a second group do not fit.
        return BackwardBlockSizes(num_groups=1)
    # A soft cap's slope, and the comparison of segments, take the registers of a wide block.
    is_plain = call.feature("soft_cap") is None and not call.has("q_segments")
    return BackwardBlockSizes(dq_keys=128 if is_plain else 64, dkv_stages=3)


def _backward_candidates(call: Call, hardware: Hardware) -> Iterator[BackwardBlockSizes]:
    yield _backward_default(call, hardware)
    for num_stages in () if _is_wide(call) else (2, 3, 4):
        yield BackwardBlockSizes(dq_stages=num_stages, dkv_stages=num_stages)
    if max(call.shape("q")[3], call.shape("v")[3]) <= 64:  # wider heads spill registers
        yield BackwardBlockSizes(num_kernels=1)


def _bucket(call: Call) -> dict[str, Any]:
    return {
        "width": call.shape("q")[3],
        "value_width": call.shape("v")[3],
        "keys": power_of_two(call.shape("k")[1]),
        "is_causal": call.feature("right") == 0,
        "has_segments": call.has("q_segments"),
        "is_capped": call.feature("soft_cap") is not None,
    }


FORWARD_BLOCK_SIZES = BlockSizeTable(
    kernel="attention/gpu_flash_attention",
    package=__package__,
    default=_forward_default,
    candidates=_forward_candidates,
    bucket=_bucket,
)

BACKWARD_BLOCK_SIZES = BlockSizeTable(
    kernel="attention_backward/gpu_flash_attention",
    package=__package__,
    default=_backward_default,
    candidates=_backward_candidates,
    bucket=_bucket,
)
