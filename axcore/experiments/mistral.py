"""`mistral-7b` and `mixtral-8x7b`, on a corpus and a tokenizer of yours.

axcore train mistral-7b --set data.source.folder=CORPUS --set data.tokenizer.path=TOKENIZER.json
"""

from axcore.config import evolve, update_config
from axcore.experiments.llama2 import llama2_7b
from axcore.experiments.mesh_rules import mesh_rules
from axcore.models import mistral, mixtral
from axcore.modifiers import Fp8Training, Kernels, MicroBatches, RematModifier
from axcore.module import DTypes
from axcore.plugins import MeshRule
from axcore.trainer import Trainer


def mistral_7b() -> Trainer.Config:
    """Returns `llama2-7b` with another model, and rows of twice its window.

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
    """Returns a rule that leaves experts in bfloat16, for which there is a kernel by groups.

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
    """Returns `mistral-7b` with eight experts in every layer."""
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
