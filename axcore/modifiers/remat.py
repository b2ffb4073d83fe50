"""`RematModifier`: what the backward pass of every layer keeps of its forward pass, by preset.

The layers give their larger values names, as ops do with their residuals; a `Remat` config says by
name what becomes of them. What is not kept is computed again from what the layer was given.
"""

from collections.abc import Mapping
from typing import Any

from axcore.config import config, find_config, suggest_names, update_config
from axcore.errors import ConfigError
from axcore.layers import (
    ATTENTION_KEY,
    ATTENTION_PROJECTED,
    ATTENTION_QUERY,
    ATTENTION_VALUE,
    CrossTransformerLayer,
    Pipeline,
    ScannedLayers,
    Sequence,
    Stack,
    TransformerLayer,
)
from axcore.layers.transformer import FEED_FORWARD_GATE, FEED_FORWARD_UP
from axcore.module import Remat
from axcore.ops import ATTENTION_LSE, ATTENTION_OUT
from axcore.plugins import Hardware

_STACKS = (Stack, ScannedLayers, Pipeline)
_RESIDUALS = (ATTENTION_OUT, ATTENTION_LSE)
_HEADS = (ATTENTION_QUERY, ATTENTION_KEY, ATTENTION_VALUE)
_GATE = (ATTENTION_PROJECTED, FEED_FORWARD_GATE)
_WIDE = (*_GATE, FEED_FORWARD_UP)

REMAT_PRESETS: Mapping[str, Remat | None] = {
    "none": None,
    "full": Remat(),
    "save_attention": Remat(save=_RESIDUALS),
    "save_heads": Remat(save=(*_HEADS, *_RESIDUALS)),
    "save_gate": Remat(save=(*_HEADS, *_RESIDUALS, *_GATE)),
    "minimal": Remat(save=(*_HEADS, *_RESIDUALS, *_WIDE)),
    "offload_attention": Remat(save=(ATTENTION_LSE,), offload=(*_HEADS, ATTENTION_OUT)),
    "offload_minimal": Remat(save=(ATTENTION_LSE,), offload=(*_HEADS, ATTENTION_OUT, *_WIDE)),
}
"""By name, from most memory to least computation: `none` keeps every value; `full` nothing within a
layer; `save_attention` what spares the attention kernel a second run; `save_heads` the projections
before it too; `save_gate` also the one after it and the gate of the feed-forward; `minimal` every
product, so that only cheap values are computed again. Those named `offload_...` keep in the host's
memory what their namesakes keep in the device's.
"""


@config
class RematModifier:
    """Trade memory of activations for computing them again, or for the host's memory.

    Args:
        policy: A preset of `REMAT_PRESETS`, from `full`, which keeps nothing within
            a layer, to `minimal`, which keeps every product; `none` switches recomputation off.
        at: Path or glob of the modules it is for; every transformer layer and every other
            layer of a stack where None.
    """

    policy: str = "full"
    at: str | None = None

    def apply(self, cfg: Any, hardware: Hardware) -> Any:
        """Return `cfg` with the preset in the `remat` field of the modules.

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
        # None, for `none`, is a value of the field too: it takes away what a config had.
        remat = REMAT_PRESETS[self.policy]
        return update_config(cfg, {f"{path}.remat": remat for path in self._paths(cfg)})

    def _paths(self, cfg: Any) -> list[str]:
        if self.at is not None:
            return [self.at]
        kinds = (TransformerLayer, CrossTransformerLayer)
        found = [layer.path for kind in kinds for layer in find_config(cfg, kind)]
        # Stacks may have layers of other kinds, as a state space alone.
        stacks = [stack for kind in _STACKS for stack in find_config(cfg, kind)]
        others = {f"{stack.path}.layer": stack.node.layer for stack in stacks}
        for turns in find_config(cfg, Sequence):
            others |= {f"{turns.path}.layers[{i}]": one for i, one in enumerate(turns.node.layers)}
        of_others = (*(kind.Config for kind in _STACKS), Sequence.Config)
        found += [
            path
            for path, layer in others.items()
            if not isinstance(layer, of_others) and not any(one.startswith(path) for one in found)
        ]
        if not found:
            raise ConfigError(
                f"{type(cfg).__qualname__} contains no transformer layer to recompute",
                where="RematModifier.at",
                hint="say which modules are meant: RematModifier(at='model.decoder.stack.layer')",
            )
        return found
