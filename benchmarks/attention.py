"""Portable attention against `jax.nn.dot_product_attention` in the same process.

    python benchmarks/attention.py            # every case
    python benchmarks/attention.py --quick    # only the size that `axcore train tiny` uses

Goals: at 8k tokens at most 1/8 of the rival's temporaries and not slower; at 256 tokens not slower.
"""

import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from _race import race, ratios
from _record import record
from jax import Array

from axcore.ops import attention

CASES: dict[str, dict[str, Any]] = {
    "256_tokens_causal_float32": {"shape": (32, 256, 4, 64), "causal": True, "repeats": 15},
    "256_tokens_causal_bfloat16": {
        "shape": (32, 256, 4, 64),
        "causal": True,
        "dtype": jnp.bfloat16,
        "repeats": 15,
    },
    "8k_tokens_float32": {"shape": (1, 8192, 4, 64), "causal": False},
    "8k_tokens_causal_float32": {"shape": (1, 8192, 4, 64), "causal": True},
    "8k_tokens_causal_bfloat16": {
        "shape": (1, 8192, 4, 64),
        "causal": True,
        "dtype": jnp.bfloat16,
    },
}


def portable(causal: bool) -> Callable[..., Array]:
    return lambda q, k, v: attention(q, k, v, causal=causal)


def rival(causal: bool) -> Callable[..., Array]:
    return lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=causal)


def with_gradients(attend: Callable[..., Array]) -> Callable[..., Any]:
    """Return a function to the output and the gradients of q, k and v."""

    def step(q: Array, k: Array, v: Array) -> Any:
        o, gradients = jax.vjp(attend, q, k, v)
        return o, gradients(o)

    return step


def measure(
    shape: tuple[int, ...], causal: bool, dtype: Any = jnp.float32, repeats: int = 3
) -> dict[str, Any]:
    q, k, v = (
        jax.random.normal(key, shape, dtype) for key in jax.random.split(jax.random.key(0), 3)
    )
    rivals = {"portable": portable(causal), "jax.nn": rival(causal)}
    forward = race(rivals, q, k, v, repeats=repeats)
    steps = {name: with_gradients(attend) for name, attend in rivals.items()}
    both = race(steps, q, k, v, repeats=repeats)
    return {
        "shape_BTNH": list(shape),
        "forward": forward,
        "forward_ratio": ratios(forward, ours="portable", rival="jax.nn"),
        "forward_and_backward": both,
        "forward_and_backward_ratio": ratios(both, ours="portable", rival="jax.nn"),
    }


if __name__ == "__main__":
    is_quick = "--quick" in sys.argv
    chosen = [name for name in CASES if not is_quick or name.startswith("256")]
    figures = {name: measure(**CASES[name]) for name in chosen}
    print(record("attention_quick" if is_quick else "attention", figures))
