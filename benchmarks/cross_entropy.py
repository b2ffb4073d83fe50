"""Portable cross-entropy against optax's loss on full logits, in the same process.

    python benchmarks/cross_entropy.py

Goals at a vocabulary of 128k: at most 1/10 of the rival's temporaries and 1.15 times its time.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from _race import race, ratios
from _record import record
from jax import Array

from axcore.ops import cross_entropy

CASES: dict[str, dict[str, Any]] = {
    "128k_vocabulary_float32": {"batch": 4, "time": 1024, "width": 128, "vocabulary": 2**17},
    "128k_vocabulary_bfloat16": {
        "batch": 4,
        "time": 1024,
        "width": 128,
        "vocabulary": 2**17,
        "dtype": jnp.bfloat16,
    },
    "bytes_float32": {"batch": 32, "time": 256, "width": 256, "vocabulary": 256, "repeats": 15},
}


def portable(x: Array, w: Array, targets: Array) -> Array:
    loss, weight = cross_entropy(x, w, targets, jnp.ones(targets.shape))
    return loss / weight


def full_logits(x: Array, w: Array, targets: Array) -> Array:
    logits = jnp.einsum("btd,dv->btv", x, w, preferred_element_type=jnp.float32)
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()


def measure(
    batch: int, time: int, width: int, vocabulary: int, dtype: Any = jnp.float32, repeats: int = 3
) -> dict[str, Any]:
    x_key, w_key, target_key = jax.random.split(jax.random.key(0), 3)
    x = jax.random.normal(x_key, (batch, time, width), dtype)
    w = (0.02 * jax.random.normal(w_key, (width, vocabulary))).astype(dtype)
    targets = jax.random.randint(target_key, (batch, time), 0, vocabulary)
    rivals = {"portable": portable, "full_logits": full_logits}
    steps = {name: jax.value_and_grad(loss, argnums=(0, 1)) for name, loss in rivals.items()}
    measured = race(steps, x, w, targets, repeats=repeats)
    return {
        "shape_BTDV": [batch, time, width, vocabulary],
        "full_logits_mib": batch * time * vocabulary * 4 / 2**20,
        "loss_and_gradients": measured,
        "ratio": ratios(measured, ours="portable", rival="full_logits"),
    }


if __name__ == "__main__":
    print(record("cross_entropy", {name: measure(**case) for name, case in CASES.items()}))
