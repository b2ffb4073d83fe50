"""The axcore half of `gpu_train_step.py`: a step of a Llama-3-shaped model by the trainer."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from _gpu import median_seconds

from axcore.config import evolve, update_config
from axcore.data import TextFiles
from axcore.experiments.tiny import tiny
from axcore.layers import Fp8Current, Fp8Delayed
from axcore.learner import AdamW, Learner, WarmupCosine
from axcore.models import llama3
from axcore.modifiers import Fp8Training, RematModifier
from axcore.module import DTypes
from axcore.testing import trainer_on
from axcore.trainer import Trainer

if TYPE_CHECKING:
    from gpu_train_step import Axcore, Size

DOTS = {"fp8_current": Fp8Current, "fp8_delayed": Fp8Delayed}


def missing_reason() -> str | None:
    """Return None where there is a GPU to measure, else why there is none."""
    backend = jax.default_backend()
    return None if backend == "gpu" else f"a GPU: jax found {backend} alone"


def card() -> tuple[str, float]:
    """Return the GPU as jax names it, and the memory that programs may take, in GiB."""
    device = jax.devices()[0]
    return device.device_kind, device.memory_stats()["bytes_limit"] / 2**30


def config(case: "Axcore", size: "Size", folder: Path, *, name: str = "8b") -> Trainer.Config:
    """Return the experiment of a case.

    Args:
        case: What of the step is to be chosen.
        size: Layers, rows and tokens.
        folder: For a text, which is not read for the step.
        name: Of the Llama 3.
    """
    (folder / "text.txt").write_text("Any text will do for a step.\n" * 2000, encoding="utf-8")
    model = evolve(llama3(name), dtypes=DTypes(compute="bfloat16"))
    return update_config(
        tiny(),
        {
            "model": update_config(
                model,
                {"**.num_layers": size.layers, "**.unroll": case.unroll or size.layers},
            ),
            "data.source": TextFiles.Config(folder=str(folder)),
            "data.seq_len": size.tokens,
            "data.batch_size": size.rows,
            "data.masks_documents": False,  # plain causal attention, as PyTorch's half has it
            "learner": Learner.Config(
                optimizer=AdamW.Config(b1=0.9, b2=0.95, weight_decay=0.1),
                schedule=WarmupCosine.Config(peak=3e-4, warmup_steps=1),
                clip_norm=1.0,
            ),
            "max_steps": 1000,
            "kernels.pins": dict(case.kernels),
            "prompt": "",
        },
    )


def trainer(case: "Axcore", cfg: Trainer.Config, devices: Any = 1) -> Trainer:
    """Return the trainer of one device, its layers recomputed and multiplied as the case says."""
    plain = trainer_on(cfg, devices)
    cfg = RematModifier(policy=case.remat).apply(cfg, plain.hardware)
    if case.dtype in DOTS:
        cfg = Fp8Training(dot=DOTS[case.dtype].Config()).apply(cfg, plain.hardware)
    return trainer_on(cfg, devices)


ANYWHERE = {"attention": "portable", "quantized_dot": "emulated"}
"""Kernels of a toy: they need no GPU."""


def toy(case: "Axcore", size: "Size", folder: Path) -> Trainer:
    """Return the trainer of a toy, by kernels that run anywhere."""
    return trainer(
        case, update_config(config(case, size, folder, name="toy"), {"kernels.pins": ANYWHERE})
    )


def trace_toy(case: "Axcore") -> None:
    """Trace the step of a toy."""
    from gpu_train_step import Size

    with tempfile.TemporaryDirectory() as folder:
        _ = toy(case, Size(2, 2, 64), Path(folder)).compiler.lowered_step


def batch(size: "Size", vocabulary: int) -> dict[str, np.ndarray]:
    """Return rows of one document each, of random tokens."""
    shape = (size.rows, size.tokens)
    tokens = np.random.default_rng(0).integers(0, vocabulary, shape).astype(np.int32)
    return {
        "tokens": tokens,
        "targets": np.roll(tokens, -1, axis=1),
        "positions": np.broadcast_to(np.arange(shape[1], dtype=np.int32), shape).copy(),
        "loss_weights": np.ones(shape, np.float32),
        "token_mask": np.ones(shape, bool),
    }


def measure(case: "Axcore", size: "Size") -> dict[str, Any]:
    """Return the time of a step, its memory and FLOPs, and the kernels that served it."""
    with tempfile.TemporaryDirectory() as folder:
        return measure_step(trainer(case, config(case, size, Path(folder))), size)


def measure_step(ours: Trainer, size: "Size") -> dict[str, Any]:
    """Return the same of a trainer."""
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
    memory = program.memory_analysis()
    return {
        "step_s": seconds,
        "tokens_per_s": size.rows * size.tokens / seconds,
        "flops": model_flops.per_unit * ours.batch_spec.num_units,
        "flops_formula": model_flops.formula,
        "peak_flops": ours.hardware.peak_flops.get("bfloat16"),
        "temporaries_gib": memory.temp_size_in_bytes / 2**30,
        "arguments_gib": memory.argument_size_in_bytes / 2**30,
        "is_finite": is_finite,
        "kernels": str(ours.kernel_plan()).splitlines(),
    }
