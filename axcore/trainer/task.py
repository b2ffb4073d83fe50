"""What a config's step runs: the model, or the task around it."""

from typing import Any


def task_of(cfg: Any) -> Any:
    """Returns the module that adds a trainer's losses."""
    return cfg.model.build() if cfg.task is None else cfg.task.build(model=cfg.model)
