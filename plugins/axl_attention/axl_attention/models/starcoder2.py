"""StarCoder2: layer norms, biases everywhere, plain feed-forwards, a window, often a tied head."""

from axcore.config import replace_config, update_config
from axcore.interop import (
    ATTENTION,
    SIZES,
    Family,
    Field,
    MustBe,
    RopeFields,
    activation,
    below,
    linear,
    same,
    window,
    without,
)
from axcore.layers import FeedForward, LayerNorm, PlainFeedForward, RMSNorm
from axcore.models import TOY, CausalLM, Sizes, TiedHead, UntiedHead, of_size, transformer
from axl_attention.models.shared_maps import affine, tied_by

_VOCABULARY = {"vocab_size": 49_152}

_STARCODER2_SIZES: Sizes = {
    "3b": {
        "dim": 3072,
        "num_layers": 30,
        "num_heads": 24,
        "num_kv_heads": 2,
        "hidden_dim": 12_288,
        "theta": 999_999.4420358813,
        **_VOCABULARY,
    },
    "7b": {
        "dim": 4608,
        "num_layers": 32,
        "num_heads": 36,
        "num_kv_heads": 4,
        "hidden_dim": 18_432,
        "theta": 1_000_000.0,
        **_VOCABULARY,
    },
    "15b": {
        "dim": 6144,
        "num_layers": 40,
        "num_heads": 48,
        "num_kv_heads": 4,
        "hidden_dim": 24_576,
        "theta": 100_000.0,
        **_VOCABULARY,
    },
    "toy": {**TOY, "theta": 10_000.0, "window": 4},
}


def starcoder2(size: str) -> CausalLM.Config:
    """Return the config of a StarCoder2: `3b`, `7b`, `15b` or `toy`.

    Source: Lozhkov et al. 2024, arXiv:2402.19173, table 6; bases of positions as in the configs
    published with the weights.
    """
    sizes = dict(of_size("starcoder2", _STARCODER2_SIZES, size))
    theta, window = sizes.pop("theta"), sizes.pop("window", 4096)
    cfg = transformer(**sizes)
    for part, new in (
        (RMSNorm, LayerNorm.Config()),
        (FeedForward, PlainFeedForward.Config()),
        (UntiedHead, UntiedHead.Config() if size == "15b" else TiedHead.Config()),
    ):
        cfg = replace_config(cfg, part, new)
    return update_config(
        cfg,
        {
            "**.linear.has_bias": True,
            "**.out_linear.has_bias": True,
            "**.position.theta": theta,
            "**.core.window": (window - 1, 0),
        },
    )


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
        Field("norm_epsilon", ("**.norm.epsilon",), default=1e-5, to_axcore=float),
        activation("hidden_act", "gelu_pytorch_tanh"),
        RopeFields(),
        window("sliding_window", None),
        Field("use_bias", ("**.linear.has_bias", "**.out_linear.has_bias"), default=True),
        tied_by(default=True),
        MustBe("norm_type", ("layer_norm",), is_written=False),
        MustBe("mlp_type", ("default",), is_written=False),
    ),
    weights=lambda cfg: _WEIGHTS,
    irrelevant=frozenset({"embedding_dropout", "residual_dropout"}),
    # Of GPTBigCode, from whose config these files were made; the activation is hidden_act.
    unread=frozenset({"activation_function", "layer_norm_epsilon", "scale_attn_weights"}),
)
