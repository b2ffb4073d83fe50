"""Block sizes of the attention kernels.

The defaults are what fits the registers and the shared memory of an H100 without spilling, as its
assembler tells; none was measured on a chip.
"""

from collections.abc import Iterator
from typing import Any

import attrs

from axcore.ops import Call, TileTable
from axcore.ops.tiles import power_of_two
from axcore.plugins import Hardware
from axl_gpu.kernels.attention_arrays import Blocks


@attrs.frozen
class BackwardTiles:
    """Blocks of both backward kernels.

    Args:
        dq_queries: Queries of a warp group that sums their gradients.
        dq_keys: Keys that it goes through at once.
        dkv_queries: Queries that a warp group goes through at once.
        dkv_keys: Keys of a warp group that sums their gradients.
        num_groups: Warp groups of a thread block.
        num_stages: Blocks that are in shared memory at once.
    """

    dq_queries: int
    dq_keys: int
    dkv_queries: int
    dkv_keys: int
    num_groups: int
    num_stages: int

    @property
    def dq(self) -> Blocks:
        """Blocks of the kernel for queries."""
        return Blocks(self.dq_queries, self.dq_keys, self.num_groups, self.num_stages)

    @property
    def dkv(self) -> Blocks:
        """Blocks of the kernel for keys and values."""
        return Blocks(self.dkv_queries, self.dkv_keys, self.num_groups, self.num_stages)


def _forward_default(call: Call, hardware: Hardware) -> Blocks:
    return Blocks(queries=64, keys=64)


def _forward_candidates(call: Call, hardware: Hardware) -> Iterator[Blocks]:
    for keys in (64, 128):
        for num_stages in (2, 3):
            yield Blocks(queries=64, keys=keys, num_groups=2, num_stages=num_stages)


def _backward_default(call: Call, hardware: Hardware) -> BackwardTiles:
    return BackwardTiles(64, 64, 64, 64, num_groups=1, num_stages=1)


def _backward_candidates(call: Call, hardware: Hardware) -> Iterator[BackwardTiles]:
    for num_stages in (2, 3):
        yield BackwardTiles(64, 64, 64, 64, num_groups=2, num_stages=num_stages)


def _bucket(call: Call) -> dict[str, Any]:
    return {
        "width": call.shape("q")[3],
        "value_width": call.shape("v")[3],
        "keys": power_of_two(call.shape("k")[1]),
        "causal": call.feature("right") == 0,
    }


FORWARD_TILES = TileTable(
    kernel="attention/gpu_flash_attention",
    package="axl_gpu.kernels",
    default=_forward_default,
    candidates=_forward_candidates,
    bucket=_bucket,
)

BACKWARD_TILES = TileTable(
    kernel="attention_backward/gpu_flash_attention",
    package="axl_gpu.kernels",
    default=_backward_default,
    candidates=_backward_candidates,
    bucket=_bucket,
)
