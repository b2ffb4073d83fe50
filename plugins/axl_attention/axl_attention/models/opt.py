"""OPT: a GPT-2 with ReLU, whose table of positions begins at the third row."""

from immutabledict import immutabledict

from axcore.config import replace_config, update_config
from axcore.interop import (
    Derived,
    Family,
    Field,
    MustBe,
    activation,
    below,
    linear,
    same,
)
from axcore.layers import (
    Embedding,
    FeedForward,
    LayerNorm,
    NoPosition,
    PlainFeedForward,
    RMSNorm,
    RoPE,
)
from axcore.models import TOY, CausalLM, Sizes, TiedHead, UntiedHead, of_size, transformer
from axl_attention.models.shared_maps import NoPadding, affine, layers_of
from axl_attention.positions import OffsetPosition


def _size(dim: int, num_layers: int, num_heads: int) -> dict[str, int]:
    return {
        "vocab_size": 50_272,
        "dim": dim,
        "num_layers": num_layers,
        "num_heads": num_heads,
        "hidden_dim": 4 * dim,
    }


_OPT_SIZES: Sizes = {
    "125m": _size(768, 12, 12),
    "1.3b": _size(2048, 24, 32),
    "2.7b": _size(2560, 32, 32),
    "6.7b": _size(4096, 32, 32),
    "13b": _size(5120, 40, 40),
    "30b": _size(7168, 48, 56),
    "66b": _size(9216, 64, 72),
    "toy": {**TOY, "num_kv_heads": None},
}


def opt(size: str) -> CausalLM.Config:
    """Return the config of an OPT: `125m`, `1.3b`, `2.7b`, `6.7b`, `13b`, `30b`, `66b` or `toy`.

    Source: Zhang et al. 2022, arXiv:2205.01068, table 1.
    """
    cfg = transformer(**of_size("opt", _OPT_SIZES, size))
    for part, new in (
        (RMSNorm, LayerNorm.Config()),
        (FeedForward, PlainFeedForward.Config(activation="relu")),
        (RoPE, NoPosition.Config()),
        (Embedding, lambda old: OffsetPosition.Config(max_length=2048, embedding=old)),
        (UntiedHead, TiedHead.Config()),
    ):
        cfg = replace_config(cfg, part, new)
    return update_config(cfg, {"**.linear.has_bias": True, "**.out_linear.has_bias": True})


_ATTENTION = (
    *linear("q", "q_proj"),
    *linear("k", "k_proj"),
    *linear("v", "v_proj"),
    *linear("out", "out_proj"),
)
_WEIGHTS = (
    same("decoder.embedding.embedding.weight", "model.decoder.embed_tokens.weight"),
    same("decoder.embedding.positions", "model.decoder.embed_positions.weight"),
    *layers_of(
        "model.decoder.layers",
        *affine("attention_residual.norm", "self_attn_layer_norm"),
        *below("attention", "self_attn", _ATTENTION),
        *affine("feed_forward_residual.norm", "final_layer_norm"),
        *linear("feed_forward.up", "fc1"),
        *linear("feed_forward.down", "fc2"),
        embedding="model.decoder.embed_tokens",
        norm="model.decoder.final_layer_norm",
    ),
)

OPT = Family(
    architecture="OPTForCausalLM",
    template=lambda: opt("toy"),
    config=(
        Field("vocab_size", ("vocab_size",)),
        Field("hidden_size", ("dim",)),
        Field("num_hidden_layers", ("decoder.stack.num_layers",)),
        Field("num_attention_heads", ("**.attention.num_heads",)),
        Field("ffn_dim", ("**.hidden_dim",)),
        Field("max_position_embeddings", ("decoder.embedding.max_length",), default=2048),
        activation("activation_function", "relu"),
        Derived("word_embed_proj_dim", lambda cfg: cfg.dim),
        MustBe("do_layer_norm_before", (True,)),
        MustBe("enable_bias", (True,)),
        MustBe("layer_norm_elementwise_affine", (True,)),
        MustBe("_remove_final_layer_norm", (False,)),
        MustBe("tie_word_embeddings", (True,)),
        NoPadding(),
    ),
    weights=lambda cfg: _WEIGHTS,
    irrelevant=frozenset({"activation_dropout", "dropout", "init_std", "layerdrop"}),
    copies=immutabledict({"lm_head.weight": "model.decoder.embed_tokens.weight"}),
    renamed=((r"^decoder\.", "model.decoder."),),
)
