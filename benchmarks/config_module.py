"""What configs and modules cost: edits of a large config, and tracing a deep model.

The config is a model whose layers are all in the tree (a tuple, so that nothing is shared), of
about 500 nodes. Each figure is the median of several runs, as elapsed time and as the processor
time of this process: the second says more on a machine that does other work too.

    python benchmarks/config_module.py

writes `results/config_module.json`. Goals: each operation on the config under 10 ms; building 32
layers under 50 ms; trace and lower the gradient of 32 unrolled layers under 1.5 s and of the
scanned stack under 0.25 s (AXLearn: 2.3-3.4 s and 0.2 s); `import axcore.config` under 60 ms
without jax.
"""

import argparse
import functools
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from _record import record

from axcore.config import (
    REQUIRED,
    config,
    find_config,
    from_dict,
    from_json,
    from_yaml,
    is_config,
    map_config,
    render_config,
    replace_config,
    to_dict,
    to_json,
    to_yaml,
    update_config,
    walk,
)
from axcore.layers import FeedForward, Linear, ScannedLayers, Stack
from axcore.models import transformer
from axcore.module import Module, ParamSpec, functional

NUM_LAYERS = 32
CONFIG_LAYERS = 16
GOALS_MS = {
    "build 500 nodes": 10,
    "hash 500 nodes": 10,
    "replace in 500 nodes": 10,
    "update in 500 nodes": 10,
    "render 500 nodes": 10,
    "dict round trip of 500 nodes": 10,
    "JSON round trip of 500 nodes": 10,
    "instantiate 32 layers": 50,
    "trace and lower the gradient of 32 unrolled layers": 1500,
    "trace and lower the gradient of 32 scanned layers": 250,
    "import axcore.config": 60,
}


class Tower(Module):
    """Layers that each have a config of their own."""

    @config
    class Config(Module.Config):
        dim: int = REQUIRED
        layers: tuple[Module.Config, ...] = ()

    def setup(self, cfg: Config) -> None:
        self.layers = tuple(layer.build(dim=cfg.dim) for layer in cfg.layers)


def tower() -> Any:
    """Return a new config of about 500 nodes, each made afresh."""
    fresh = lambda node: type(node)(**dict(fields(node)))  # noqa: E731
    layer = transformer(
        vocab_size=320, dim=128, num_layers=1, num_heads=4, hidden_dim=352
    ).decoder.stack.layer
    return Tower.Config(dim=128, layers=[map_config(layer, fresh) for _ in range(CONFIG_LAYERS)])


def fields(node: Any) -> Any:
    return [(name, getattr(node, name)) for name in type(node).__config_fields__]


def node_count(cfg: Any) -> int:
    return sum(1 for _, node in walk(cfg) if is_config(node))


def timed(fn: Callable[[], Any], repeats: int) -> dict[str, float]:
    """Return the medians of elapsed and of processor time, in milliseconds."""
    elapsed, processor = [], []
    for _ in range(repeats):
        start, start_processor = time.perf_counter(), time.process_time()
        fn()
        elapsed.append(time.perf_counter() - start)
        processor.append(time.process_time() - start_processor)
    return medians(elapsed, processor)


def medians(elapsed: list[float], processor: list[float]) -> dict[str, float]:
    return {
        "elapsed_ms": round(1e3 * statistics.median(elapsed), 3),
        "best_elapsed_ms": round(1e3 * min(elapsed), 3),
        "processor_ms": round(1e3 * statistics.median(processor), 3),
    }


def config_figures(repeats: int) -> dict[str, dict[str, float]]:
    cfg = tower()
    new = FeedForward.Config(hidden_dim=99)
    unhashed = [tower() for _ in range(repeats)]
    return {
        "build 500 nodes": timed(tower, repeats),
        "hash 500 nodes": timed(lambda: hash(unhashed.pop()), repeats),
        "find in 500 nodes": timed(lambda: find_config(cfg, Linear), repeats),
        "replace in 500 nodes": timed(lambda: replace_config(cfg, FeedForward, new), repeats),
        "update in 500 nodes": timed(
            lambda: update_config(cfg, {"**.feed_forward.hidden_dim": 7}), repeats
        ),
        "render 500 nodes": timed(lambda: render_config(cfg), repeats),
        "render 500 nodes in full": timed(lambda: render_config(cfg, fold_defaults=False), repeats),
        "dict round trip of 500 nodes": timed(lambda: from_dict(to_dict(cfg)), repeats),
        "JSON round trip of 500 nodes": timed(lambda: from_json(to_json(cfg)), repeats),
        "YAML round trip of 500 nodes": timed(lambda: from_yaml(to_yaml(cfg)), 3),
    }


def module_figures(repeats: int) -> dict[str, dict[str, float]]:
    scanned = transformer(
        vocab_size=320, dim=128, num_layers=NUM_LAYERS, num_heads=4, hidden_dim=352
    )
    unrolled = replace_config(scanned, ScannedLayers, Stack.Config())
    figures = {"instantiate 32 layers": timed(unrolled.build, repeats)}
    for name, cfg in (("unrolled", unrolled), ("scanned", scanned)):
        module = cfg.build()
        figures[f"trace and lower the gradient of 32 {name} layers"] = timed(
            functools.partial(lower_gradient, module), max(3, repeats // 4)
        )
    return figures


def lower_gradient(module: Any) -> None:
    """Trace and lower the gradient of the loss, from specs alone."""
    is_spec = lambda leaf: isinstance(leaf, ParamSpec)  # noqa: E731
    state = jax.tree.map(lambda spec: spec.abstract, module.param_specs(), is_leaf=is_spec)
    shape = (4, 128)
    batch = {
        **{n: jnp.zeros(shape, jnp.int32) for n in ("tokens", "targets", "positions")},
        "segment_ids": jnp.ones(shape, jnp.int32),
        "loss_weights": jnp.ones(shape),
    }

    def loss(state: Any, batch: Any) -> Any:
        return functional(module, state, batch, training=True)[1].total_loss()

    jax.jit(jax.grad(loss)).lower(state, batch)


def import_figures(repeats: int) -> dict[str, dict[str, float]]:
    """Times the import in new processes, without the interpreter's own start."""
    code = (
        "import sys, time; t, p = time.perf_counter(), time.process_time(); import axcore.config; "
        "print(time.perf_counter() - t, time.process_time() - p); assert 'jax' not in sys.modules"
    )
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
        for _ in range(repeats)
    ]
    times = [tuple(map(float, run.stdout.split())) for run in runs]
    return {"import axcore.config": medians([t[0] for t in times], [t[1] for t in times])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=12)
    repeats = parser.parse_args().repeats
    figures: dict[str, Any] = {
        **config_figures(repeats),
        **module_figures(repeats),
        **import_figures(repeats),
    }
    for name, figure in figures.items():
        goal = GOALS_MS.get(name)
        if goal is not None:
            figure["goal_ms"] = goal
        elapsed, processor = figure["elapsed_ms"], figure["processor_ms"]
        print(f"{name:<52} {elapsed:>9.2f} ms, processor {processor:>9.2f} ms, goal {goal}")
    figures["nodes"] = node_count(tower())
    print(f"nodes: {figures['nodes']}; file: {record('config_module', figures)}")


if __name__ == "__main__":
    main()
