"""`Remat`: chooses what the backward pass of every layer keeps of its forward pass."""

from typing import Any

from axcore.config import config, find_config, name_the_known, update_config
from axcore.errors import ConfigError
from axcore.plugins import Hardware, Ref

_PRESETS = Ref("axcore.layers.remat:REMAT_PRESETS")
_LAYER = Ref("axcore.layers:TransformerLayer")


@config
class Remat:
    """Trades memory of activations for computing them again, or for the host's memory.

    Args:
        policy: A preset of `axcore.layers.remat`, from `full`, which keeps nothing within a layer,
            to `minimal`, which keeps every product; `none` switches recomputation off.
        at: Path or glob of the modules it is for; every transformer layer where None.
    """

    policy: str = "full"
    at: str | None = None

    def apply(self, cfg: Any, hardware: Hardware) -> Any:
        """Returns `cfg` with the preset in the `remat` field of the modules.

        Raises:
            ConfigError: There is no such preset, or nothing at that path, or no layer at all.
        """
        presets = _PRESETS.resolve()
        if self.policy not in presets:
            raise ConfigError(
                f"there is no remat policy {self.policy!r}; {name_the_known(self.policy, presets)}",
                where="Remat.policy",
                mend=f"name one of {', '.join(presets)}, or set the field `remat` of a module",
            )
        remat = presets[self.policy]
        return update_config(cfg, {f"{path}.remat": remat for path in self._paths(cfg)})

    def _paths(self, cfg: Any) -> list[str]:
        if self.at is not None:
            return [self.at]
        found = [layer.path for layer in find_config(cfg, _LAYER.resolve())]
        if not found:
            raise ConfigError(
                f"{type(cfg).__qualname__} holds no transformer layer to recompute",
                where="Remat.at",
                mend="say which modules are meant: Remat(at='model.decoder.stack.layer')",
            )
        return found
