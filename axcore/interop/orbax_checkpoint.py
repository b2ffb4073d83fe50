"""`OrbaxCheckpoint`: a checkpoint of another trainer, read as the weights of a model."""

import warnings
from functools import cached_property
from pathlib import Path
from typing import Any

from axcore.errors import ConfigError
from axcore.interop.checkpoint_arrays import CheckpointArrays
from axcore.interop.family import ADAPTER_ARRAYS, TRAINING_ONLY, family_of
from axcore.interop.layouts import FLAX, RotaryRows, tensors_in_layout
from axcore.interop.pretrained import stored_dtype
from axcore.interop.stored_arrays import find_stored_arrays
from axcore.interop.weight_plan import WeightPlan, plan_weights
from axcore.module import DType


class OrbaxCheckpoint:
    """A checkpoint in a folder of orbax's or AXLearn's, in a layout that a model's family knows.

    Attributes:
        layout: The trainer whose layout it is in.
        source: Its arrays.
    """

    def __init__(
        self,
        path: Path | str,
        cfg: Any,
        *,
        step: int | None = None,
        rotary_rows: RotaryRows | None = None,
    ) -> None:
        """Open a checkpoint; read no numbers.

        Arrays of training, the optimizer's for one, are named by a warning.

        Args:
            path: The folder of the checkpoint, or of a run with steps.
            cfg: The model's config; such checkpoints contain none.
            step: Which of a run's steps; by default the newest.
            rotary_rows: Which rows positions rotate together, where the layout leaves that open.

        Raises:
            CheckpointError: It contains no checkpoint, or not the model's.
            ConfigError: The model is of no family that is read in such layouts.
        """
        name, family, values = family_of(cfg)
        if not family.layouts:
            raise ConfigError(
                f"models of type {name} are read from no other trainer's checkpoints",
                where="--config",
                hint="export the model for Hugging Face with the trainer that wrote it, and read "
                "that: hf:FOLDER",
            )
        bound = family.bind(cfg, ignored=(*TRAINING_ONLY, *ADAPTER_ARRAYS))
        arrays = find_stored_arrays(Path(path).expanduser(), step=step)
        tensors, layout = tensors_in_layout(
            (*family.layouts, FLAX), arrays, values, bound.shapes, rotary_rows=rotary_rows
        )
        self.layout = layout.name
        self.source = CheckpointArrays(arrays.folder, bound, tensors)
        used = {tensor.name for tensor in tensors.values()}
        ignored = [name for name in arrays.arrays if name not in used]
        if ignored:
            warnings.warn(
                f"{len(ignored)} arrays of the checkpoint are not the model's but of training, "
                f"{ignored[0]} for one; they are ignored",
                stacklevel=2,
            )

    @cached_property
    def dtype(self) -> DType:
        """The dtype that the arrays have.

        Raises:
            CheckpointError: They have several.
        """
        source = self.source
        return stored_dtype((one.dtype for one in source.tensors.values()), source.folder)

    def plan(self, cfg: Any, *, specs: Any = None) -> WeightPlan:
        """Return what is read for the model, whose dtypes may be other ones.

        Args:
            cfg: Its config.
            specs: Its `param_specs()`, where they are made already.
        """
        return plan_weights((cfg, cfg), self.source, specs=specs)
