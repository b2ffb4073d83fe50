"""BLOOM: distances instead of positions, and a norm behind the embedding."""

from typing import Any

from immutabledict import immutabledict

from axcore.config import replace_config, update_config
from axcore.interop import (
    Computed,
    Family,
    Field,
    MustBe,
    WeightMap,
    common_value,
    linear,
    same,
)
from axcore.layers import (
    DotProductAttention,
    Embedding,
    FeedForward,
    LayerNorm,
    NoPosition,
    NormedEmbedding,
    PlainFeedForward,
    RMSNorm,
    RoPE,
)
from axcore.models import TOY, CausalLM, Sizes, TiedHead, UntiedHead, of_size, transformer
from axl_attention.attention_cores import with_alibi
from axl_attention.models.shared_maps import affine, by_head, fused_rows, layers_of


def _size(dim: int, num_layers: int, num_heads: int) -> dict[str, int]:
    return {
        "vocab_size": 250_880,
        "dim": dim,
        "num_layers": num_layers,
        "num_heads": num_heads,
        "hidden_dim": 4 * dim,
    }


_BLOOM_SIZES: Sizes = {
    "560m": _size(1024, 24, 16),
    "1b1": _size(1536, 24, 16),
    "1b7": _size(2048, 24, 16),
    "3b": _size(2560, 30, 32),
    "7b1": _size(4096, 30, 32),
    "176b": _size(14_336, 70, 112),
    "toy": {**TOY, "num_kv_heads": None, "hidden_dim": 4 * TOY["dim"]},
}


def bloom(size: str) -> CausalLM.Config:
    """Return the config of a BLOOM: `560m`, `1b1`, `1b7`, `3b`, `7b1`, `176b` or `toy`.

    Source: BigScience Workshop 2022, arXiv:2211.05100, section 3.2 and table 3.
    """
    cfg = transformer(**of_size("bloom", _BLOOM_SIZES, size))
    for part, new in (
        (RMSNorm, LayerNorm.Config()),
        (FeedForward, PlainFeedForward.Config()),
        (RoPE, NoPosition.Config()),
        (DotProductAttention, with_alibi),
        (Embedding, lambda old: NormedEmbedding.Config(embedding=old)),
        (UntiedHead, TiedHead.Config()),
    ):
        cfg = replace_config(cfg, part, new)
    return update_config(cfg, {"**.linear.has_bias": True, "**.out_linear.has_bias": True})


def _weights(cfg: Any) -> WeightMap:
    num_heads = common_value(cfg, "**.attention.num_heads")
    sizes = (cfg.dim // num_heads,) * 3
    qkv = tuple(f"attention.{part}" for part in "qkv")
    return (
        same("decoder.embedding.embedding.weight", "transformer.word_embeddings.weight"),
        *affine("decoder.embedding.norm", "transformer.word_embeddings_layernorm"),
        *layers_of(
            "transformer.h",
            *affine("attention_residual.norm", "input_layernorm"),
            *fused_rows(qkv, "self_attention.query_key_value", by_head(num_heads, *sizes)),
            *linear("attention.out", "self_attention.dense"),
            *affine("feed_forward_residual.norm", "post_attention_layernorm"),
            *linear("feed_forward.up", "mlp.dense_h_to_4h"),
            *linear("feed_forward.down", "mlp.dense_4h_to_h"),
            embedding="transformer.word_embeddings",
            norm="transformer.ln_f",
        ),
    )


BLOOM = Family(
    architecture="BloomForCausalLM",
    template=lambda: bloom("toy"),
    config=(
        Field("vocab_size", ("vocab_size",)),
        Field("hidden_size", ("dim",), alias="n_embed"),
        Field("n_layer", ("decoder.stack.num_layers",), alias="num_hidden_layers"),
        Field("n_head", ("**.attention.num_heads",), alias="num_attention_heads"),
        Field("layer_norm_epsilon", ("**.norm.epsilon",), default=1e-5, to_axcore=float),
        Computed("**.hidden_dim", lambda cfg: 4 * cfg.dim),
        MustBe("apply_residual_connection_post_layernorm", (False,)),
        MustBe("tie_word_embeddings", (True,)),
    ),
    weights=_weights,
    irrelevant=frozenset({"hidden_dropout", "seq_length", "slow_but_exact"}),
    unread=frozenset(
        {
            "bias_dropout_fusion",
            "masked_softmax_fusion",
            "offset_alibi",
            "skip_bias_add",
            "skip_bias_add_qkv",
            "unk_token_id",
        }
    ),
    copies=immutabledict({"lm_head.weight": "transformer.word_embeddings.weight"}),
    prefix="transformer.",
)
