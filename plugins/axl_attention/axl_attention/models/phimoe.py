"""Phi-3.5-MoE: layer norms, biases, and two experts that are each weighed against near rivals."""

from typing import Any

from axcore.config import replace_config, update_config
from axcore.errors import ConfigError
from axcore.interop import (
    ATTENTION,
    ATTENTION_BIAS,
    SIZES,
    Choice,
    ConfigEntry,
    Family,
    Field,
    Fields,
    MustBe,
    RopeFields,
    activation,
    below,
    linear,
    window,
    without,
)
from axcore.layers import FeedForward, LayerNorm, MoE, RMSNorm
from axcore.models import TOY, CausalLM, Sizes, UntiedHead, of_size, transformer
from axl_attention.biased_head import BiasedHead
from axl_attention.models.shared_maps import affine, layers_of
from axl_attention.sparse_mixer import SparseMixer

_PHIMOE_SIZES: Sizes = {
    "3.5": {
        "vocab_size": 32_064,
        "dim": 4096,
        "num_layers": 32,
        "num_heads": 32,
        "num_kv_heads": 8,
        "hidden_dim": 6400,
        "num_experts": 16,
    },
    "toy": {**TOY, "hidden_dim": 48, "num_experts": 4},
}
"""`hidden_dim` is that of one expert."""


def phimoe(size: str) -> CausalLM.Config:
    """Return the config of a Phi-3.5-MoE for 4096 tokens: `3.5` or `toy`.

    Source: Abdin et al. 2024, arXiv:2404.14219, section 2; biases as in the config published with
    the weights.
    """
    sizes = dict(of_size("phimoe", _PHIMOE_SIZES, size))
    num_experts = sizes.pop("num_experts")
    cfg = replace_config(
        transformer(**sizes),
        FeedForward,
        lambda ffn: MoE.Config(
            expert=ffn, router=SparseMixer.Config(), num_experts=num_experts, top_k=2
        ),
    )
    cfg = replace_config(cfg, RMSNorm, LayerNorm.Config())
    cfg = replace_config(cfg, UntiedHead, BiasedHead.Config())
    biases = ("**.attention.linear.has_bias", "**.attention.out_linear.has_bias")
    return update_config(cfg, dict.fromkeys(biases, True))


_LENGTH = "original_max_position_embeddings"


class _Positions(ConfigEntry):
    """Rotary positions, whose factor on queries and keys is called `short_mscale` in short rows."""

    def read(self, cfg: Any, fields: Fields) -> Any:
        """Return a config with these positions.

        Raises:
            ConfigError: Short and long rows have other factors, or scaled positions have none.
        """
        forms = (fields.take(name, None) or {} for name in ("rope_scaling", "rope_parameters"))
        values = {name: value for form in forms for name, value in form.items()}
        kind = values.get("rope_type") or values.get("type", "default")
        length = fields.take(_LENGTH, None)
        short, long = (values.pop(f"{rows}_mscale", None) for rows in ("short", "long"))
        if kind != "default":
            if kind != "longrope" or short is None or short != long:
                raise ConfigError(
                    f"positions are of type {kind}, with short_mscale {short} and long_mscale "
                    f"{long}; axcore knows longrope with one factor for all rows",
                    where="rope_scaling",
                    hint="take the factor of the rows that you need for both",
                )
            values = {_LENGTH: length, **values, "attention_factor": short}
        inner = Fields({**fields.values, "rope_scaling": None, "rope_parameters": values})
        cfg = RopeFields(theta=1_000_000.0).read(cfg, inner)
        fields.read |= inner.read
        return cfg

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the fields.

        Raises:
            ConfigError: Positions are scaled in a way that the family does not know.
        """
        values = RopeFields().write(cfg)
        scaling = values["rope_scaling"]
        if scaling is None:
            return values
        if scaling["rope_type"] != "longrope":
            raise ConfigError(f"positions are of type {scaling['rope_type']}, and not of longrope")
        factor = scaling.pop("attention_factor")
        scaling |= {"short_mscale": factor, "long_mscale": factor}
        return {**values, "rope_scaling": scaling}


_EXPERT = (*linear("gate", "w1"), *linear("down", "w2"), *linear("up", "w3"))
_WEIGHTS = layers_of(
    "model.layers",
    *affine("attention_residual.norm", "input_layernorm"),
    *affine("feed_forward_residual.norm", "post_attention_layernorm"),
    *below("attention", "self_attn", ATTENTION),
    *linear("feed_forward.router.linear", "block_sparse_moe.gate"),
    *below("feed_forward.experts.expert.{expert}", "block_sparse_moe.experts.{expert}", _EXPERT),
    embedding="model.embed_tokens",
    norm="model.norm",
)

PHIMOE = Family(
    architecture="PhimoeForCausalLM",
    template=lambda: phimoe("toy"),
    config=(
        *without(SIZES, "rms_norm_eps"),
        Field("rms_norm_eps", ("**.norm.epsilon",), default=1e-5, to_axcore=float),
        activation("hidden_act", "silu"),
        ATTENTION_BIAS,
        _Positions(),
        window("sliding_window", None),
        Field("num_local_experts", ("**.feed_forward.num_experts",), default=16),
        MustBe("num_experts_per_tok", (2,)),
        Field("router_jitter_noise", ("**.router.margin",), default=0.01, to_axcore=float),
        Choice(
            "lm_head_bias",
            "head",
            {False: UntiedHead.Config(), True: BiasedHead.Config()},
            False,
        ),
        MustBe("tie_word_embeddings", (False,)),
    ),
    weights=lambda cfg: _WEIGHTS,
    irrelevant=frozenset({"hidden_dropout", "input_jitter_noise", "router_aux_loss_coef"}),
)
