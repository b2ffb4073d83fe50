"""Quantized products compared with full-precision ones, and what `tiny` learns with them.

    python benchmarks/quantized.py [STEPS]

On host processors only int8 is multiplied as it is; float8 is emulated, which shows what it does to
the loss and says nothing about its speed.
"""

import sys
import tempfile
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from _race import race, ratios
from _record import record
from jax import Array

from axcore.config import evolve, update_config
from axcore.experiments.tiny import tiny
from axcore.layers import Fp8Current, Fp8Delayed, Int8Dynamic
from axcore.modifiers import with_dot
from axcore.module import DTypes
from axcore.ops import KernelPolicy, quantized_dot, use_policy
from axcore.ops.quantized.contract import FLOAT8, INT8
from axcore.plugins import Hardware
from axcore.trainer import Trainer

SHAPES = {"tall": (4096, 512, 512), "wide": (1024, 1024, 4096)}
DOTS = {
    "int8_dynamic": Int8Dynamic.Config(),
    "int8_dynamic_wide_weight_gradient": Int8Dynamic.Config(weight_gradient=False),
    "fp8_current": Fp8Current.Config(),
    "fp8_delayed": Fp8Delayed.Config(),
}
BARE = ("float32", "bfloat16", "int8")
EMULATED = {"quantized_dot": "emulated"}


def products(rows: int, width: int, out_width: int) -> dict[str, Any]:
    """Times the three products of a linear layer: values, and gradients of both arguments."""
    x_key, w_key = jax.random.split(jax.random.key(0))
    x = jax.random.normal(x_key, (rows, width))
    w = jax.random.normal(w_key, (width, out_width)) / width**0.5
    rivals = {
        "float32": step(lambda x, w: x @ w),
        "bfloat16": step(lambda x, w: x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16)),
        "int8": step(lambda x, w: quantized_dot(x, w, INT8)),
        "float8_emulated": step(emulated(lambda x, w: quantized_dot(x, w, FLOAT8))),
    }
    measured = race(rivals, x, w, repeats=5)
    return {
        "shape_rows_width_out": [rows, width, out_width],
        "bare_dot": {dtype: race({"dot": bare}, *narrowed(x, w, dtype))["dot"] for dtype in BARE},
        "values_and_gradients": measured,
        "int8_over_float32": ratios(measured, ours="int8", rival="float32"),
        "relative_error": {
            name: [round(float(jnp.linalg.norm(a - b) / jnp.linalg.norm(b)), 5) for a, b in pairs]
            for name, rival in rivals.items()
            if name != "float32"
            for pairs in [list(zip(rival(x, w), rivals["float32"](x, w), strict=True))]
        },
    }


def bare(x: Array, w: Array) -> Array:
    dtype = jnp.int32 if x.dtype == jnp.int8 else jnp.float32
    return jax.lax.dot(x, w, preferred_element_type=dtype)


def narrowed(x: Array, w: Array, dtype: str) -> tuple[Array, Array]:
    scale = 30 if dtype == "int8" else 1
    return (scale * x).astype(dtype), (scale * w).astype(dtype)


def step(product: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Any]:
    def run(x: Array, w: Array) -> Any:
        y, pull = jax.vjp(lambda x, w: product(x, w).astype(jnp.float32), x, w)
        return y, *pull(jnp.sin(y))

    return run


def emulated(product: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    def run(x: Array, w: Array) -> Array:
        with use_policy(KernelPolicy(hardware=Hardware.parse("cpu-1"), pins=EMULATED)):
            return product(x, w)

    return run


def losses(max_steps: int) -> dict[str, Any]:
    """Train `tiny` in bfloat16, plain and with each scheme, and compare validation losses."""
    cfg = tiny()
    model = evolve(cfg.model, dtypes=DTypes(compute="bfloat16"))
    cfg = update_config(
        cfg,
        {
            "model": model,
            "max_steps": max_steps,
            "eval_every_steps": max_steps,
            "kernels.pins": EMULATED,
        },
    )
    results = {"bfloat16": validation(cfg)}
    for name, dot in DOTS.items():
        results[name] = validation(with_dot(cfg, dot))
    plain = results["bfloat16"]
    return {
        "steps": max_steps,
        "validation_loss": results,
        "over_bfloat16": {name: round(loss / plain, 4) for name, loss in results.items()},
    }


def validation(cfg: Trainer.Config) -> float:
    with tempfile.TemporaryDirectory() as folder:
        trainer = evolve(cfg, mesh={"fsdp": -1}).build()
        return round(trainer.run(folder + "/run").validation["loss"], 5)


if __name__ == "__main__":
    num_steps = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    figures = {name: products(*shape) for name, shape in SHAPES.items()}
    record("quantized", {"products": figures, "tiny": losses(num_steps)})
