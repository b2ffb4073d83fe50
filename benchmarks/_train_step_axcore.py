"""The axcore half of `gpu_train_step.py`: a step of a Llama-3-shaped model by the trainer."""

import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np
from _gpu import median_seconds

from axcore.config import evolve, update_config
from axcore.data import TextFiles
from axcore.experiments.tiny import tiny
from axcore.layers import Fp8Delayed
from axcore.learner import AdamW, Learner, WarmupCosine
from axcore.models import llama3
from axcore.modifiers import Fp8Training
from axcore.module import DTypes
from axcore.testing import trainer_on
from axcore.trainer import Trainer


def trainer(
    size: dict[str, int], dtype: str, *, kernels: dict[str, str], folder: Path, name: str = "8b"
) -> Trainer:
    """Returns the trainer of one device.

    Args:
        size: `layers`, `rows` and `tokens`.
        dtype: What linear layers multiply in: `bfloat16` or `float8`.
        kernels: Kernel by op, where it is not to be the default one.
        folder: For a text, which is not read for the step.
        name: Of the Llama 3.
    """
    (folder / "text.txt").write_text("Any text will do for a step.\n" * 2000, encoding="utf-8")
    model = evolve(llama3(name), dtypes=DTypes(compute="bfloat16"))
    cfg = update_config(
        tiny(),
        {
            "model": update_config(model, {"**.num_layers": size["layers"]}),
            "data.source": TextFiles.Config(folder=str(folder)),
            "data.seq_len": size["tokens"],
            "data.batch_size": size["rows"],
            "learner": Learner.Config(
                optimizer=AdamW.Config(b1=0.9, b2=0.95, weight_decay=0.1),
                schedule=WarmupCosine.Config(peak=3e-4, warmup_steps=1),
                clip_norm=1.0,
            ),
            "max_steps": 1000,
            "kernels": kernels,
            "prompt": "",
        },
    )
    plain = trainer_on(cfg, 1)
    if dtype == "bfloat16":
        return plain
    narrow = Fp8Training(dot=Fp8Delayed.Config()).apply(cfg, plain.hardware)
    return trainer_on(narrow, 1)


def trace_toys() -> None:
    """Traces the steps of a toy, in bfloat16 and in float8."""
    size = {"layers": 2, "rows": 2, "tokens": 64}
    with tempfile.TemporaryDirectory() as folder:
        for dtype, kernels in (("bfloat16", {}), ("float8", {"quantized_dot": "emulated"})):
            toy = trainer(size, dtype, kernels=kernels, folder=Path(folder), name="toy")
            _ = toy.compiler.lowered_step


def batch(size: dict[str, int], vocabulary: int) -> dict[str, np.ndarray]:
    """Returns rows of one document each, of random tokens."""
    shape = (size["rows"], size["tokens"])
    tokens = np.random.default_rng(0).integers(0, vocabulary, shape).astype(np.int32)
    return {
        "tokens": tokens,
        "targets": np.roll(tokens, -1, axis=1),
        "segment_ids": np.ones(shape, np.int32),
        "positions": np.broadcast_to(np.arange(shape[1], dtype=np.int32), shape).copy(),
        "loss_weights": np.ones(shape, np.float32),
    }


def measure(
    size: dict[str, int], dtype: str, *, kernels: dict[str, str], name: str = "8b"
) -> dict[str, Any]:
    """Returns the time of a step, its memory and MFU, and the kernels that served it."""
    with tempfile.TemporaryDirectory() as folder:
        ours = trainer(size, dtype, kernels=kernels, folder=Path(folder), name=name)
        with jax.set_mesh(ours.mesh):
            program = ours.compiler.compiled_step
            state = ours.compiler.jitted_init()
            arrays = ours.batch_sharding.device_put(batch(size, ours.config.model.vocab_size))

            def step() -> Any:
                nonlocal state
                state, metrics = program(state, arrays)
                return metrics

            seconds = median_seconds(step, jax.block_until_ready, repeats=3)
            is_finite = bool(step().is_finite)
    model_flops = ours.model.flops_per_unit(ours.batch_spec)
    assert model_flops is not None
    flops = model_flops.per_unit * ours.batch_spec.num_units
    peak = ours.hardware.peak_flops.get("bfloat16")
    memory = program.memory_analysis()
    return {
        "step_s": seconds,
        "tokens_per_s": size["rows"] * size["tokens"] / seconds,
        "flops": flops,
        "flops_formula": model_flops.formula,
        "mfu_of_bfloat16_peak": flops / seconds / peak if peak else None,
        "temporaries_gib": memory.temp_size_in_bytes / 2**30,
        "arguments_gib": memory.argument_size_in_bytes / 2**30,
        "is_finite": is_finite,
        "kernels": str(ours.kernel_plan()).splitlines(),
    }
