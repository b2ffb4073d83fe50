"""Sizes of the blocks of flash attention on TPU."""

from collections.abc import Iterator
from itertools import product

import attrs

from axcore.ops import Call, TileTable
from axcore.ops.tiles import Bucket, power_of_two
from axcore.plugins import Hardware


@attrs.frozen
class ForwardTiles:
    """Queries and keys of a block, multiples of 128."""

    block_q: int
    block_k: int


@attrs.frozen
class BackwardTiles:
    """The same of the kernels for the gradients of queries, and of keys and values."""

    dq_block_q: int
    dq_block_k: int
    dkv_block_q: int
    dkv_block_k: int


def _default(call: Call, hardware: Hardware) -> ForwardTiles:
    return ForwardTiles(512, 512)


def _default_backward(call: Call, hardware: Hardware) -> BackwardTiles:
    return BackwardTiles(512, 512, 512, 512)


SIZES = (256, 512, 1024)


def _candidates(call: Call, hardware: Hardware) -> Iterator[ForwardTiles]:
    for block_q, block_k in product(SIZES, repeat=2):
        yield ForwardTiles(block_q, block_k)


def _candidates_backward(call: Call, hardware: Hardware) -> Iterator[BackwardTiles]:
    for block_q, block_k in product(SIZES, repeat=2):
        yield BackwardTiles(block_q, block_k, block_q, block_k)


def _bucket(call: Call) -> Bucket:
    return {
        "queries": power_of_two(call.shape("q")[1]),
        "keys": power_of_two(call.shape("k")[1]),
        "width": call.shape("q")[-1],
        "dtype": call.dtype("q"),
        "left": call.feature("left"),
        "packed": call.has("q_segments") or call.has("k_start"),
    }


TILES = TileTable(
    kernel="attention/tpu_flash_attention",
    package="axl_tpu.kernels",
    default=_default,
    candidates=_candidates,
    bucket=_bucket,
)

BACKWARD_TILES = TileTable(
    kernel="attention_backward/tpu_flash_attention",
    package="axl_tpu.kernels",
    default=_default_backward,
    candidates=_candidates_backward,
    bucket=_bucket,
)
