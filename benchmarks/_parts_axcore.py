"""`tiny_parts.py`: parts of `tiny`'s step, each a program of its own by axcore's ops."""

from collections.abc import Callable
from typing import Any

from _tiny_axcore import train_step  # first: it imports numpy and jax when memory is kept

# isort: split
import _tiny_worker as worker
import jax
import jax.numpy as jnp
import numpy as np
import optax

from axcore.layers.attention.rope import rope_frequencies, rotate
from axcore.layers.linear import over_rows
from axcore.ops import KernelPolicy, attention, cross_entropy, rms_norm, use_policy
from axcore.plugins import Hardware

TOKENS, TARGETS = (jnp.asarray(one) for one in worker.batch())
POSITIONS = jnp.broadcast_to(jnp.arange(worker.TOKENS), TOKENS.shape)
ONES = jnp.ones(TOKENS.shape, jnp.float32)


def array(*shape: int) -> jax.Array:
    values = np.random.default_rng(sum(shape)).standard_normal(shape)
    return jnp.asarray(0.05 * values, jnp.float32)


def of_rows(*shape: int) -> jax.Array:
    return array(worker.ROWS, worker.TOKENS, *shape)


def both_passes(fn: Callable[..., Any], *arrays: Any) -> Callable[[], Any]:
    """Return a call of the function and of its gradient, jitted together."""

    def run(grads: Any, *arrays: Any) -> Any:
        results, backward = jax.vjp(fn, *arrays)
        return results, backward(grads)

    program = jax.jit(run)
    grads = jax.tree.map(jnp.ones_like, jax.jit(fn)(*arrays))
    return lambda: jax.block_until_ready(program(grads, *arrays))


def projected(x: jax.Array, w: jax.Array) -> jax.Array:
    return over_rows(lambda rows: rows @ w, x)


def products() -> Callable[[], Any]:
    sizes = worker.PRODUCTS
    return both_passes(
        lambda xs, ws: [projected(x, w) for x, w in zip(xs, ws, strict=True)],
        [of_rows(inputs) for inputs, _ in sizes],
        [array(*size) for size in sizes],
    )


def causal(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    return attention(q, k, v, causal=True, segment_ids=TOKENS * 0 + 1)


def rotated(q: jax.Array, k: jax.Array) -> Any:
    frequencies = rope_frequencies(worker.WIDTH, 10_000.0)
    return rotate(q, k, POSITIONS, frequencies=frequencies)


def loss(x: jax.Array, head: jax.Array) -> jax.Array:
    total, weight = cross_entropy(x, head, TARGETS, ONES, vocabulary_first=True)
    return total / weight


def optimizer() -> Callable[[], Any]:
    by = optax.chain(
        optax.clip_by_global_norm(worker.CLIP_NORM),
        optax.adamw(worker.RATE, *worker.BETAS, weight_decay=worker.WEIGHT_DECAY),
    )
    params = [array(worker.LAYERS, *size) for size in worker.PRODUCTS]
    params += [array(worker.WORDS, worker.DIM) for _ in range(2)]
    state = (params, by.init(params))

    def update(state: Any, grads: Any) -> Any:
        params, inner = state
        updates, inner = by.update(grads, inner, params)
        return optax.apply_updates(params, updates), inner

    program = jax.jit(update, donate_argnums=0)
    grads = jax.tree.map(jnp.copy, params)

    def run() -> None:
        nonlocal state
        state = jax.block_until_ready(program(state, grads))

    return run


def parts() -> dict[str, Callable[[], Any]]:
    hidden, queries = of_rows(worker.HIDDEN), of_rows(worker.HEADS, worker.WIDTH)
    keys, x = of_rows(worker.KEY_HEADS, worker.WIDTH), of_rows(worker.DIM)
    table = array(worker.WORDS, worker.DIM)
    return {
        "products": products(),
        "attention": both_passes(causal, queries, keys, keys),
        "rotary": both_passes(rotated, queries, keys),
        "gate": both_passes(lambda gate, up: jax.nn.silu(gate) * up, hidden, hidden),
        "norm": both_passes(rms_norm, x, array(worker.DIM)),
        "loss": both_passes(loss, x, table),
        "embedding": both_passes(lambda table: jnp.take(table, TOKENS, axis=0), table),
        "optimizer": optimizer(),
        "step": train_step()[0],
    }


if __name__ == "__main__":
    worker.use_one_core()
    with use_policy(KernelPolicy(hardware=Hardware.parse("cpu-1"))):
        worker.serve_parts(parts())
