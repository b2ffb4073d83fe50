"""StarCoder2: a Llama's attention, GPT-2's feed-forward and norms."""

from axcore.interop import (
    ATTENTION,
    SIZES,
    Family,
    Field,
    Only,
    RopeFields,
    activation,
    below,
    linear,
    same,
    window,
    without,
)
from axl_attention.models.hugging_face.entries import affine, tied_by
from axl_attention.models.starcoder2 import starcoder2

_LAYER = (
    *affine("attention_residual.norm", "input_layernorm"),
    *below("attention", "self_attn", ATTENTION),
    *affine("feed_forward_residual.norm", "post_attention_layernorm"),
    *linear("feed_forward.up", "mlp.c_fc"),
    *linear("feed_forward.down", "mlp.c_proj"),
)
_WEIGHTS = (
    same("decoder.embedding.weight", "model.embed_tokens.weight"),
    *below("decoder.stack.layer.{layer}", "model.layers.{layer}", _LAYER),
    *affine("decoder.norm", "model.norm"),
    same("head.weight", "lm_head.weight"),
)

STARCODER2 = Family(
    architecture="Starcoder2ForCausalLM",
    template=lambda: starcoder2("toy"),
    config=(
        *without(SIZES, "rms_norm_eps"),
        Field("norm_epsilon", ("**.norm.epsilon",), default=1e-5, to_ours=float),
        activation("hidden_act", "gelu_pytorch_tanh"),
        RopeFields(),
        window("sliding_window", None),
        Field("use_bias", ("**.linear.has_bias", "**.out_linear.has_bias"), default=True),
        tied_by(default=True),
        Only("norm_type", ("layer_norm",), is_written=False),
        Only("mlp_type", ("default",), is_written=False),
    ),
    weights=lambda cfg: _WEIGHTS,
    irrelevant=frozenset({"embedding_dropout", "residual_dropout"}),
    # Of GPTBigCode, from whose config these files were made; the activation is hidden_act.
    unread=frozenset({"activation_function", "layer_norm_epsilon", "scale_attn_weights"}),
)
