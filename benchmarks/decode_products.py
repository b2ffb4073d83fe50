"""What the products of a decoded token take on a CPU, by how weights lie in memory.

    python benchmarks/decode_products.py

The products of `serving.py`'s model of 32M, in the order of its layers, of 1, 8 and 16 rows: with
weights as layers keep them, and in panels of 64 columns, as libraries of matrix products lay a
weight out before they multiply. Both take turns; a figure is the least of them. It says where the
time of eight rows goes beside llama.cpp's, which multiplies without laying weights out again.
"""

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
from _record import record
from _serving_load import MODELS

PANEL = 64
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100)
    rounds = parser.parse_args().rounds
    forms = {
        "as_kept": (token(jnp.matmul), weights(lambda weight: weight)),
        "in_panels": (token(times_panels), weights(in_panels)),
    }
    num_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(forms["as_kept"][1]))
    figures: dict[str, Any] = {"weights_mb": round(num_bytes / 1e6, 1)}
    for rows in (1, 8, 16):
        x = jnp.ones((rows, SIZES["dim"]), jnp.float32)
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in forms}
        for turn in range(rounds + 1):
            for name, (run, layers) in forms.items():
                began, used = time.perf_counter(), time.process_time()
                jax.block_until_ready(run(x, layers))
                if turn:
                    taken[name].append((time.perf_counter() - began, time.process_time() - used))
        figures[f"{rows}_rows"] = {
            name: {
                "ms": round(min(wall for wall, _ in some) * 1e3, 2),
                "processor_ms": round(min(used for _, used in some) * 1e3, 2),
                "gb_per_s": round(num_bytes / min(wall for wall, _ in some) / 1e9, 1),
            }
            for name, some in taken.items()
        }
        print(rows, "rows:", figures[f"{rows}_rows"], flush=True)
    record("decode_products", figures)


if __name__ == "__main__":
    main()
