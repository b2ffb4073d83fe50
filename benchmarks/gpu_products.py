"""Products and norms on a Hopper GPU: kernels of our own, those of libraries, and XLA's.

    python benchmarks/gpu_products.py             # all
    python benchmarks/gpu_products.py grouped     # or some of grouped, loss, norm, float8
    python benchmarks/gpu_products.py --dry-run   # trace all of them, anywhere

writes `results/gpu_products.json`. Without a GPU it says so, writes nothing and exits with 1.

Goals: the grouped product above 400 TFLOP/s at 40 experts; cross-entropy faster than with full
logits, in at most a tenth of their memory.
"""

import argparse
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from _gpu import gpu, median_seconds, stop_where_something_is_missing
from _record import record
from jax import Array

Rivals = Mapping[str, Callable[..., Any]]

EXPERTS, ROWS, WIDTH, OUT_WIDTH = 40, 32768, 4096, 1536
TOKENS, DIM, WORDS = 8192, 4096, 128_256
HIDDEN = 14_336


def race(rivals: Rivals, arrays: tuple[Array, ...], *, flops: float | None) -> dict[str, Any]:
    """Returns time, temporaries and TFLOP/s of each rival, or why it did not run."""
    figures: dict[str, Any] = {}
    for name, rival in rivals.items():
        if isinstance(arrays[0], jax.ShapeDtypeStruct):
            figures[name] = str(jax.eval_shape(rival, *arrays))
            continue
        try:
            program = jax.jit(rival).lower(*arrays).compile()
            run = partial(program, *arrays)
            seconds = median_seconds(run, jax.block_until_ready, repeats=10)
        except jax.errors.JaxRuntimeError as error:  # out of memory, for example
            figures[name] = {"failed": str(error).splitlines()[0]}
            continue
        memory = program.memory_analysis().temp_size_in_bytes
        one = {"median_ms": 1e3 * seconds, "temporaries_mib": memory / 2**20}
        if flops is not None:
            one["tflops"] = flops / seconds / 1e12
        figures[name] = {key: round(value, 4) for key, value in one.items()}
    return figures


def with_gradients(fn: Callable[..., Array], num_arguments: int) -> Callable[..., Any]:
    """Returns `fn` with the gradients of its weighted sum by its first arguments."""

    def total(*arrays: Array) -> Array:
        return jnp.sum(fn(*arrays).astype(jnp.float32) ** 2)

    return jax.value_and_grad(total, argnums=tuple(range(num_arguments)))


def normal(seed: int, *shape: int, dtype: Any = jnp.bfloat16) -> Array:
    """Returns random numbers of that shape; in a dry run their shape alone."""
    make = lambda: jax.random.normal(jax.random.key(seed), shape).astype(dtype)  # noqa: E731
    return make() if jax.default_backend() == "gpu" else jax.eval_shape(make)


def grouped() -> dict[str, Any]:
    """Measures the products of experts, of which each has about as many rows."""
    from axl_gpu.kernels.grouped_matmul import api, mosaic

    from axcore.ops.grouped_matmul.types import GroupedMatmulInputs
    from axcore.ops.grouped_matmul.vjp import grouped_matmul_custom_vjp

    def by(forward: Any, backward: Any) -> Callable[..., Array]:
        return lambda *arrays: grouped_matmul_custom_vjp(
            GroupedMatmulInputs(*arrays), None, forward=forward, backward=backward
        )

    counts = jax.random.uniform(jax.random.key(3), (EXPERTS,), minval=0.5, maxval=1.5)
    sizes = jnp.floor(ROWS * counts / jnp.sum(counts)).astype(jnp.int32)
    arrays = (normal(0, ROWS, WIDTH), normal(1, EXPERTS, WIDTH, OUT_WIDTH), sizes)
    rivals: Rivals = {
        "gpu_grouped_matmul": by(api.gpu_grouped_matmul, api.gpu_grouped_matmul_backward),
        "mosaic_grouped_matmul": by(
            mosaic.mosaic_grouped_matmul, mosaic.mosaic_grouped_matmul_backward
        ),
        "ragged_dot": jax.lax.ragged_dot,
    }
    flops = 2.0 * float(jnp.sum(sizes)) * WIDTH * OUT_WIDTH
    steps = {name: with_gradients(fn, 2) for name, fn in rivals.items()}
    return {
        "experts_rows_widths": [EXPERTS, ROWS, WIDTH, OUT_WIDTH],
        "forward": race(rivals, arrays, flops=flops),
        "forward_and_backward": race(steps, arrays, flops=3 * flops),
    }


def loss() -> dict[str, Any]:
    """Measures cross-entropy, with the output projection, forward and backward."""
    from axl_gpu.kernels.cross_entropy.api import gpu_cross_entropy, gpu_cross_entropy_backward

    from axcore.ops import CrossEntropyInputs, CrossEntropySpec
    from axcore.ops.cross_entropy.portable import cross_entropy_portable
    from axcore.ops.cross_entropy.vjp import cross_entropy_custom_vjp

    def full_logits(x: Array, w: Array, targets: Array, weights: Array) -> Array:
        logits = jnp.einsum("btd,dv->btv", x, w, preferred_element_type=jnp.float32)
        target = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
        return jnp.sum(weights * (jax.nn.logsumexp(logits, axis=-1) - target))

    def by(kernel: Any) -> Callable[..., Array]:
        def total(*arrays: Array) -> Array:
            sums = kernel(CrossEntropyInputs(*arrays), CrossEntropySpec())
            result: Array = sums.loss
            return result

        return total

    ours = partial(
        cross_entropy_custom_vjp, forward=gpu_cross_entropy, backward=gpu_cross_entropy_backward
    )
    fns = {
        "gpu_cross_entropy": by(ours),
        "portable": by(cross_entropy_portable),
        "full_logits": full_logits,
    }
    targets = jax.random.randint(jax.random.key(2), (1, TOKENS), 0, WORDS)
    arrays = (normal(0, 1, TOKENS, DIM), normal(1, DIM, WORDS), targets, jnp.ones((1, TOKENS)))
    rivals = {name: jax.value_and_grad(fn, (0, 1)) for name, fn in fns.items()}
    return {
        "tokens_width_words": [TOKENS, DIM, WORDS],
        "logits_mib": 4 * TOKENS * WORDS / 2**20,
        "forward": race(fns, arrays, flops=None),
        "forward_and_backward": race(rivals, arrays, flops=None),
    }


def norm() -> dict[str, Any]:
    """Measures RMS normalisation by itself, as it seldom runs."""
    from axl_gpu.kernels.rms_norm.api import gpu_rms_norm, gpu_rms_norm_backward

    from axcore.ops import RmsNormInputs, RmsNormSpec
    from axcore.ops.rms_norm.portable import rms_norm_portable
    from axcore.ops.rms_norm.vjp import rms_norm_custom_vjp

    ours = partial(rms_norm_custom_vjp, forward=gpu_rms_norm, backward=gpu_rms_norm_backward)
    kernels = {"gpu_rms_norm": ours, "portable": rms_norm_portable}
    spec = RmsNormSpec(epsilon=1e-5)
    fns = {
        name: partial(lambda kernel, *arrays: kernel(RmsNormInputs(*arrays), spec), kernel)
        for name, kernel in kernels.items()
    }
    arrays = (normal(0, TOKENS, DIM), normal(1, DIM))
    return {
        "tokens_width": [TOKENS, DIM],
        "forward": race(fns, arrays, flops=None),
        "forward_and_backward": race(
            {name: with_gradients(fn, 2) for name, fn in fns.items()}, arrays, flops=None
        ),
    }


def float8() -> dict[str, Any]:
    """Measures the forward product of a linear layer, with the weights stored as layers do."""
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

    narrow = jnp.float8_e4m3fn
    x, w = normal(0, TOKENS, DIM, dtype=narrow), normal(1, DIM, HIDDEN, dtype=narrow)
    kernels = {"gpu_float8_matmul": gpu_float8_matmul, "float8": float8_matmul}
    rivals = {name: by(kernel) for name, kernel in kernels.items()}
    return {
        "rows_widths": [TOKENS, DIM, HIDDEN],
        "forward": race(rivals, (x, w), flops=2.0 * TOKENS * DIM * HIDDEN),
    }


PARTS = {"grouped": grouped, "loss": loss, "norm": norm, "float8": float8}


def main() -> None:
    """Measures the parts that are asked for, and records them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", help=", ".join(PARTS))
    parser.add_argument("--dry-run", action="store_true", help="measure nothing, trace all")
    given = parser.parse_args()
    names = given.parts or list(PARTS)
    if unknown := set(names) - set(PARTS):
        parser.error(f"no parts are named {', '.join(sorted(unknown))}; there are {list(PARTS)}")
    if given.dry_run:
        print(f"{len([PARTS[name]() for name in names])} parts can start")
        return
    stop_where_something_is_missing()
    print(record("gpu_products", {**gpu(), **{name: PARTS[name]() for name in names}}))


if __name__ == "__main__":
    main()
