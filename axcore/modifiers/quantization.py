"""Modifiers that switch the linear layers of any model to narrow products."""

from typing import Any

from axcore.config import config
from axcore.layers import Dot, Fp8Current, Int8Dynamic
from axcore.modifiers.dots import WIDE, with_dot
from axcore.plugins import Hardware


@config
class Int8Training:
    """Computes the products of linear layers in int8.

    Args:
        dot: The product that takes the place of plain ones.
        exclude: Globs of the paths of layers that stay plain.
    """

    dot: Dot.Config = Int8Dynamic.Config()
    exclude: tuple[str, ...] = WIDE

    def apply(self, cfg: Any, hardware: Hardware) -> Any:
        """Returns `cfg` with every plain `dot` replaced, but for those excluded.

        Raises:
            ConfigError: There is none.
        """
        return with_dot(cfg, self.dot, exclude=self.exclude)


@config
class Fp8Training:
    """Computes the products of linear layers in float8.

    Args:
        dot: The product that takes the place of plain ones; `Fp8Delayed.Config()` scales by what
            earlier steps held.
        exclude: Globs of the paths of layers that stay plain.
    """

    dot: Dot.Config = Fp8Current.Config()
    exclude: tuple[str, ...] = WIDE

    def apply(self, cfg: Any, hardware: Hardware) -> Any:
        """Returns `cfg` with every plain `dot` replaced, but for those excluded.

        Raises:
            ConfigError: There is none.
        """
        return with_dot(cfg, self.dot, exclude=self.exclude)
