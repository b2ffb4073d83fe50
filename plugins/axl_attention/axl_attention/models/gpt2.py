"""GPT-2: learned positions, layer norms and biases everywhere, and a tied head."""

from typing import Any

from immutabledict import immutabledict

from axcore.config import replace_config, update_config
from axcore.interop import (
    Concatenate,
    Family,
    Field,
    MustBe,
    Rule,
    WeightMap,
    activation,
    below,
    both,
    same,
)
from axcore.layers import (
    Embedding,
    FeedForward,
    LayerNorm,
    LearnedPosition,
    NoPosition,
    PlainFeedForward,
    RMSNorm,
    RoPE,
)
from axcore.models import TOY, CausalLM, Sizes, TiedHead, UntiedHead, of_size, transformer
from axl_attention.models.shared_maps import InnerSize

_VOCABULARY = {"vocab_size": 50_257}

_GPT2_SIZES: Sizes = {
    "small": {"dim": 768, "num_layers": 12, "num_heads": 12, "hidden_dim": 3072, **_VOCABULARY},
    "medium": {"dim": 1024, "num_layers": 24, "num_heads": 16, "hidden_dim": 4096, **_VOCABULARY},
    "large": {"dim": 1280, "num_layers": 36, "num_heads": 20, "hidden_dim": 5120, **_VOCABULARY},
    "xl": {"dim": 1600, "num_layers": 48, "num_heads": 25, "hidden_dim": 6400, **_VOCABULARY},
    "toy": {**TOY, "num_kv_heads": None},
}


def gpt2(size: str) -> CausalLM.Config:
    """Return the config of a GPT-2: `small`, `medium`, `large`, `xl` or `toy`.

    Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.3;
    sizes as in the configs published with the weights.
    """
    cfg = transformer(**of_size("gpt2", _GPT2_SIZES, size))
    for part, new in (
        (RMSNorm, LayerNorm.Config()),
        (FeedForward, PlainFeedForward.Config(activation="gelu_tanh")),
        (RoPE, NoPosition.Config()),
        (Embedding, lambda old: LearnedPosition.Config(max_length=1024, embedding=old)),
        (UntiedHead, TiedHead.Config()),
    ):
        cfg = replace_config(cfg, part, new)
    return update_config(cfg, {"**.linear.has_bias": True, "**.out_linear.has_bias": True})


def _weights(cfg: Any) -> WeightMap:
    fused = Concatenate((cfg.dim,) * 3, axis=-1)
    layer = (
        *both("attention_residual.norm", "ln_1"),
        *(
            Rule(
                tuple(f"attention.{part}.{name}" for part in "qkv"),
                (f"attn.c_attn.{name}",),
                fused,
            )
            for name in ("weight", "bias")
        ),
        *both("attention.out", "attn.c_proj"),
        *both("feed_forward_residual.norm", "ln_2"),
        *both("feed_forward.up", "mlp.c_fc"),
        *both("feed_forward.down", "mlp.c_proj"),
    )
    return (
        same("decoder.embedding.embedding.weight", "transformer.wte.weight"),
        same("decoder.embedding.positions", "transformer.wpe.weight"),
        *below("decoder.stack.layer.{layer}", "transformer.h.{layer}", layer),
        *both("decoder.norm", "transformer.ln_f"),
    )


GPT2 = Family(
    architecture="GPT2LMHeadModel",
    template=lambda: gpt2("toy"),
    config=(
        Field("vocab_size", ("vocab_size",)),
        Field("n_embd", ("dim",)),
        Field("n_layer", ("decoder.stack.num_layers",)),
        Field("n_head", ("**.attention.num_heads",)),
        Field("n_positions", ("decoder.embedding.max_length",)),
        Field("layer_norm_epsilon", ("**.norm.epsilon",), default=1e-5, to_axcore=float),
        InnerSize("n_inner"),
        activation("activation_function", "gelu_new"),
        MustBe("tie_word_embeddings", (True,)),
        MustBe("scale_attn_weights", (True,)),
        MustBe("scale_attn_by_inverse_layer_idx", (False,)),
        MustBe("add_cross_attention", (False,)),
    ),
    weights=_weights,
    irrelevant=frozenset(
        {
            "attn_pdrop",
            "embd_pdrop",
            "n_ctx",
            "reorder_and_upcast_attn",
            "resid_pdrop",
            "summary_activation",
            "summary_first_dropout",
            "summary_proj_to_labels",
            "summary_type",
            "summary_use_proj",
            "task_specific_params",
        }
    ),
    skipped=(r"\.attn\.(masked_)?bias$",),
    copies=immutabledict({"lm_head.weight": "transformer.wte.weight"}),
    prefix="transformer.",
    length="n_positions",
)
