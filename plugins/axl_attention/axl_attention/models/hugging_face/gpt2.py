"""GPT-2: queries, keys and values in one matrix, inputs first."""

from typing import Any

from immutabledict import immutabledict

from axcore.config import update_config
from axcore.interop import (
    Concatenate,
    ConfigEntry,
    Family,
    Field,
    Fields,
    Only,
    Rule,
    WeightMap,
    activation,
    below,
    common_value,
    same,
)
from axl_attention.models.gpt2 import gpt2


class _InnerSize(ConfigEntry):
    """`n_inner`, which is four times the width where it is null or absent."""

    def read(self, cfg: Any, fields: Fields) -> Any:
        """Return a config with the size."""
        size = fields.take("n_inner", None) or 4 * cfg.dim
        return update_config(cfg, {"**.hidden_dim": size})

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the field."""
        return {"n_inner": common_value(cfg, "**.hidden_dim")}


def _both(ours: str, theirs: str) -> WeightMap:
    """Return the rules of a weight and a bias that are the same on both sides."""
    return tuple(same(f"{ours}.{name}", f"{theirs}.{name}") for name in ("weight", "bias"))


def _weights(cfg: Any) -> WeightMap:
    fused = Concatenate((cfg.dim,) * 3, axis=-1)
    layer = (
        *_both("attention_residual.norm", "ln_1"),
        *(
            Rule(
                tuple(f"attention.{part}.{name}" for part in "qkv"),
                (f"attn.c_attn.{name}",),
                fused,
            )
            for name in ("weight", "bias")
        ),
        *_both("attention.out", "attn.c_proj"),
        *_both("feed_forward_residual.norm", "ln_2"),
        *_both("feed_forward.up", "mlp.c_fc"),
        *_both("feed_forward.down", "mlp.c_proj"),
    )
    return (
        same("decoder.embedding.embedding.weight", "transformer.wte.weight"),
        same("decoder.embedding.positions", "transformer.wpe.weight"),
        *below("decoder.stack.layer.{layer}", "transformer.h.{layer}", layer),
        *_both("decoder.norm", "transformer.ln_f"),
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
        Field("layer_norm_epsilon", ("**.norm.epsilon",), default=1e-5, to_ours=float),
        _InnerSize(),
        activation("activation_function", "gelu_new"),
        Only("tie_word_embeddings", (True,)),
        Only("scale_attn_weights", (True,)),
        Only("scale_attn_by_inverse_layer_idx", (False,)),
        Only("add_cross_attention", (False,)),
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
