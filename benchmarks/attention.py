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
    "8k_tokens_of_8_documents_float32": {
        "shape": (1, 8192, 4, 64),
        "causal": True,
        "documents": 8,
    },
}


def portable(causal: bool, segments_BT: Array | None) -> Callable[..., Array]:
    return lambda q, k, v: attention(q, k, v, causal=causal, segment_ids=segments_BT)


def rival(causal: bool, segments_BT: Array | None) -> Callable[..., Array]:
    def attend(q: Array, k: Array, v: Array) -> Array:
        mask = None
        if segments_BT is not None:
            mask = (segments_BT[:, :, None] == segments_BT[:, None, :])[:, None]
        return jax.nn.dot_product_attention(q, k, v, mask=mask, is_causal=causal)

    return attend


def documents_of(shape: tuple[int, ...], count: int | None) -> Array | None:
    """Return segments of documents of equal length; None for one document."""
    if count is None:
        return None
    row = 1 + jnp.arange(shape[1], dtype=jnp.int32) // (shape[1] // count)
    return jnp.broadcast_to(row, shape[:2])


def with_gradients(attend: Callable[..., Array]) -> Callable[..., Any]:
    """Return a function to the output and the gradients of q, k and v."""

    def step(q: Array, k: Array, v: Array) -> Any:
        o, gradients = jax.vjp(attend, q, k, v)
        return o, gradients(o)

    return step


def measure(
    shape: tuple[int, ...],
    causal: bool,
    dtype: Any = jnp.float32,
    repeats: int = 3,
    documents: int | None = None,
) -> dict[str, Any]:
    q, k, v = (
        jax.random.normal(key, shape, dtype) for key in jax.random.split(jax.random.key(0), 3)
    )
    segments_BT = documents_of(shape, documents)
    rivals = {"portable": portable(causal, segments_BT), "jax.nn": rival(causal, segments_BT)}
    forward = race(rivals, q, k, v, repeats=repeats)
    steps = {name: with_gradients(attend) for name, attend in rivals.items()}
    both = race(steps, q, k, v, repeats=repeats)
    return {
        "shape_BTNH": list(shape),
        "documents": documents or 1,
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
