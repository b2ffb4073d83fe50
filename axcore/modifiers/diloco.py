"""`DiLoCoModifier`: slices that train on their own, as any experiment can be asked to do."""

import math
from typing import Any

from axcore.config import Fraction, PositiveFloat, PositiveInt, config, replace_config, same_fields
from axcore.errors import ConfigError
from axcore.learner import DiLoCo, Learner
from axcore.learner.diloco import SLICES, norms_error
from axcore.parallel import MESH_AXES, mesh_sizes
from axcore.plugins import Hardware


@config
class DiLoCoModifier:
    """Let each slice train on its part of the batch, and all synchronize every so many steps.

    It changes numbers: steps are those of `axcore.learner.DiLoCo`.

    Args:
        num_groups: Groups; None makes one of each part of the mesh axis `data`.
        sync_every: Steps from one synchronization to the next.
        outer_rate: Learning rate of the outer optimizer.
        outer_momentum: Its momentum.

    Source: Douillard et al. 2023, arXiv:2311.08105.
    """

    num_groups: PositiveInt | None = None
    sync_every: PositiveInt = 100
    outer_rate: PositiveFloat = 0.7
    outer_momentum: Fraction = 0.9

    def apply(self, cfg: Any, hardware: Hardware) -> Any:
        """Return a trainer's config whose learner is one of groups.

        Raises:
            ConfigError: There would be one group, or the config measures gradients by module.
        """
        num_groups = self.num_groups or self._slices(cfg, hardware)
        if num_groups == 1:
            raise ConfigError(
                "DiLoCo has one group, which would train alone",
                where="DiLoCoModifier.num_groups",
                hint="name num_groups, as in diloco(num_groups=2), or put "
                "mesh_shape(mesh={'data': 2, 'fsdp': -1}) before it; --set changes the mesh later",
            )
        if cfg.logging.gradient_norms_every_steps:
            raise norms_error()
        return replace_config(
            cfg,
            Learner,
            lambda old: same_fields(
                old,
                DiLoCo,
                num_groups=num_groups,
                sync_every=self.sync_every,
                outer_rate=self.outer_rate,
                outer_momentum=self.outer_momentum,
            ),
        )

    def _slices(self, cfg: Any, hardware: Hardware) -> int:
        if cfg.mesh is None:
            return 1
        sizes = mesh_sizes(cfg.mesh, hardware.num_devices, slices=cfg.slices)
        return math.prod(
            size for axis, size in zip(MESH_AXES, sizes, strict=True) if axis == SLICES
        )
