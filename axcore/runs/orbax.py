"""Make runs of the checkpoints of other trainers."""

import math
from pathlib import Path
from typing import Any

import jax

from axcore.config import evolve, field_names
from axcore.errors import ConfigError
from axcore.experiments.named import experiment
from axcore.interop import OrbaxCheckpoint, PretrainedCheckpoint, RotaryRows
from axcore.interop.pretrained import CONFIG
from axcore.module import DType
from axcore.plugins import Hardware
from axcore.runs.export import check_is_new, save_imported, trainer_config, with_dtype
from axcore.runs.run import ANY_DEVICES, Run
from axcore.trainer import Trainer
from axcore.trainer.resolve import resolve


def import_orbax(
    path: Path | str,
    directory: Path | str,
    *,
    config: str,
    dtype: DType | None = None,
    step: int | None = None,
    rotary_rows: RotaryRows | None = None,
    allow_unknown_fields: bool = False,
) -> tuple[Run, str]:
    """Make a run of a checkpoint of another trainer; return it, and the trainer's name.

    Args:
        path: The folder of the checkpoint, or of a run with steps: orbax's, or AXLearn's own.
        directory: Of the run; it may not exist, or must be empty.
        config: A folder with the model's `config.json` and its tokenizer; or the name of an
            experiment, or a config file.
        dtype: What parameters become; as they are stored by default.
        step: Which of a run's steps; by default the newest.
        rotary_rows: Which rows of a head MaxText rotated together, where the model's config leaves
            that open, or its user chose otherwise.
        allow_unknown_fields: Whether fields of `config.json` that could matter are ignored.

    Raises:
        ConfigError: There is no such config, or its model is of no family with such layouts.
        CheckpointError: The checkpoint is not that model's, or is damaged; nothing was written.
    """
    check_is_new(Path(directory))
    cfg = _trainer_config(config, allow_unknown_fields=allow_unknown_fields)
    found = OrbaxCheckpoint(path, cfg.model, step=step, rotary_rows=rotary_rows)
    cfg = with_dtype(cfg, dtype or found.dtype)
    trainer = Trainer(resolve(cfg, Hardware.detect()))
    plan = found.plan(trainer.config.model, specs=trainer.model.param_specs())
    state = plan.read(trainer.compiler.abstract_state().model)
    return save_imported(trainer, state, Path(directory), Path(path)), found.layout


def _trainer_config(named: str, *, allow_unknown_fields: bool) -> Any:
    """Return the config of the trainer of a folder's model, or of an experiment.

    Raises:
        ConfigError: It is neither.
    """
    folder = Path(named).expanduser()
    if (folder / CONFIG).is_file():
        published = PretrainedCheckpoint(folder, allow_unknown_fields=allow_unknown_fields)
        return trainer_config(published)
    if folder.is_dir():
        raise ConfigError(
            f"the folder has no {CONFIG}",
            where="--config",
            hint="name one with the config.json and tokenizer that the model is published with, "
            "or an experiment: axcore experiments",
        )
    # The devices, and what training would begin with, are not those of a conversion.
    cfg = evolve(experiment(named), mesh=ANY_DEVICES, init_from=None)
    if "batch_size" in field_names(cfg.data):  # which must divide over the devices that are here
        size = math.lcm(cfg.data.batch_size, jax.device_count())
        cfg = evolve(cfg, data=evolve(cfg.data, batch_size=size))
    return cfg
