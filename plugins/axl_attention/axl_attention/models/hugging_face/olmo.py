"""OLMo 2 and 3: norms behind branches, and within projections."""

from axcore.config import find_config
from axcore.interop import (
    FEED_FORWARD,
    SIZES,
    Family,
    Field,
    LayerTypes,
    Only,
    RopeFields,
    WeightMap,
    activation,
    below,
    every,
    linear,
    model_weights,
    same,
    window,
    without,
)
from axl_attention.models.hugging_face.entries import tied_by
from axl_attention.models.olmo2 import olmo2
from axl_attention.models.olmo3 import olmo3

_ATTENTION: WeightMap = (
    *linear("q.linear", "q_proj"),
    same("q.norm.weight", "q_norm.weight"),
    *linear("k.linear", "k_proj"),
    same("k.norm.weight", "k_norm.weight"),
    *linear("v", "v_proj"),
    *linear("out", "o_proj"),
)
_WEIGHTS = model_weights(
    *below("attention", "self_attn", _ATTENTION),
    same("attention_residual.norm.weight", "post_attention_layernorm.weight"),
    *below("feed_forward", "mlp", FEED_FORWARD),
    same("feed_forward_residual.norm.weight", "post_feedforward_layernorm.weight"),
)
_BIASES = tuple(
    f"**.attention.{part}.has_bias" for part in ("linear.linear", "value_linear", "out_linear")
)

_COMMON = (
    *without(SIZES, "num_hidden_layers", "rms_norm_eps"),
    Field("rms_norm_eps", ("**.norm.epsilon",), default=1e-5, to_ours=float),
    activation("hidden_act", "silu"),
    tied_by(),
    Field("attention_bias", _BIASES, default=False),
)

OLMO2 = Family(
    architecture="Olmo2ForCausalLM",
    template=lambda: olmo2("toy"),
    config=(Field("num_hidden_layers", ("decoder.stack.num_layers",)), *_COMMON, RopeFields()),
    weights=lambda cfg: _WEIGHTS,
)

_LOCAL, _GLOBAL = (f"decoder.stack.layers[{kind}].attention" for kind in range(2))

OLMO3 = Family(
    architecture="Olmo3ForCausalLM",
    template=lambda: olmo3("toy"),
    layers=LayerTypes(
        ("sliding_attention", "full_attention"),
        lambda layer: not find_config(layer, lambda node: getattr(node, "window", None)),
        lambda fields: every(4),
    ),
    config=(
        *_COMMON,
        # transformers gives local layers this base whatever the field says.
        Only("rope_theta", (500_000.0,)),
        RopeFields(f"{_GLOBAL}.position", 500_000.0, layer_type="full_attention"),
        RopeFields(
            f"{_LOCAL}.position", 500_000.0, layer_type="sliding_attention", is_scaled=False
        ),
        window("sliding_window", 4096, f"{_LOCAL}.core.window"),
    ),
    weights=lambda cfg: _WEIGHTS,
)
