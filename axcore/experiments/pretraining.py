"""Pre-training of Llama 2 and 3, Mistral, Mixtral and Qwen2 on a corpus and tokenizer of yours.

axcore train llama2-7b --set data.source.folder=CORPUS --set data.tokenizer.path=TOKENIZER.json

`mesh_rules` lays them out on each family of hardware. Plugins' own rules change no number. These
may: low-precision products are named here where the hardware gains from them, so that an
experiment's results say what it was trained with. On v6e int8 gains nothing: libtpu gives its
products 1.2 times the speed of bfloat16's, less than quantizing costs.
"""

from axcore.checkpoint import Checkpointer
from axcore.config import evolve, update_config
from axcore.data import Data, HuggingFaceTokenizer, JsonLines
from axcore.learner import AdamW, Learner, WarmupCosine
from axcore.models import llama2, llama3, mistral, mixtral, qwen2
from axcore.modifiers import (
    Fp8Training,
    Int8Training,
    Kernels,
    LowPrecisionOptimizer,
    MicroBatches,
    RematModifier,
)
from axcore.module import DTypes
from axcore.plugins import MeshRule
from axcore.trainer import Trainer


def mesh_rules(
    *, small_rows: int, large_rows: int, gpu_remat: str = "full", tpu_remat: str = "full"
) -> tuple[MeshRule, ...]:
    """Return the rules for a model; the first that matches holds.

    Where every layer is computed again in the backward pass, a row costs little more than its
    hidden vectors between layers: `2 * seq_len * dim * num_layers` bytes.

    Args:
        small_rows: Rows at a time on a device of 16 to 32 GiB.
        large_rows: Rows at a time on a device of 80 GiB and more.
        gpu_remat: What GPUs of 80 GiB and more keep, where there is room for more than nothing.
        tpu_remat: What TPUs of 90 GiB and more keep.
    """
    sharded = {"fsdp": -1}
    small = (RematModifier(policy="full"), MicroBatches(rows_per_device=small_rows))
    large = (RematModifier(policy=tpu_remat), MicroBatches(rows_per_device=large_rows))
    gpu = (RematModifier(policy=gpu_remat), MicroBatches(rows_per_device=large_rows))
    return (
        MeshRule(match="tpu-v4-*", mesh=sharded, modifiers=small),
        MeshRule(match="tpu-v5e-*", mesh=sharded, modifiers=(Int8Training(), *small)),
        MeshRule(match="tpu-v6e-*", mesh=sharded, modifiers=small),
        MeshRule(match="tpu-*", mesh=sharded, modifiers=large),
        MeshRule(match="gpu-a100-40gb-*", mesh=sharded, modifiers=small),
        MeshRule(match="gpu-a100-*", mesh=sharded, modifiers=gpu),
        MeshRule(match="gpu-h100-*", mesh=sharded, modifiers=(Fp8Training(), *gpu)),
        MeshRule(match="gpu-h200-*", mesh=sharded, modifiers=(Fp8Training(), *gpu)),
        MeshRule(match="gpu-b200-*", mesh=sharded, modifiers=(Fp8Training(), *gpu)),
        MeshRule(match="trainium-*", mesh={"fsdp": -1, "model": 4}, modifiers=small),
    )


_LARGE_V6E_SLICES = MeshRule(
    match="tpu-v6e-???",
    mesh={"fsdp": -1},
    modifiers=(RematModifier(policy="save_heads"), MicroBatches(rows_per_device=4)),
)
"""On 128 chips and more the state of 7B leaves room for what attention makes."""

_LARGE_SLICES = MeshRule(
    match="tpu-v5p-????",
    mesh={"fsdp": -1},
    modifiers=(RematModifier(policy="save_gate"), MicroBatches(rows_per_device=2)),
)
"""On 512 chips and more the state of 70B leaves room for more of its activations."""


def llama2_7b() -> Trainer.Config:
    """Return the config: batches of 4M tokens, 2T tokens in all.

    Stored parameters and the optimizer's state are float32; products are bfloat16.

    Source: Touvron et al. 2023, arXiv:2307.09288, section 2.2 (optimizer, schedule, batch).
    """
    return Trainer.Config(
        model=evolve(llama2("7b"), dtypes=DTypes(compute="bfloat16")),
        data=Data.Config(
            source=JsonLines.Config(),
            tokenizer=HuggingFaceTokenizer.Config(bos_token="<s>", eos_token="</s>"),
            seq_len=4096,
            batch_size=1024,
            validation_fraction=0.001,
            validation_batches=8,
        ),
        learner=Learner.Config(
            optimizer=AdamW.Config(b1=0.9, b2=0.95, epsilon=1e-5, weight_decay=0.1),
            schedule=WarmupCosine.Config(
                peak=3e-4, warmup_steps=2000 / 477_000, final_fraction=0.1
            ),
            clip_norm=1.0,
        ),
        max_steps=477_000,
        mesh_rules=(
            _LARGE_V6E_SLICES,
            *mesh_rules(small_rows=4, large_rows=4, gpu_remat="save_heads", tpu_remat="minimal"),
        ),
        eval_every_steps=1000,
        checkpoint=Checkpointer.Config(every_steps=1000),
    )


def llama2_70b() -> Trainer.Config:
    """Return `llama2-7b` with the larger model, and half the learning rate."""
    return update_config(
        llama2_7b(),
        {
            "model": evolve(llama2("70b"), dtypes=DTypes(compute="bfloat16")),
            "learner.schedule.peak": 1.5e-4,
            "mesh_rules": (
                _LARGE_SLICES,
                *mesh_rules(
                    small_rows=1, large_rows=2, gpu_remat="save_heads", tpu_remat="save_heads"
                ),
            ),
        },
    )


_ONE_GPU = MeshRule(
    match="gpu-h200-1",
    mesh={"fsdp": -1},
    modifiers=(LowPrecisionOptimizer(), RematModifier(policy="full"), MicroBatches()),
)
"""For a GPU that holds 8B parameters only with optimizer state in 8 bits, and no float8 copies."""


def llama3_8b() -> Trainer.Config:
    """Return `llama2-7b` with the newer model: rows twice as long, 15T tokens in all.

    Source: Grattafiori et al. 2024, arXiv:2407.21783, table 3 (peak rates) and section 3.4.1, whose
    warm-up and final rate are those of the 405B model. Differs: the batch does not grow.
    """
    return update_config(
        llama2_7b(),
        {
            "model": evolve(llama3("8b"), dtypes=DTypes(compute="bfloat16")),
            "data.tokenizer.bos_token": "<|begin_of_text|>",
            "data.tokenizer.eos_token": "<|end_of_text|>",
            "data.seq_len": 8192,
            "learner.schedule.warmup_steps": 8000 / 1_800_000,
            "learner.schedule.final_fraction": 0.01,
            "max_steps": 1_800_000,
            "mesh_rules": (
                _ONE_GPU,
                *mesh_rules(small_rows=1, large_rows=4, gpu_remat="save_heads"),
            ),
        },
    )


def llama3_70b() -> Trainer.Config:
    """Return `llama3-8b` with the larger model, and half the learning rate."""
    return update_config(
        llama3_8b(),
        {
            "model": evolve(llama3("70b"), dtypes=DTypes(compute="bfloat16")),
            "learner.schedule.peak": 1.5e-4,
            "mesh_rules": mesh_rules(small_rows=1, large_rows=2),
        },
    )


def mistral_7b() -> Trainer.Config:
    """Return `llama2-7b` with another model, and rows of twice its window.

    Optimizer, schedule and batch are Llama 2's: Mistral's were not published.
    """
    return update_config(
        llama2_7b(),
        {
            "model": evolve(mistral("7b"), dtypes=DTypes(compute="bfloat16")),
            "data.seq_len": 8192,
            "data.batch_size": 512,
            "mesh_rules": mesh_rules(small_rows=2, large_rows=4, gpu_remat="save_heads"),
        },
    )


_PORTABLE_EXPERTS = MeshRule(
    match="gpu-a100-*",
    mesh={"fsdp": -1},
    modifiers=(
        RematModifier(policy="full"),
        MicroBatches(rows_per_device=1),
        Kernels(pins={"grouped_matmul": "portable"}),  # no kernel for these GPUs is installed
    ),
)


def _wide_experts(match: str) -> MeshRule:
    """Return a rule that leaves experts in bfloat16, for which there is a kernel by groups.

    In float8 they have none: compiled for 64 H100, all in float8 is predicted to take 58.4 s a step
    and 67 GiB, all in bfloat16 15.3 s and 41 GiB.
    """
    return MeshRule(
        match=match,
        mesh={"fsdp": -1},
        modifiers=(
            Fp8Training(exclude=(*Fp8Training().exclude, "**.expert.**")),
            RematModifier(policy="full"),
            MicroBatches(rows_per_device=1),
        ),
    )


def mixtral_8x7b() -> Trainer.Config:
    """Return `mistral-7b` with eight experts in every layer."""
    return update_config(
        mistral_7b(),
        {
            "model": evolve(mixtral("8x7b"), dtypes=DTypes(compute="bfloat16")),
            "mesh_rules": (
                _PORTABLE_EXPERTS,
                _wide_experts("gpu-h100-*"),
                _wide_experts("gpu-h200-*"),
                *mesh_rules(small_rows=1, large_rows=1),
            ),
        },
    )


def qwen2_7b() -> Trainer.Config:
    """Return `llama2-7b` with another model; documents have no token before their first.

    Optimizer, schedule and batch are Llama 2's: Qwen2's were not published.
    """
    return update_config(
        llama2_7b(),
        {
            "model": evolve(qwen2("7b"), dtypes=DTypes(compute="bfloat16")),
            "data.tokenizer.bos_token": None,
            "data.tokenizer.eos_token": "<|endoftext|>",
        },
    )
