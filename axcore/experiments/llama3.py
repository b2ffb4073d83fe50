"""`llama3-8b` and `llama3-70b`: the pre-training of Llama 3, on a corpus and a tokenizer of yours.

axcore train llama3-8b --set data.source.folder=CORPUS --set data.tokenizer.path=TOKENIZER.json
"""

from axcore.config import evolve, update_config
from axcore.experiments.llama2 import llama2_7b
from axcore.experiments.mesh_rules import mesh_rules
from axcore.models import llama3
from axcore.modifiers import LowPrecisionOptimizer, MicroBatches, RematModifier
from axcore.module import DTypes
from axcore.plugins import MeshRule
from axcore.trainer import Trainer

ONE_GPU = MeshRule(
    match="gpu-h200-1",
    mesh={"fsdp": -1},
    modifiers=(LowPrecisionOptimizer(), RematModifier(policy="full"), MicroBatches()),
)
"""For a GPU that holds 8B parameters only with optimizer state in 8 bits, and no float8 copies."""


def llama3_8b() -> Trainer.Config:
    """Returns `llama2-7b` with the newer model: rows twice as long, 15T tokens in all.

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
                ONE_GPU,
                *mesh_rules(small_rows=1, large_rows=4, gpu_remat="save_heads"),
            ),
        },
    )


def llama3_70b() -> Trainer.Config:
    """Returns `llama3-8b` with the larger model, and half the learning rate."""
    return update_config(
        llama3_8b(),
        {
            "model": evolve(llama3("70b"), dtypes=DTypes(compute="bfloat16")),
            "learner.schedule.peak": 1.5e-4,
            "mesh_rules": mesh_rules(small_rows=1, large_rows=2),
        },
    )
