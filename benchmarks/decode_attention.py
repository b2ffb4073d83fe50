"""Portable decode attention against `jax.nn.dot_product_attention` with the length of each row.

    python benchmarks/decode_attention.py            # every case
    python benchmarks/decode_attention.py --quick    # a short cache only

Goals: not slower on a full cache, at most half the time on one that is a quarter full, paged too.
"""

import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from _race import race, ratios
from _record import record
from jax import Array

from axcore.ops import decode_attention

PAGE_SIZE = 64

CASES: dict[str, dict[str, int]] = {
    "1_row_4k_keys": {"rows": 1, "keys": 4096, "heads": 32, "key_heads": 8, "width": 128},
    "1_row_4k_keys_quarter_full": {
        "rows": 1,
        "keys": 4096,
        "heads": 32,
        "key_heads": 8,
        "width": 128,
        "length": 1024,
    },
    "8_rows_2k_keys": {"rows": 8, "keys": 2048, "heads": 8, "key_heads": 4, "width": 64},
    "quick": {"rows": 1, "keys": 512, "heads": 8, "key_heads": 4, "width": 64},
}


def rivals(table_BP: Array) -> dict[str, Callable[..., Array]]:
    def paged(q: Array, k: Array, v: Array, lengths: Array) -> Array:
        pools = (x.reshape(-1, PAGE_SIZE, *x.shape[2:]) for x in (k, v))
        return decode_attention(q, *pools, lengths, page_table_BP=table_BP)

    def whole(q: Array, k: Array, v: Array, lengths: Array) -> Array:
        return jax.nn.dot_product_attention(q, k, v, key_value_seq_lengths=lengths)

    return {"contiguous": decode_attention, "paged": paged, "jax.nn": whole}


def measure(
    rows: int, keys: int, heads: int, key_heads: int, width: int, length: int | None = None
) -> dict[str, Any]:
    shapes = [(rows, 1, heads, width), *2 * [(rows, keys, key_heads, width)]]
    random = jax.random.split(jax.random.key(0), 3)
    arrays = [jax.random.normal(*pair) for pair in zip(random, shapes, strict=True)]
    lengths = jnp.full((rows,), length or keys, jnp.int32)
    table = jnp.arange(rows * keys // PAGE_SIZE, dtype=jnp.int32).reshape(rows, -1)
    timed = race(rivals(table), *arrays, lengths, repeats=25)
    return {
        "q_BTNH": list(shapes[0]),
        "cache_BSKH": list(shapes[1]),
        "length": length or keys,
        "decode": timed,
        "contiguous_ratio": ratios(timed, ours="contiguous", rival="jax.nn"),
        "paged_ratio": ratios(timed, ours="paged", rival="jax.nn"),
    }


if __name__ == "__main__":
    is_quick = "--quick" in sys.argv
    chosen = [name for name in CASES if (name == "quick") == is_quick]
    figures = {name: measure(**CASES[name]) for name in chosen}
    print(record("decode_attention_quick" if is_quick else "decode_attention", figures))
