"""SmolLM3: a Llama in which every fourth layer knows no positions."""

import attrs

from axcore.config import find_config, replace_config, update_config
from axcore.errors import ConfigError
from axcore.interop import (
    ATTENTION_BIAS,
    LLAMA_WEIGHTS,
    SIZES,
    EveryLayer,
    Family,
    Fields,
    LayerKinds,
    MustBe,
    RopeFields,
    activation,
    every,
    without,
)
from axcore.layers import NoPosition, RoPE, alternating
from axcore.models import TOY, CausalLM, Sizes, TiedHead, UntiedHead, of_size, transformer
from axl_attention.models.shared_maps import MLP_BIAS, NoPadding, tied_by

_SMOLLM3_SIZES: Sizes = {
    "3b": {
        "vocab_size": 128_256,
        "dim": 2048,
        "num_layers": 36,
        "num_heads": 16,
        "num_kv_heads": 4,
        "hidden_dim": 11_008,
        "interval": 4,
    },
    "toy": {**TOY, "interval": 2},
}


def smollm3(size: str) -> CausalLM.Config:
    """Return the config of a SmolLM3: `3b` or `toy`.

    Source: Bakouch et al. 2025, "SmolLM3: smol, multilingual, long-context reasoner"; layers
    without positions as in Yang et al. 2025, arXiv:2501.18795; sizes as in the config published
    with the weights.
    """
    sizes = dict(of_size("smollm3", _SMOLLM3_SIZES, size))
    interval = sizes.pop("interval")
    cfg = replace_config(transformer(**sizes), UntiedHead, TiedHead.Config())
    cfg = update_config(cfg, {"**.position.theta": 5_000_000.0})
    stack = cfg.decoder.stack
    unaware = replace_config(stack.layer, RoPE, NoPosition.Config())
    turns = alternating(stack, *[stack.layer] * (interval - 1), unaware)
    return update_config(cfg, {"decoder.stack": turns})


@attrs.frozen
class _NoRopeLayers(LayerKinds):
    """`no_rope_layers`, which has 0 for a layer without positions and 1 for one with them."""

    def read(self, fields: Fields, num_layers: int) -> list[int]:
        """Return the kind of each layer.

        Raises:
            ConfigError: There is not 0 or 1 for each layer.
        """
        interval = fields.take("no_rope_layer_interval", 4)
        named = fields.take("no_rope_layers", None)
        if named is None:
            return [every(interval)(i) for i in range(num_layers)]
        if len(named) < num_layers or {*named} - {0, 1}:
            raise ConfigError(
                f"no_rope_layers is {named}; there are {num_layers} layers, with 0 or 1 for each",
                where="no_rope_layers",
            )
        return [1 - flag for flag in named[:num_layers]]

    def write(self, kinds: list[int]) -> dict[str, list[int]]:
        """Return `no_rope_layers`."""
        return {"no_rope_layers": [1 - kind for kind in kinds]}


SMOLLM3 = Family(
    architecture="SmolLM3ForCausalLM",
    template=lambda: smollm3("toy"),
    layers=_NoRopeLayers(
        ("with rotary positions", "without positions"),
        lambda layer: bool(find_config(layer, NoPosition)),
    ),
    config=(
        *without(SIZES, "num_hidden_layers"),
        activation("hidden_act", "silu"),
        RopeFields("decoder.stack.layers[0].attention.position", 2_000_000.0),
        tied_by(default=True),
        NoPadding(),
        ATTENTION_BIAS,
        MLP_BIAS,
        MustBe("use_sliding_window", (False,)),
        EveryLayer("layer_types", "full_attention"),
    ),
    weights=lambda cfg: LLAMA_WEIGHTS,
    irrelevant=frozenset({"max_window_layers", "sliding_window"}),
)
