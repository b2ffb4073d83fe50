"""Is `jit(model.init)` ever dearer to compile than the step that trains the model?

    python benchmarks/compile_init.py

For each config the first state and the step are traced and compiled on this host's processor, with
no program kept from before. Figures are seconds of processor time, compiler threads included, and
their ratio; goal: never above 1. It writes `results/compile_init.json`.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import jax
from _record import record
from unchanged import tiny_with

from axcore.config import evolve, update_config
from axcore.experiments.tiny import tiny
from axcore.layers import Stack

LAYERS = 16


def scanned(num_layers: int) -> Any:
    layers = {"decoder.stack.num_layers": num_layers, "decoder.stack.unroll": 1}
    cfg = tiny()
    return evolve(cfg, model=update_config(cfg.model, layers))


def unrolled(num_layers: int) -> Any:
    cfg = scanned(num_layers)
    stack = cfg.model.decoder.stack
    separate = Stack.Config(num_layers=num_layers, layer=stack.layer)
    decoder = evolve(cfg.model.decoder, stack=separate)
    return evolve(cfg, model=evolve(cfg.model, decoder=decoder))


CONFIGS: dict[str, Callable[[], Any]] = {
    "tiny": tiny,
    f"tiny, {LAYERS} layers, scanned": lambda: scanned(LAYERS),
    f"tiny, {LAYERS} layers, unrolled": lambda: unrolled(LAYERS),
    "gemma3": lambda: tiny_with("gemma3"),
    "mixtral": lambda: tiny_with("mixtral"),
    "deepseek_v3": lambda: tiny_with("deepseek_v3"),
}


def measured(config: Any) -> dict[str, Any]:
    """Return processor seconds to trace and to compile the first state and the step."""
    compiler = config.build().compiler
    with jax.set_mesh(compiler.mesh):
        state, batch = compiler.abstract_state(), compiler.batch.abstract()
        init = _seconds(lambda: compiler.jitted_init.lower())
        step = _seconds(lambda: compiler.jitted_step.lower(state, batch))
    ratio = sum(init.values()) / sum(step.values())
    return {"init": init, "step": step, "ratio": round(ratio, 3)}


def _seconds(lower: Callable[[], Any]) -> dict[str, float]:
    started = time.process_time()
    lowered = lower()
    traced = time.process_time()
    lowered.compile()
    compiled = time.process_time()
    return {"trace_s": round(traced - started, 3), "compile_s": round(compiled - traced, 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="only the configs whose name has this in it")
    given = parser.parse_args()
    jax.config.update("jax_enable_compilation_cache", False)
    figures = {}
    for name, make in CONFIGS.items():
        if given.only in name:
            figures[name] = row = measured(make())
            init, step = (sum(row[which].values()) for which in ("init", "step"))
            print(f"{name:28} init {init:6.2f} s, step {step:6.2f} s, ratio {row['ratio']:.3f}")
    if not given.only:
        print(f"written to {record('compile_init', figures)}")


if __name__ == "__main__":
    main()
