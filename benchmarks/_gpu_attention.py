"""Contests of attention on a GPU: our kernels, cuDNN in all its forms, and XLA.

Letters: B batch rows, T tokens, N query heads, K key heads, H width; S keys of a cache.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import attrs
import jax
import jax.numpy as jnp
import numpy as np
from _gpu import OURS, Contest, arrays
from jax import Array

from axcore.ops import (
    AttentionInputs,
    AttentionSpec,
    KernelPolicy,
    decode_attention,
    use_policy,
)
from axcore.ops.attention.op import ATTENTION_OP
from axcore.ops.dispatch import op_kernels
from axcore.plugins import Hardware

HEADS, KEY_HEADS, WIDTH = 16, 8, 128
TOKENS = 16384
"""Of all rows, so that every case has as many."""

LENGTHS = (4096, 16384, 8192)
DOCUMENT = 1024
"""Tokens of a packed document where all are equally long."""

RIVALS = {
    "cudnn": "cudnn_attention",
    "cudnn_packed": "cudnn_packed_attention",
    OURS: "gpu_flash_attention",
}
"""Kernels by what they are called here. cuDNN takes documents as a bias, or packed by offsets."""


@attrs.frozen(kw_only=True)
class Rows:
    """Rows that are attended to.

    Args:
        length: Tokens of a row.
        key_heads: Of 16 query heads.
        documents: Tokens of each document of a row, padding after the last; full rows where none.
    """

    length: int
    key_heads: int = KEY_HEADS
    documents: tuple[int, ...] = ()

    def inputs(self) -> AttentionInputs:
        """Return random queries, keys and values, as many tokens as every case has."""
        rows = TOKENS // self.length
        heads = (HEADS, self.key_heads, self.key_heads)
        q, k, v = (
            jax.random.normal(key, (rows, self.length, count, WIDTH), jnp.bfloat16)
            for key, count in zip(jax.random.split(jax.random.key(0), 3), heads, strict=True)
        )
        if not self.documents:
            return AttentionInputs(q, k, v)
        segments = np.repeat(np.arange(1, len(self.documents) + 1), self.documents)
        row = np.pad(segments, (0, self.length - len(segments))).astype(np.int32)
        segments_BT = jnp.broadcast_to(jnp.asarray(row), (rows, self.length))
        return AttentionInputs(q, k, v, segments_BT, segments_BT)

    @property
    def flops(self) -> float:
        """Of a forward pass, causal, within documents."""
        pairs = sum(size * size / 2 for size in self.documents or (self.length,))
        return 2 * 2.0 * pairs * (TOKENS // self.length) * HEADS * WIDTH


def causal(is_quick: bool) -> Iterator[Contest]:
    """Full rows, forward alone and with gradients."""
    for length in LENGTHS[: 1 if is_quick else None]:
        yield from _contests(f"{length}", Rows(length=length))


def packed(is_quick: bool) -> Iterator[Contest]:
    """Documents of one length. With as many key heads as query heads cuDNN takes them packed."""
    for length in LENGTHS[: 1 if is_quick else 2]:
        documents = (DOCUMENT,) * (length // DOCUMENT)
        for key_heads in (HEADS, KEY_HEADS):
            rows = Rows(length=length, key_heads=key_heads, documents=documents)
            yield from _contests(f"{length}_key_heads_{key_heads}", rows)


def ragged(is_quick: bool) -> Iterator[Contest]:
    """Documents of very different lengths, and padding after them."""
    for length in LENGTHS[: 1 if is_quick else 2]:
        rows = Rows(length=length, key_heads=HEADS, documents=_ragged(length))
        yield from _contests(f"{length}", rows)


def _ragged(length: int) -> tuple[int, ...]:
    """Return lengths that halve from half a row down to 64, with 64 tokens left over."""
    return tuple(length >> shift for shift in range(1, length.bit_length()) if length >> shift > 63)


def _contests(name: str, rows: Rows) -> Iterator[Contest]:
    inputs = arrays(rows.inputs)
    spec = AttentionSpec(scale=WIDTH**-0.5, right=0)
    takes = {as_: kernel for as_, kernel in RIVALS.items() if _takes(kernel, inputs, spec)}
    for direction, run, share in (("forward", _forward, 1.0), ("both", _gradients, 3.5)):
        yield Contest(
            name=f"{name}_{direction}",
            rivals={as_: partial(run, kernel, spec) for as_, kernel in takes.items()},
            arguments=(inputs,),
            flops=share * rows.flops,
        )


def _takes(name: str, inputs: AttentionInputs, spec: AttentionSpec) -> bool:
    (kernel,) = [one for one in op_kernels("attention") if one.name == name]
    calls = []
    jax.eval_shape(lambda given: calls.append(ATTENTION_OP.call(given, spec, lse=False)), inputs)
    reason = kernel.unsupported_reason
    return reason is None or reason.resolve()(calls[0]) is None


def policy(**pins: str) -> KernelPolicy:
    """Return one with pins, for the GPU at hand, or an H100 where there is none."""
    is_here = jax.default_backend() == "gpu"
    hardware = Hardware.detect() if is_here else Hardware.parse("gpu-h100-1")
    return KernelPolicy(hardware=hardware, pins=pins, allow=("portable",))


def _forward(name: str, spec: AttentionSpec, inputs: AttentionInputs) -> Array:
    own = inputs._replace(k_segments_BS=inputs.q_segments_BT)  # one array, as layers give it
    with use_policy(policy(attention=name)):
        return ATTENTION_OP.run(own, spec, lse=False)[0]


def _gradients(name: str, spec: AttentionSpec, inputs: AttentionInputs) -> tuple[Array, ...]:
    def loss(qkv: tuple[Array, ...]) -> Array:
        whole = inputs._replace(q_BTNH=qkv[0], k_BSKH=qkv[1], v_BSKV=qkv[2])
        return jnp.sum(_forward(name, spec, whole).astype(jnp.float32))

    return jax.grad(loss)(tuple(inputs[:3]))


# -- Decoding ----------------------------------------------------------------------------------

PAGE = 64


def decode(is_quick: bool) -> Iterator[Contest]:
    """One query of each row against a cache that is full: what is waited for is memory."""
    heads, key_heads = 32, 8
    for batch, keys in ((1, 8192), (16, 8192), (64, 4096))[: 1 if is_quick else None]:
        shapes = ((batch, 1, heads, WIDTH), *2 * ((batch, keys, key_heads, WIDTH),))
        q, k, v = arrays(
            lambda shapes=shapes: [
                jax.random.normal(jax.random.key(seed), shape, jnp.bfloat16)
                for seed, shape in enumerate(shapes)
            ]
        )
        lengths = arrays(lambda batch=batch, keys=keys: jnp.full((batch,), keys, jnp.int32))
        for is_paged in (False, True):
            yield Contest(
                name=f"{batch}_rows_{keys}_keys{'_paged' * is_paged}",
                rivals={
                    **{name: partial(_whole, name) for name in _implementations()},
                    "portable": partial(_decoded, "portable", is_paged),
                    OURS: partial(_decoded, "gpu_decode_attention", is_paged),
                },
                arguments=(q, k, v, lengths),
                moved_bytes=2.0 * 2 * batch * keys * key_heads * WIDTH,
            )


def _implementations() -> tuple[str, ...]:
    """Return those of `jax.nn.dot_product_attention`; it asks a live GPU whether cuDNN is there.

    They know no pages, and get a contiguous cache there, too.
    """
    return ("xla", "cudnn") if jax.default_backend() == "gpu" else ("xla",)


def _decoded(kernel: str, is_paged: bool, q: Array, k: Array, v: Array, lengths: Array) -> Array:
    table: dict[str, Any] = {}
    if is_paged:
        batch, keys = k.shape[:2]
        table["page_table_BP"] = jnp.arange(batch * keys // PAGE).reshape(batch, -1)
        k, v = (x.reshape(-1, PAGE, *x.shape[2:]) for x in (k, v))
    with use_policy(policy(decode_attention=kernel)):
        return decode_attention(q, k, v, lengths, **table)


def _whole(implementation: Any, q: Array, k: Array, v: Array, lengths: Array) -> Array:
    return jax.nn.dot_product_attention(
        q, k, v, key_value_seq_lengths=lengths, implementation=implementation
    )
