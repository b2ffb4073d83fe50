"""How a batch and its arrays are laid out over devices and time; no number changes."""

import math
from collections.abc import Mapping
from typing import Any

from axcore.config import (
    REQUIRED,
    config,
    evolve,
    find_config,
    replace_config,
    suggest_names,
    update_config,
)
from axcore.errors import ConfigError
from axcore.layers import Pipeline, ScannedLayers
from axcore.modifiers.serving import check_nothing_derived
from axcore.parallel import MESH_AXES, mesh_sizes
from axcore.plugins import Hardware


@config
class MeshShape:
    """Arrange the devices in another mesh.

    Args:
        mesh: Size by mesh axis within a slice; one may be -1 and takes the devices that are left.
        slices: Number of slices by mesh axis, where the hardware is several slices.
    """

    mesh: Mapping[str, int] = REQUIRED
    slices: Mapping[str, int] = {}

    def apply(self, cfg: Any, hardware: Hardware) -> Any:
        """Return a trainer's config with this mesh."""
        return evolve(cfg, mesh=self.mesh, slices=self.slices)


@config
class Shard:
    """Split arrays along other mesh axes, by the logical names of their dimensions.

    Args:
        params: Mesh axes by logical axis, for parameters; others keep theirs.
        activations: The same for activations.
    """

    params: Mapping[str, tuple[str, ...]] = {}
    activations: Mapping[str, tuple[str, ...]] = {}

    def apply(self, cfg: Any, hardware: Hardware) -> Any:
        """Return a trainer's config with these entries in its tables.

        Raises:
            ConfigError: A mesh axis does not exist.
        """
        for axis, names in (*self.params.items(), *self.activations.items()):
            for name in names:
                if name not in MESH_AXES:
                    raise ConfigError(
                        f"{axis!r} is to be split over {name!r}, which is not a mesh axis",
                        where="Shard",
                        hint=suggest_names(name, MESH_AXES),
                    )
        return update_config(
            cfg,
            {
                "sharding.param_rules": {**cfg.sharding.param_rules, **self.params},
                "sharding.activation_rules": {**cfg.sharding.activation_rules, **self.activations},
            },
        )


@config
class Zero2:
    """Keep parameters whole on each device, and split gradients and the optimizer's state.

    It is the second stage of ZeRO, between data parallelism and `fsdp`: parameters move once a
    step, after the update, and not in each pass of each micro-batch. It takes the memory of full
    parameters.

    Args:
        mesh_axis: Over which parameters are split until now, and the rest stays split.

    Source: ZeRO, arXiv 1910.02054.
    """

    mesh_axis: str = "fsdp"

    def apply(self, cfg: Any, hardware: Hardware) -> Any:
        """Return a trainer's config with tables of their own for parameters and optimizer.

        Raises:
            ConfigError: No parameter is split over that mesh axis.
        """
        split = {
            a: names for a, names in cfg.sharding.param_rules.items() if self.mesh_axis in names
        }
        if not split:
            raise ConfigError(
                f"no rule splits parameters over {self.mesh_axis!r}",
                where="Zero2",
                hint="name a mesh axis that sharding.param_rules have, or take the modifier out",
            )
        whole = {a: tuple(n for n in names if n != self.mesh_axis) for a, names in split.items()}
        return update_config(
            cfg,
            {
                "sharding.param_rules": {**cfg.sharding.param_rules, **whole},
                "sharding.optimizer_rules": {
                    **(cfg.sharding.optimizer_rules or cfg.sharding.param_rules),
                    **split,
                },
            },
        )


@config
class Accumulate:
    """Run every batch in more parts, one after the other: less memory, the same result.

    Args:
        factor: How many parts each part of now becomes.
    """

    factor: int = 2

    def apply(self, cfg: Any, hardware: Hardware) -> Any:
        """Return a trainer's config with `factor` times as many micro-batches."""
        return evolve(cfg, num_micro_batches=cfg.num_micro_batches * self.factor)


@config
class MicroBatches:
    """Run every batch in as few parts as leave each device few enough rows at a time.

    So an experiment's batch fits any number of devices. Where it does so already, nothing changes.

    Args:
        rows_per_device: The most rows that are on a device at once.
    """

    is_idempotent = True

    rows_per_device: int = 1

    def apply(self, cfg: Any, hardware: Hardware) -> Any:
        """Return a trainer's config with that many micro-batches.

        Raises:
            ConfigError: No mesh says over how many devices rows are split, or no row is allowed.
        """
        self._check(cfg)
        sizes = mesh_sizes(cfg.mesh, hardware.num_devices, slices=cfg.slices)
        by_axis = dict(zip(MESH_AXES, sizes, strict=True))
        ways = math.prod(by_axis[axis] for axis in cfg.sharding.activation_rules["batch"])
        rows = max(1, cfg.data.batch_size // ways)
        counts = (count for count in range(1, rows + 1) if rows % count == 0)
        fewest = next(count for count in counts if rows // count <= self.rows_per_device)
        return evolve(cfg, num_micro_batches=fewest)

    def _check(self, cfg: Any) -> None:
        if self.rows_per_device < 1:
            raise ConfigError(
                f"rows_per_device is {self.rows_per_device}; expected 1 or more",
                where="MicroBatches.rows_per_device",
            )
        if cfg.mesh is None:
            raise ConfigError(
                "MicroBatches counts the rows of a device, and the config has no mesh yet",
                where="mesh",
                hint="use it in a mesh rule, or set the mesh",
            )


@config
class Pipelined:
    """Put a `Pipeline` in the place of every `ScannedLayers`; the mesh's axis `pipeline` says
    how many stages there are.

    Args:
        num_micro_batches: Parts that a batch passes through the stages in.
        num_rounds: How often each part passes through every stage.
    """

    num_micro_batches: int = 8
    num_rounds: int = 1

    def apply(self, cfg: Any, hardware: Hardware) -> Any:
        """Return `cfg` with its layers in a pipeline.

        Raises:
            ConfigError: It contains no scanned layers, or some of a class derived from them.
        """
        if not find_config(cfg, ScannedLayers):
            raise ConfigError(
                f"{type(cfg).__qualname__} contains no ScannedLayers to make a pipeline of",
                where="Pipelined",
                hint="put the layers that are alike into a ScannedLayers",
            )
        check_nothing_derived(cfg, ScannedLayers, Pipeline)
        stack = Pipeline.Config(
            num_micro_batches=self.num_micro_batches, num_rounds=self.num_rounds
        )
        return replace_config(cfg, ScannedLayers, stack)
