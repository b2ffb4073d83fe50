"""`RematModifier`: chooses what the backward pass of every layer keeps of its forward pass."""

from typing import Any

from axcore.config import config, find_config, suggest_names, update_config
from axcore.errors import ConfigError
from axcore.layers import TransformerLayer
from axcore.layers.remat_presets import REMAT_PRESETS
from axcore.plugins import Hardware


@config
class RematModifier:
    """Trades memory of activations for computing them again, or for the host's memory.

    Args:
        policy: A preset of `axcore.layers.remat_presets`, from `full`, which keeps nothing within
            a layer, to `minimal`, which keeps every product; `none` switches recomputation off.
        at: Path or glob of the modules it is for; every transformer layer where None.
    """

    policy: str = "full"
    at: str | None = None

    def apply(self, cfg: Any, hardware: Hardware) -> Any:
        """Returns `cfg` with the preset in the `remat` field of the modules.

        Raises:
            ConfigError: There is no such preset, or nothing at that path, or no layer at all.
        """
        if self.policy not in REMAT_PRESETS:
            raise ConfigError(
                f"there is no remat policy {self.policy!r}; "
                + suggest_names(self.policy, REMAT_PRESETS),
                where="RematModifier.policy",
                hint=f"name one of {', '.join(REMAT_PRESETS)}, "
                "or set the field `remat` of a module",
            )
        remat = REMAT_PRESETS[self.policy]
        return update_config(cfg, {f"{path}.remat": remat for path in self._paths(cfg)})

    def _paths(self, cfg: Any) -> list[str]:
        if self.at is not None:
            return [self.at]
        found = [layer.path for layer in find_config(cfg, TransformerLayer)]
        if not found:
            raise ConfigError(
                f"{type(cfg).__qualname__} holds no transformer layer to recompute",
                where="RematModifier.at",
                hint="say which modules are meant: RematModifier(at='model.decoder.stack.layer')",
            )
        return found
