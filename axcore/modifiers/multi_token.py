"""`MultiTokenPrediction`: train a language model to predict tokens further ahead, too."""

from typing import Any

from axcore.config import PositiveInt, config, evolve, field_names, find_config, replace_config
from axcore.errors import ConfigError
from axcore.learner import Learner
from axcore.models.causal_lm import CausalLM
from axcore.models.multi_token_lm import MultiTokenBlock, MultiTokenLM
from axcore.plugins import Hardware


@config
class MultiTokenPrediction:
    """Put a `MultiTokenLM` in the place of a `CausalLM`; blocks have layers as the last of its own.

    Args:
        depth: Tokens ahead of the next one that are predicted.
        weight: Weight of the mean of their cross-entropies.
    """

    depth: PositiveInt = 1
    weight: float = 0.3

    def apply(self, cfg: Any, hardware: Hardware) -> Any:
        """Return `cfg` with a model that predicts more tokens.

        Raises:
            ConfigError: It has no plain `CausalLM`, or predicts more tokens already.
        """
        # Not by isinstance: what a class derived from it does would be lost.
        if not any(type(found.node) is CausalLM.Config for found in find_config(cfg, CausalLM)):
            raise ConfigError(
                f"{type(cfg).__qualname__} contains no plain CausalLM",
                where="MultiTokenPrediction",
                hint="apply it once, to the config of a language model",
            )
        for found in find_config(cfg, Learner):
            if found.node.trainable != Learner.Config().trainable:
                raise ConfigError(
                    f"the learner trains {', '.join(found.node.trainable)} alone, so that new "
                    "layers would stay at random numbers",
                    where="MultiTokenPrediction",
                    hint="apply it before what freezes parameters, as lora does",
                )
        return replace_config(cfg, CausalLM, self._changed)

    def _changed(self, model: Any) -> Any:
        if type(model) is not CausalLM.Config:
            return model
        decoder: Any = model.decoder
        block = MultiTokenBlock.Config(layer=_last_layer(decoder.stack), norm=decoder.norm)
        fields = {name: getattr(model, name) for name in field_names(model)}
        # A model of no published family: files have no place for these layers.
        wide = MultiTokenLM.Config(
            **fields, depth=self.depth, ahead_weight=self.weight, blocks=block
        )
        return evolve(wide, published=None)


def _last_layer(stack: Any) -> Any:
    """Return the config of the last layer of a stack, of which layers may be stacks themselves."""
    names = set(field_names(stack))
    if "layers" in names:
        return _last_layer(stack.layers[-1])
    return _last_layer(stack.layer) if {"layer", "num_layers"} <= names else stack
