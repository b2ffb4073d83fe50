"""What the program of a token takes on a CPU, by the kernels of axl-cpu and by XLA alone.

    python benchmarks/host_kernels.py [--rounds 5] [--models 32M 125M]

The models are those of `serving.py`, of random numbers, with 150 tokens a row in pages of 16; each
program reads a token of 1 or 8 rows and gives the likeliest next one. Weights are in float32,
bfloat16, which activations then are as well, int8 and int4; caches are in the type of activations,
or in float16. All take turns, of several calls; a figure is the median of calls, without an engine.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import attrs
import jax
import jax.numpy as jnp
import numpy as np
from _record import record
from _serving_load import MODELS

from axcore.config import evolve
from axcore.inference.cached_model import CachedModel
from axcore.layers import KVCacheConfig, PagedKVCacheConfig
from axcore.models import transformer
from axcore.modifiers import NAMED_WEIGHTS, KVCache, QuantizedWeights
from axcore.module import DType, DTypes, ParamSpec
from axcore.ops import current_policy, use_policy

PAGE, PAGES, TOKENS = 16, 12, 150
ROWS = (1, 8)
TOGETHER = 6
"""Calls of a turn, of which the first finds what the one before it left in the caches."""


class Form(NamedTuple):
    """What a model computes in, what it keeps weights in, and whether caches are in float16."""

    compute: DType = "float32"
    quantization: QuantizedWeights | None = None
    has_half_cache: bool = False


FORMS = {
    "float32": Form(),
    "float32_half_cache": Form(has_half_cache=True),
    "bfloat16": Form("bfloat16"),
    "bfloat16_half_cache": Form("bfloat16", has_half_cache=True),
    "int8": Form(quantization=NAMED_WEIGHTS["int8"]),
    "int4": Form(quantization=NAMED_WEIGHTS["int4"]),
}
KERNELS: dict[str, dict[str, str]] = {
    "axl_cpu": {},
    "xla": {"decode_matmul": "portable", "decode_attention": "portable"},
}


def drawn(name: str, form: Form) -> tuple[Any, Any]:
    """Return a model and a state of it."""
    cfg = evolve(transformer(**MODELS[name]), dtypes=DTypes(compute=form.compute))
    if form.has_half_cache:
        cfg = KVCache(dtype="float16").apply(cfg, current_policy().hardware)
    model = cfg.build()
    draw = np.random.default_rng(0)

    def numbers(spec: ParamSpec) -> jax.Array:
        return jnp.asarray(0.05 * draw.standard_normal(spec.shape, dtype=np.float32))

    is_spec = lambda leaf: isinstance(leaf, ParamSpec)  # noqa: E731
    return model, jax.tree.map(numbers, model.param_specs(), is_leaf=is_spec)


def token(
    model: Any, state: Any, rows: int, form: Form, pins: dict[str, str]
) -> Callable[[], jax.Array]:
    """Return what reads a token of each row, and the next one the time after."""
    policy = attrs.evolve(current_policy(), pins=pins)
    pages = PagedKVCacheConfig(num_pages=rows * PAGES, page_size=PAGE)
    cache_config = KVCacheConfig(
        num_rows=rows, capacity=PAGES * PAGE, max_length=PAGES * PAGE, pages=pages
    )
    with use_policy(policy):
        served = CachedModel(
            model, state, cache_config, compute=form.compute, quantization=form.quantization
        )
    table = jnp.arange(rows * PAGES, dtype=jnp.int32).reshape(rows, PAGES)
    before, new = jnp.full(rows, TOKENS, jnp.int32), jnp.ones(rows, jnp.int32)

    def step(weights: Any, caches: Any, tokens: jax.Array) -> tuple[jax.Array, Any]:
        logits, caches = served.step(weights, caches, tokens, before, new, page_table=table)
        return jnp.argmax(logits, axis=-1).astype(jnp.int32)[:, None], caches

    run = jax.jit(step, donate_argnums=1)
    held = [jnp.ones((rows, 1), jnp.int32), served.empty_caches()]

    def once() -> jax.Array:
        with use_policy(policy):  # by which jit finds the program
            held[:] = run(served.weights, held[1], held[0])
        return held[0]

    once()
    return once


def median_ms(calls: dict[str, Callable[[], jax.Array]], rounds: int) -> dict[str, float]:
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, once in calls.items():
            for call in range(TOGETHER):
                began = time.perf_counter()
                once().block_until_ready()
                if call:
                    taken[name].append(time.perf_counter() - began)
    return {name: round(statistics.median(some) * 1e3, 2) for name, some in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    given = parser.parse_args()
    figures: dict[str, Any] = {}
    for name in given.models:
        models = {which: drawn(name, form) for which, form in FORMS.items()}
        for rows in ROWS:
            calls = {
                f"{which}_{kernels}": token(*models[which], rows, form, pins)
                for which, form in FORMS.items()
                for kernels, pins in KERNELS.items()
            }
            found = median_ms(calls, given.rounds)
            figures[f"{name}_{rows}_rows"] = found
            print(name, rows, "rows:", found, flush=True)
    record("host_kernels", figures)


if __name__ == "__main__":
    main()
