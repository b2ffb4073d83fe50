"""What products and attention of a decoded token take on a CPU.

    python benchmarks/decode_products.py

The products of `serving.py`'s model of 32M, in the order of its layers, of 1, 8 and 16 rows: with
weights as layers keep them, and in panels of 64 columns, as libraries of matrix products lay a
weight out before they multiply; and attention of all layers over caches of 150 tokens a row, in
pages of 16. All take turns; a figure is the median of them. It says where the time of eight rows
goes beside llama.cpp's, which lays out neither weights nor caches again.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
from _record import record
from _serving_load import MODELS

from axcore.ops.decode.portable import decode_attention_portable
from axcore.ops.decode.types import DecodeInputs, DecodeSpec

PANEL, PAGE, TOKENS = 64, 16, 150
SIZES = MODELS["32M"]


def weights(layout: Callable[[np.ndarray], np.ndarray]) -> list[list[jax.Array]]:
    """Returns the weights of each layer, and of the head."""
    draw = np.random.default_rng(0)
    dim, hidden = SIZES["dim"], SIZES["hidden_dim"]
    layer = [(dim, dim)] * 4 + [(dim, hidden)] * 2 + [(hidden, dim)]
    shapes = [layer] * SIZES["num_layers"] + [[(dim, SIZES["vocab_size"])]]
    return [
        [
            jnp.asarray(layout(draw.standard_normal(shape, dtype=np.float32) * 0.02))
            for shape in some
        ]
        for some in shapes
    ]


def in_panels(weight: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(weight.reshape(len(weight), -1, PANEL).swapaxes(0, 1))


def times_panels(x: jax.Array, panels: jax.Array) -> jax.Array:
    many = jnp.broadcast_to(x, (len(panels), *x.shape))
    return jnp.matmul(many, panels).swapaxes(0, 1).reshape(len(x), -1)


def token(times: Callable[[jax.Array, jax.Array], jax.Array]) -> Callable[..., jax.Array]:
    """Returns a function that multiplies as the layers of a model do, and little besides."""

    def run(x: jax.Array, layers: list[list[jax.Array]]) -> jax.Array:
        for q, k, v, out, gate, up, down in layers[:-1]:
            x = x + times(times(x, q) * times(x, k) + times(x, v), out)
            x = x + times(times(x, gate) * times(x, up), down)
            x = x / (1 + jnp.max(jnp.abs(x)))
        return times(x, layers[-1][0])

    return jax.jit(run)


def caches(rows: int) -> DecodeInputs:
    """Returns queries and a cache of so many rows."""
    draw, heads = np.random.default_rng(0), SIZES["num_heads"]
    pages = -(-TOKENS // PAGE)
    cache = (rows * pages, PAGE, heads, SIZES["dim"] // heads)
    q, k, v = (
        jnp.asarray(draw.standard_normal(shape, dtype=np.float32))
        for shape in ((rows, 1, *cache[2:]), cache, cache)
    )
    table = jnp.arange(rows * pages, dtype=jnp.int32).reshape(rows, pages)
    lengths = jnp.full(rows, TOKENS, jnp.int32)
    return DecodeInputs(q_BTNH=q, k=k, v=v, lengths_B=lengths, page_table_BP=table)


def attention(x: jax.Array, layers: list[DecodeInputs]) -> jax.Array:
    """Returns queries after the attention of each layer, which has a cache of its own."""
    spec = DecodeSpec(scale=0.125)
    for inputs in layers:
        x = x + decode_attention_portable(inputs._replace(q_BTNH=x), spec)
    return x


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100)
    rounds = parser.parse_args().rounds
    forms = {
        "as_kept": (token(jnp.matmul), weights(lambda weight: weight)),
        "in_panels": (token(times_panels), weights(in_panels)),
    }
    figures: dict[str, Any] = {}
    for rows in (1, 8, 16):
        x, inputs = jnp.ones((rows, SIZES["dim"]), jnp.float32), caches(rows)
        own = [inputs._replace(k=inputs.k + i, v=inputs.v + i) for i in range(SIZES["num_layers"])]
        calls = {name: (run, x, layers) for name, (run, layers) in forms.items()}
        calls["attention"] = (jax.jit(attention), inputs.q_BTNH, own)
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
        for turn in range(rounds + 1):
            for name, (run, x, layers) in calls.items():
                began, used = time.perf_counter(), time.process_time()
                jax.block_until_ready(run(x, layers))
                if turn:
                    taken[name].append((time.perf_counter() - began, time.process_time() - used))
        figures[f"{rows}_rows"] = {
            name: {
                "ms": round(statistics.median(wall for wall, _ in some) * 1e3, 2),
                "processor_ms": round(statistics.median(used for _, used in some) * 1e3, 2),
            }
            for name, some in taken.items()
        }
        print(rows, "rows:", figures[f"{rows}_rows"], flush=True)
    record("decode_products", figures)


if __name__ == "__main__":
    main()
