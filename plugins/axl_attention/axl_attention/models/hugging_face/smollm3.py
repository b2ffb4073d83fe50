"""SmolLM3: a Llama of layers with rotary positions, and layers with none."""

import attrs

from axcore.config import find_config
from axcore.errors import ConfigError
from axcore.interop import (
    ATTENTION_BIAS,
    LLAMA_WEIGHTS,
    SIZES,
    EveryLayer,
    Family,
    Fields,
    LayerKinds,
    Only,
    RopeFields,
    activation,
    every,
    without,
)
from axcore.layers import NoPosition
from axl_attention.models.hugging_face.entries import MLP_BIAS, NoPadding, tied_by
from axl_attention.models.smollm3 import smollm3


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
        Only("use_sliding_window", (False,)),
        EveryLayer("layer_types", "full_attention"),
    ),
    weights=lambda cfg: LLAMA_WEIGHTS,
    irrelevant=frozenset({"max_window_layers", "sliding_window"}),
)
