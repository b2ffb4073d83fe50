"""`PartialRopeFields`: rotary positions of a part of each head, in `config.json`."""

from typing import Any

import attrs

from axcore.config import replace_config
from axcore.errors import ConfigError
from axcore.interop import ConfigEntry, Fields, RopeFields, common_value
from axl_attention.partial_rotary import PartialRotary


@attrs.frozen
class PartialRopeFields(ConfigEntry):
    """The fields of rotary positions, and of the share of a head that has them.

    Args:
        fraction: The field of the share.
        default: What its absence means.
        theta: The field of the base.
        is_always_partial: Whether no model of the family rotates heads as a whole.
        path: Glob of the positions.
    """

    fraction: str = "partial_rotary_factor"
    default: float = 1.0
    theta: str = "rope_theta"
    is_always_partial: bool = attrs.field(default=False, kw_only=True)
    path: str = attrs.field(default="**.attention.position", kw_only=True)

    def read(self, cfg: Any, fields: Fields) -> Any:
        """Return a config with these positions."""
        fraction = fields.take(self.fraction, self.default)
        given = fields.take("rope_parameters", None) or {}
        parameters = {"partial_rotary_factor": fraction, **given}
        fraction = float(parameters.pop("partial_rotary_factor"))
        inner = Fields({**fields.values, "rope_parameters": parameters})
        cfg = RopeFields(self.path, name=self.theta).read(cfg, inner)
        fields.read |= inner.read
        if fraction == 1.0:
            return cfg
        return replace_config(cfg, lambda _: True, _partial(fraction), at=self.path)

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the fields.

        Raises:
            ConfigError: Heads are rotated as a whole, and never are in the family.
        """
        position, fraction = common_value(cfg, self.path), 1.0
        if isinstance(position, PartialRotary.Config):
            fraction = position.fraction
            cfg = replace_config(cfg, lambda _: True, lambda old: old.inner, at=self.path)
        elif self.is_always_partial:
            raise ConfigError(
                f"{self.path} is a {type(position).__qualname__}, which rotates whole heads",
                where=self.path,
            )
        return {self.fraction: fraction, **RopeFields(self.path, name=self.theta).write(cfg)}


def _partial(fraction: float) -> Any:
    return lambda old: PartialRotary.Config(fraction=fraction, inner=old)
