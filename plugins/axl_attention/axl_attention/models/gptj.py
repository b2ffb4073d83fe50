"""GPT-J: one norm before both branches, positions for a quarter of a head, a biased head."""

from typing import Any

from axcore.config import replace_config, update_config
from axcore.interop import (
    ConfigEntry,
    Family,
    Fields,
    MustBe,
    WeightMap,
    below,
    common_value,
    linear,
    without,
)
from axcore.layers import FeedForward, LayerNorm, PlainFeedForward, RMSNorm, RoPE, TransformerLayer
from axcore.models import TOY, CausalLM, Sizes, UntiedHead, of_size, transformer
from axl_attention.biased_head import BiasedHead
from axl_attention.layers import with_one_norm
from axl_attention.models.gpt2 import GPT2
from axl_attention.models.shared_maps import (
    affine,
    head_dim_of,
    interleaved_projection,
    layers_of,
)
from axl_attention.positions import PartialRotary

_GPTJ_SIZES: Sizes = {
    "6b": {
        "vocab_size": 50_400,
        "dim": 4096,
        "num_layers": 28,
        "num_heads": 16,
        "hidden_dim": 16_384,
    },
    "toy": {**TOY, "num_kv_heads": None},
}


def gptj(size: str) -> CausalLM.Config:
    """Return the config of GPT-J: `6b` or `toy`.

    Source: Wang and Komatsuzaki 2021, "GPT-J-6B", with the config published with the weights.
    """
    cfg = transformer(**of_size("gptj", _GPTJ_SIZES, size))
    for part, new in (
        (RMSNorm, LayerNorm.Config()),
        (FeedForward, PlainFeedForward.Config()),
        (RoPE, lambda old: PartialRotary.Config(fraction=0.25, inner=old)),
        (TransformerLayer, with_one_norm),
        (UntiedHead, BiasedHead.Config()),
    ):
        cfg = replace_config(cfg, part, new)
    return update_config(cfg, {"**.feed_forward.linear.has_bias": True})


class _RotaryDim(ConfigEntry):
    """`rotary_dim`: how many dimensions of a head have positions."""

    def read(self, cfg: Any, fields: Fields) -> Any:
        """Return a config with positions of so many."""
        share = fields.take("rotary_dim", 64) / head_dim_of(cfg)
        return update_config(cfg, {"**.position.fraction": share})

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the field."""
        return {"rotary_dim": int(head_dim_of(cfg) * common_value(cfg, "**.position.fraction"))}


def _weights(cfg: Any) -> WeightMap:
    num_heads = common_value(cfg, "**.attention.num_heads")
    rotated = int(head_dim_of(cfg) * common_value(cfg, "**.position.fraction"))
    rows = {"rotated": rotated, "rest": head_dim_of(cfg) - rotated}
    attention = (
        *interleaved_projection("q", num_heads, **rows),
        *interleaved_projection("k", num_heads, **rows),
        *linear("v", "v_proj"),
        *linear("out", "out_proj"),
    )
    return layers_of(
        "transformer.h",
        *affine("norm", "ln_1"),
        *below("attention", "attn", attention),
        *linear("feed_forward.up", "mlp.fc_in"),
        *linear("feed_forward.down", "mlp.fc_out"),
        embedding="transformer.wte",
        norm="transformer.ln_f",
    )


GPTJ = Family(
    architecture="GPTJForCausalLM",
    template=lambda: gptj("toy"),
    config=(
        *without(
            GPT2.config,
            "n_positions",
            "tie_word_embeddings",
            "scale_attn_by_inverse_layer_idx",
            "add_cross_attention",
        ),
        _RotaryDim(),
        MustBe("rotary", (True,), is_written=False),
        MustBe("tie_word_embeddings", (False,)),
    ),
    weights=_weights,
    irrelevant=GPT2.irrelevant | {"n_positions"},
    skipped=(r"\.attn\.(masked_)?bias$",),
    length="n_positions",
)
