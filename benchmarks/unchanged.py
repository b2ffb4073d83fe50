"""Do 20 steps of every family give the very same losses and parameters as those recorded?

    python benchmarks/unchanged.py             # compare; exits with 1 where a bit differs
    python benchmarks/unchanged.py --record    # record the figures of the present code
    python benchmarks/unchanged.py --unchecked # compare without the check of new parameters

For changes that must not alter numbers: record before, compare after each step. Figures are those
of one machine and one version of jax; both are in `results/unchanged.json`. Each model is the
experiment `tiny` with the toy size of its family; some run on meshes of 8 devices, too.

The recorded figures are of a step that did not look at the parameters it made. The check that they
are finite changes none of them, but XLA fuses a few programs in another way with it, and their last
bits differ. `--unchecked` leaves it out, so that what else changed shows.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

STEPS = 20
RESULTS = Path(__file__).parent / "results" / "unchanged.json"

FAMILIES = {
    "axcore.models": ("llama2", "llama3", "mistral", "mixtral", "qwen2"),
    "axl_attention.models": ("deepseek_v2", "deepseek_v3", "gemma2", "gemma3", "gpt2")
    + ("qwen3", "qwen3_moe"),
}
"""Functions that return a model's config, by the module that has them."""

CHANGES: dict[str, dict[str, str]] = {
    "int8_training": {},
    "fp8_training": {"quantized_dot": "emulated"},
}
"""Changes of `tiny` by their name, and the kernels that a CPU needs for each."""

MESHES: dict[str, tuple[str, dict[str, Any]]] = {
    "tiny, data 2 x fsdp 2 x model 2": ("", {"mesh": {"data": 2, "fsdp": 2, "model": 2}}),
    "llama2, seq 2 x model 2 x fsdp 2": ("llama2", {"mesh": {"seq": 2, "model": 2, "fsdp": 2}}),
    "mixtral, expert 4 x data 2": ("mixtral", {"mesh": {"expert": 4, "data": 2}}),
}
"""Runs on 8 devices: the family (none for `tiny`'s own model), and what the config sets."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", action="store_true", help="write results/unchanged.json")
    parser.add_argument("--only", default="", help="only the runs whose name has this in it")
    parser.add_argument("--unchecked", action="store_true", help="no check of new parameters")
    parser.add_argument("--devices", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.record and options.unchecked:
        parser.error("--record keeps the figures of the full step: leave out --unchecked")
    if options.devices:
        if options.unchecked:
            leave_out_the_check()
        print(json.dumps(run_all(options.devices, options.only)))
        return
    flags = ["--only", options.only, *(["--unchecked"] if options.unchecked else [])]
    figures = {**in_process(1, flags), **in_process(8, flags)}
    if options.record:
        from _record import record

        print("recorded in", record("unchanged", figures))
        return
    recorded = json.loads(RESULTS.read_text(encoding="utf-8"))["figures"]
    sys.exit(compare(recorded, figures, options.only))


def compare(recorded: dict[str, Any], figures: dict[str, Any], only: str) -> int:
    """Print a line for each run, and return the exit status."""
    different = 0
    for name in sorted({*recorded, *figures}):
        if only not in name:
            continue
        before, after = recorded.get(name), figures.get(name)
        is_same = before == after
        different += not is_same
        print(f"{name}: {'bit-identical' if is_same else f'was {before}, is {after}'}")
    print(f"{different} of {len(figures)} runs differ")
    return 1 if different else 0


def leave_out_the_check() -> None:
    """Make steps of this process that do not look at the parameters they make."""
    from axcore.trainer import step

    step._are_finite = lambda params: True  # type: ignore[assignment, return-value]


def in_process(devices: int, options: list[str]) -> dict[str, Any]:
    """Return the figures of the runs on so many devices, made by a process of its own."""
    flags = f"--xla_force_host_platform_device_count={devices}"
    program = [sys.executable, __file__, "--devices", str(devices), *options]
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    output = subprocess.run(program, env=env, check=True, stdout=subprocess.PIPE, text=True).stdout
    figures: dict[str, Any] = json.loads(output.splitlines()[-1])
    return figures


def run_all(devices: int, only: str) -> dict[str, Any]:
    """Return losses and a digest of the final parameters of every run on so many devices."""
    figures = {}
    for name, cfg in (single_device() if devices == 1 else on_meshes()).items():
        if only in name:
            print(f"{name} ...", file=sys.stderr, flush=True)
            figures[name] = run(cfg())
    return figures


def single_device() -> dict[str, Callable[[], Any]]:
    """Return the configs of runs on one device, by name."""
    from axcore.modifiers import with_changes
    from axcore.plugins import Hardware

    runs: dict[str, Callable[[], Any]] = {"tiny": lambda: tiny_with("")}
    for families in FAMILIES.values():
        runs |= {family: lambda family=family: tiny_with(family) for family in families}
    for change, kernels in CHANGES.items():
        runs[f"tiny, {change}"] = lambda change=change, kernels=kernels: with_changes(
            tiny_with("", **{"kernels.pins": kernels}), (change,), Hardware.parse("cpu-1")
        )
    runs["tiny, 2 micro-batches"] = lambda: tiny_with("", num_micro_batches=2)
    return runs


def on_meshes() -> dict[str, Callable[[], Any]]:
    """Return the configs of runs on eight devices, by name."""
    return {
        name: lambda family=family, sets=sets: tiny_with(family, **sets)
        for name, (family, sets) in MESHES.items()
    }


def tiny_with(family: str, **settings: Any) -> Any:
    """Return `tiny` with the toy model of a family, and other settings."""
    from importlib import import_module

    from axcore.config import evolve, update_config
    from axcore.experiments.tiny import tiny

    models = {name: module for module, names in FAMILIES.items() for name in names}
    cfg = update_config(tiny(), {"max_steps": STEPS, "logging.every_steps": 1, **settings})
    cfg = update_config(cfg, {"learner.schedule.warmup_steps": STEPS // 2})
    if family:
        model = getattr(import_module(models[family]), family)("toy")
        cfg = evolve(cfg, model=model)
    return evolve(cfg, data=evolve(cfg.data, seq_len=64))


def run(cfg: Any) -> dict[str, Any]:
    """Return the losses of a run, exactly, and a digest of the parameters that it ends with."""
    with tempfile.TemporaryDirectory() as folder:
        result = cfg.build().run(folder)
        lines = (Path(folder) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    losses = [float(row["loss"]).hex() for row in rows if row["split"] == "train"]
    assert len(losses) == STEPS
    return {"losses": losses, "parameters": digest(result.state.model)}


def digest(tree: Any) -> str:
    """Return a SHA-256 of every array's path, dtype, shape and bytes."""
    import jax
    import numpy as np

    total = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        array = np.asarray(leaf)
        total.update(f"{jax.tree_util.keystr(path)} {array.dtype} {array.shape}".encode())
        total.update(array.tobytes())
    return total.hexdigest()


if __name__ == "__main__":
    main()
