"""Experiments that train a model further.

axcore train sft --set init_from.path=DIR --set data.source.path=chats.jsonl
axcore train dpo --set init_from.path=DIR --set data.source.path=pairs.jsonl
"""

from axcore.checkpoint import Checkpointer
from axcore.config import evolve
from axcore.data import ChatFiles, Data, DataLoader, LabelledChats, PreferenceData
from axcore.learner import AdamW, Learner, WarmupCosine
from axcore.runs.base_model import STAND_IN, BaseModel
from axcore.tasks import DPO, KTO
from axcore.trainer import Trainer


def sft() -> Trainer.Config:
    """Returns the config of training on conversations; the base brings model and tokenizer."""
    data = Data.Config(
        source=ChatFiles.Config(),
        seq_len=128,
        batch_size=8,
        packing="best_fit",
        repacks_each_epoch=True,
        validation_batches=32,
    )
    return _further(data, peak=1e-5)


def dpo() -> Trainer.Config:
    """Returns the config of training on pairs of answers; `--modify orpo` names another task."""
    data = PreferenceData.Config(seq_len=128, batch_size=8, validation_batches=32)
    return evolve(_further(data, peak=1e-6), task=DPO.Config())


def kto() -> Trainer.Config:
    """Returns the config of training on answers that were labelled one by one."""
    source = ChatFiles.Config(reads=LabelledChats.Config())
    data = PreferenceData.Config(source=source, seq_len=128, batch_size=8, validation_batches=32)
    return evolve(_further(data, peak=1e-6), task=KTO.Config())


def _further(data: DataLoader.Config, *, peak: float) -> Trainer.Config:
    """Returns the config of training a base further, at a low rate."""
    return Trainer.Config(
        model=STAND_IN,
        data=data,
        learner=Learner.Config(
            optimizer=AdamW.Config(weight_decay=0.0),
            schedule=WarmupCosine.Config(peak=peak, warmup_steps=0.04),
        ),
        init_from=BaseModel.Config(),
        max_steps=500,
        eval_every_steps=100,
        checkpoint=Checkpointer.Config(every_steps=100),
        prompt="Hello",
    )
