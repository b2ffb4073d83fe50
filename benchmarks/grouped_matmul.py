"""Portable grouped matrix product against `lax.ragged_dot` in the same process.

    python benchmarks/grouped_matmul.py

Goal: at 64 groups at least 4 times faster on CPU.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _race import race, ratios
from _record import record
from jax import Array, lax

from axcore.ops import grouped_matmul

CASES = {f"{num_groups}_groups": num_groups for num_groups in (8, 64)}
ROWS, WIDTH, OUT_WIDTH = 2048, 256, 512


def loss(product: Any) -> Any:
    def total(x: Array, w: Array, group_sizes: Array) -> Array:
        return jnp.sum(jnp.square(product(x, w, group_sizes)))

    return total


def measure(num_groups: int) -> dict[str, Any]:
    numbers = np.random.default_rng(0)
    x = jnp.asarray(numbers.standard_normal((ROWS, WIDTH)), jnp.float32)
    w = jnp.asarray(numbers.standard_normal((num_groups, WIDTH, OUT_WIDTH)), jnp.float32)
    shares = numbers.dirichlet(np.ones(num_groups))
    group_sizes = jnp.asarray(numbers.multinomial(ROWS, shares), jnp.int32)
    products = {"portable": grouped_matmul, "ragged_dot": lax.ragged_dot}
    forward = race(products, x, w, group_sizes, repeats=3)
    steps = {name: jax.value_and_grad(loss(f), argnums=(0, 1)) for name, f in products.items()}
    both = race(steps, x, w, group_sizes, repeats=3)
    return {
        "rows": ROWS,
        "shape_EDF": [num_groups, WIDTH, OUT_WIDTH],
        "forward": forward,
        "forward_ratio": ratios(forward, ours="portable", rival="ragged_dot"),
        "forward_and_backward": both,
        "forward_and_backward_ratio": ratios(both, ours="portable", rival="ragged_dot"),
    }


if __name__ == "__main__":
    print(
        record("grouped_matmul", {name: measure(num_groups) for name, num_groups in CASES.items()})
    )
