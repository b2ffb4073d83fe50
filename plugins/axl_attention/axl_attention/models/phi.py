"""Phi-1, 1.5 and 2: one norm before both branches, positions for a part of a head, biased heads."""

from axcore.config import replace_config, update_config
from axcore.interop import (
    SIZES,
    Family,
    Field,
    MustBe,
    activation,
    below,
    linear,
    without,
)
from axcore.layers import FeedForward, LayerNorm, PlainFeedForward, RMSNorm, RoPE, TransformerLayer
from axcore.models import TOY, CausalLM, Sizes, UntiedHead, of_size, transformer
from axl_attention.biased_head import BiasedHead
from axl_attention.layers import with_one_norm
from axl_attention.models.shared_maps import PartialRopeFields, affine, layers_of
from axl_attention.positions import PartialRotary

_PUBLISHED = {"vocab_size": 51_200, "num_heads": 32}

_PHI_SIZES: Sizes = {
    "1.5": {"dim": 2048, "num_layers": 24, "hidden_dim": 8192, **_PUBLISHED},
    "2": {"dim": 2560, "num_layers": 32, "hidden_dim": 10_240, **_PUBLISHED},
    "toy": TOY,
}


def phi(size: str) -> CausalLM.Config:
    """Return the config of a Phi: `1.5`, `2` or `toy`.

    Source: Li et al. 2023, arXiv:2309.05463, section 2.1; Phi-2 as in the config published with the
    weights.
    """
    fraction = 0.4 if size == "2" else 0.5
    cfg = transformer(**of_size("phi", _PHI_SIZES, size))
    for part, new in (
        (RMSNorm, LayerNorm.Config()),
        (FeedForward, PlainFeedForward.Config()),
        (RoPE, lambda old: PartialRotary.Config(fraction=fraction, inner=old)),
        (TransformerLayer, with_one_norm),
        (UntiedHead, BiasedHead.Config()),
    ):
        cfg = replace_config(cfg, part, new)
    return update_config(cfg, {"**.linear.has_bias": True, "**.out_linear.has_bias": True})


_ATTENTION = (
    *linear("q", "q_proj"),
    *linear("k", "k_proj"),
    *linear("v", "v_proj"),
    *linear("out", "dense"),
)
_WEIGHTS = layers_of(
    "model.layers",
    *affine("norm", "input_layernorm"),
    *below("attention", "self_attn", _ATTENTION),
    *linear("feed_forward.up", "mlp.fc1"),
    *linear("feed_forward.down", "mlp.fc2"),
    embedding="model.embed_tokens",
    norm="model.final_layernorm",
)

PHI = Family(
    architecture="PhiForCausalLM",
    template=lambda: phi("toy"),
    config=(
        *without(SIZES, "rms_norm_eps"),
        Field("layer_norm_eps", ("**.norm.epsilon",), default=1e-5, to_axcore=float),
        activation("hidden_act", "gelu_new"),
        PartialRopeFields(default=0.5),
        MustBe("qk_layernorm", (False,)),
        MustBe("tie_word_embeddings", (False,)),
    ),
    weights=lambda cfg: _WEIGHTS,
    irrelevant=frozenset({"embd_pdrop", "resid_pdrop"}),
)
