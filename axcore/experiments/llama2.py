"""`llama2-7b` and `llama2-70b`: the pre-training of Llama 2, on a corpus and a tokenizer of yours.

axcore train llama2-7b --set data.source.folder=CORPUS --set data.tokenizer.path=TOKENIZER.json
"""

from axcore.checkpoint import Checkpointer
from axcore.config import evolve, update_config
from axcore.data import Data, HuggingFaceTokenizer, JsonLines
from axcore.experiments.mesh_rules import mesh_rules
from axcore.learner import AdamW, Learner, WarmupCosine
from axcore.models import llama2
from axcore.modifiers import MicroBatches, RematModifier
from axcore.module import DTypes
from axcore.plugins import MeshRule
from axcore.trainer import Trainer

LARGE_V6E_SLICES = MeshRule(
    match="tpu-v6e-???",
    mesh={"fsdp": -1},
    modifiers=(RematModifier(policy="save_heads"), MicroBatches(rows_per_device=4)),
)
"""On 128 chips and more the state of 7B leaves room for what attention makes."""

LARGE_SLICES = MeshRule(
    match="tpu-v5p-????",
    mesh={"fsdp": -1},
    modifiers=(RematModifier(policy="save_gate"), MicroBatches(rows_per_device=2)),
)
"""On 512 chips and more the state of 70B leaves room for more of its activations."""


def llama2_7b() -> Trainer.Config:
    """Returns the config: batches of 4M tokens, 2T tokens in all.

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
            LARGE_V6E_SLICES,
            *mesh_rules(small_rows=4, large_rows=4, gpu_remat="save_heads", tpu_remat="minimal"),
        ),
        eval_every_steps=1000,
        checkpoint=Checkpointer.Config(every_steps=1000),
    )


def llama2_70b() -> Trainer.Config:
    """Returns `llama2-7b` with the larger model, and half the learning rate."""
    return update_config(
        llama2_7b(),
        {
            "model": evolve(llama2("70b"), dtypes=DTypes(compute="bfloat16")),
            "learner.schedule.peak": 1.5e-4,
            "mesh_rules": (
                LARGE_SLICES,
                *mesh_rules(
                    small_rows=1, large_rows=2, gpu_remat="save_heads", tpu_remat="save_heads"
                ),
            ),
        },
    )
