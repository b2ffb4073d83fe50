"""A small transformer on text, trained under guards."""

from pathlib import Path
from typing import Any

from texts import write_text

from axcore.checkpoint import Checkpointer
from axcore.config import update_config
from axcore.data import Data, TextFiles
from axcore.learner import Learner, WarmupCosine
from axcore.models import transformer
from axcore.testing import trainer_on
from axcore.trainer import Guard, LoggingConfig, Trainer


def guarded_config(folder: Path, *guards: Guard.Config, **changes: Any) -> Trainer.Config:
    """Returns eight steps, logged each and saved every four, on the text of a folder.

    The text is written where there is no folder yet.
    """
    if not folder.exists():
        write_text(folder, files=12)
    cfg = Trainer.Config(
        model=transformer(vocab_size=264, dim=8, num_layers=1, num_heads=1, hidden_dim=16),
        data=Data.Config(
            source=TextFiles.Config(folder=str(folder)),
            seq_len=16,
            batch_size=8,
            validation_fraction=0,
        ),
        learner=Learner.Config(schedule=WarmupCosine.Config(peak=0.01, warmup_steps=1)),
        max_steps=8,
        logging=LoggingConfig(every_steps=1),
        eval_every_steps=100,
        checkpoint=Checkpointer.Config(every_steps=4),
        mesh={"data": -1},
        guards=guards,
    )
    return update_config(cfg, changes)


def guarded_trainer(
    folder: Path, *guards: Guard.Config, devices: int = 1, **changes: Any
) -> Trainer:
    """Returns a trainer of that on some devices."""
    return trainer_on(guarded_config(folder, *guards, **changes), devices)
