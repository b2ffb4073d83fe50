"""Experiments that train a model further.

axcore train sft --set init_from.path=DIR --set data.source.path=chats.jsonl
"""

from axcore.checkpoint import Checkpointer
from axcore.data import ChatFiles, Data
from axcore.learner import AdamW, Learner, WarmupCosine
from axcore.runs.base_model import STAND_IN, BaseModel
from axcore.trainer import Trainer


def sft() -> Trainer.Config:
    """Returns the config of training on conversations; the base brings model and tokenizer."""
    return Trainer.Config(
        model=STAND_IN,
        data=Data.Config(
            source=ChatFiles.Config(),
            seq_len=128,
            batch_size=8,
            packing="best_fit",
            repacks_each_epoch=True,
            validation_batches=32,
        ),
        learner=Learner.Config(
            optimizer=AdamW.Config(weight_decay=0.0),
            schedule=WarmupCosine.Config(peak=1e-5, warmup_steps=20),
        ),
        init_from=BaseModel.Config(),
        max_steps=500,
        eval_every_steps=100,
        checkpoint=Checkpointer.Config(every_steps=100),
        prompt="Hello",
    )
