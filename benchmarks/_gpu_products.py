"""Contests of products, the loss and norms on a GPU, and the ceilings that bound them all."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from _gpu import OURS, Contest, Rivals, arrays, normal
from jax import Array

EXPERTS, ROWS, WIDTH, OUT_WIDTH = 40, 32768, 4096, 1536
TOKENS, DIM, WORDS = 8192, 4096, 128_256
HIDDEN = 14_336
FLOAT8 = jnp.float8_e4m3fn


def with_gradients(fn: Callable[..., Array], num_arguments: int) -> Callable[..., Any]:
    """Return `fn` with the gradients of its weighted sum by its first arguments."""

    def total(*arguments: Array) -> Array:
        return jnp.sum(fn(*arguments).astype(jnp.float32) ** 2)

    return jax.value_and_grad(total, argnums=tuple(range(num_arguments)))


def ceilings(is_quick: bool) -> Iterator[Contest]:
    """A copy, and XLA's own products: what no kernel of the kind can pass by much."""
    size = 2**28 if is_quick else 2**31
    yield Contest(
        name="copy",
        rivals={"xla": lambda x: x + 1},
        arguments=(arrays(lambda: jnp.zeros(size, jnp.bfloat16)),),
        moved_bytes=4.0 * size,
    )
    for name, rows, width, out_width in (
        ("square", 8192, 8192, 8192),
        ("feed_forward", 4 * TOKENS, DIM, HIDDEN),
    )[: 1 if is_quick else None]:
        for dtype in (jnp.bfloat16, FLOAT8):
            yield Contest(
                name=f"{name}_{jnp.dtype(dtype).name}",
                rivals={"xla": _product},
                arguments=(
                    normal(0, rows, width, dtype=dtype),
                    normal(1, out_width, width, dtype=dtype),
                ),
                flops=2.0 * rows * width * out_width,
            )


def _product(x: Array, w: Array) -> Array:
    """Return `x w^T`: both in the order that cuBLAS wants them in float8."""
    return jax.lax.dot_general(x, w, (((1,), (1,)), ((), ())), preferred_element_type=jnp.bfloat16)


def grouped(is_quick: bool) -> Iterator[Contest]:
    """The products of experts, of which each has about as many rows."""
    from axl_gpu.kernels.grouped_matmul import api, mosaic

    from axcore.ops.grouped_matmul.op import GROUPED_MATMUL_OP, GroupedMatmulInputs

    def by(forward: Any, backward: Any) -> Callable[..., Array]:
        return lambda *arguments: GROUPED_MATMUL_OP.custom_vjp(
            GroupedMatmulInputs(*arguments), None, forward=forward, backward=backward
        )

    rivals: Rivals = {
        "mosaic": by(mosaic.mosaic_grouped_matmul, mosaic.mosaic_grouped_matmul_backward),
        "ragged_dot": jax.lax.ragged_dot,
        OURS: by(api.gpu_grouped_matmul, api.gpu_grouped_matmul_backward),
    }
    for experts, width, out_width in ((EXPERTS, WIDTH, OUT_WIDTH), (8, 4096, HIDDEN))[
        : 1 if is_quick else None
    ]:
        counts = jax.random.uniform(jax.random.key(3), (experts,), minval=0.5, maxval=1.5)
        sizes = jnp.floor(ROWS * counts / jnp.sum(counts)).astype(jnp.int32)
        arguments = (normal(0, ROWS, width), normal(1, experts, width, out_width), sizes)
        flops = 2.0 * float(jnp.sum(sizes)) * width * out_width
        yield from _both_ways(f"{experts}_experts", rivals, 2, arguments, flops=flops)


def loss(is_quick: bool) -> Iterator[Contest]:
    """Cross-entropy with the output projection: the portable kernel, ours, and all logits."""
    from axl_gpu.kernels.cross_entropy.api import gpu_cross_entropy, gpu_cross_entropy_backward

    from axcore.ops import CrossEntropyInputs, CrossEntropySpec
    from axcore.ops.cross_entropy.kernels import cross_entropy_portable
    from axcore.ops.cross_entropy.op import cross_entropy_custom_vjp

    def full_logits(x: Array, w: Array, targets: Array, weights: Array) -> Array:
        logits = jnp.einsum("btd,dv->btv", x, w, preferred_element_type=jnp.float32)
        target = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
        return jnp.sum(weights * (jax.nn.logsumexp(logits, axis=-1) - target))

    def by(kernel: Any) -> Callable[..., Array]:
        def total(*arguments: Array) -> Array:
            sums = kernel(CrossEntropyInputs(*arguments), CrossEntropySpec())
            result: Array = sums.loss
            return result

        return total

    ours = partial(
        cross_entropy_custom_vjp, forward=gpu_cross_entropy, backward=gpu_cross_entropy_backward
    )
    fns = {"portable": by(cross_entropy_portable), "full_logits": full_logits, OURS: by(ours)}
    targets = arrays(lambda: jax.random.randint(jax.random.key(2), (1, TOKENS), 0, WORDS))
    arguments = (
        normal(0, 1, TOKENS, DIM),
        normal(1, DIM, WORDS),
        targets,
        arrays(lambda: jnp.ones((1, TOKENS))),
    )
    flops = 2.0 * TOKENS * DIM * WORDS
    yield Contest(name="forward", rivals=fns, arguments=arguments, flops=flops)
    yield Contest(
        name="both",
        rivals={name: jax.value_and_grad(fn, (0, 1)) for name, fn in fns.items()},
        arguments=arguments,
        flops=3 * flops,
    )


def norm(is_quick: bool) -> Iterator[Contest]:
    """RMS normalisation by itself, as it seldom runs."""
    from axl_gpu.kernels.rms_norm.api import gpu_rms_norm, gpu_rms_norm_backward

    from axcore.ops import RmsNormInputs, RmsNormSpec
    from axcore.ops.rms_norm.kernels import rms_norm_portable
    from axcore.ops.rms_norm.op import RMS_NORM_OP

    ours = partial(RMS_NORM_OP.custom_vjp, forward=gpu_rms_norm, backward=gpu_rms_norm_backward)
    spec = RmsNormSpec(epsilon=1e-5)
    rivals = {
        name: partial(lambda kernel, *arguments: kernel(RmsNormInputs(*arguments), spec), kernel)
        for name, kernel in {"portable": rms_norm_portable, OURS: ours}.items()
    }
    arguments = (normal(0, 4 * TOKENS, DIM), normal(1, DIM))
    yield from _both_ways("rows", rivals, 2, arguments, moved_bytes=4.0 * 4 * TOKENS * DIM)


def float8(is_quick: bool) -> Iterator[Contest]:
    """The forward product of a linear layer, with the weights stored as layers do."""
    from axl_gpu.kernels.matmul.float8 import gpu_float8_matmul

    from axcore.ops import MatmulSpec, Operands, QuantizedArray
    from axcore.ops.quantized.kernels import float8_matmul

    spec = MatmulSpec(product="forward", contracting=((1,), (0,)), dtype="bfloat16")

    def by(kernel: Any) -> Callable[..., Array]:
        def product(x: Array, w: Array) -> Array:
            scale = jnp.float32(0.5)
            y: Array = kernel(Operands(QuantizedArray(x, scale), QuantizedArray(w, scale)), spec)
            return y

        return product

    yield Contest(
        name="forward",
        rivals={"xla": by(float8_matmul), OURS: by(gpu_float8_matmul)},
        arguments=(
            normal(0, TOKENS, DIM, dtype=FLOAT8),
            normal(1, DIM, HIDDEN, dtype=FLOAT8),
        ),
        flops=2.0 * TOKENS * DIM * HIDDEN,
    )


def _both_ways(
    name: str,
    rivals: Rivals,
    num_differentiated: int,
    arguments: tuple[Any, ...],
    *,
    flops: float | None = None,
    moved_bytes: float | None = None,
) -> Iterator[Contest]:
    """Yield the forward pass, and it with its gradients: three times the work."""
    steps = {one: with_gradients(rival, num_differentiated) for one, rival in rivals.items()}
    for direction, fns, share in (("forward", rivals, 1.0), ("both", steps, 3.0)):
        yield Contest(
            name=f"{name}_{direction}",
            rivals=fns,
            arguments=arguments,
            flops=None if flops is None else share * flops,
            moved_bytes=None if moved_bytes is None else share * moved_bytes,
        )
