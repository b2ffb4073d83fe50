"""Mamba: selective state spaces instead of attention, and no feed-forwards."""

from typing import Any

from immutabledict import immutabledict

from axcore.config import replace_config, update_config
from axcore.interop import (
    Chain,
    ConfigEntry,
    Derived,
    Family,
    Field,
    Fields,
    MustBe,
    Rule,
    SplitAxis,
    WeightMap,
    below,
    common_value,
    linear,
    same,
)
from axcore.layers import TransformerLayer
from axcore.models import TOY, CausalLM, Sizes, TiedHead, UntiedHead, of_size, transformer
from axl_attention.layers import MixerLayer
from axl_attention.mamba import Mamba
from axl_attention.models.shared_maps import NoPadding, by_head, fused_rows, tied_by

_MAMBA_SIZES: Sizes = {
    "130m": {"vocab_size": 50_280, "dim": 768, "num_layers": 24},
    "370m": {"vocab_size": 50_280, "dim": 1024, "num_layers": 48},
    "790m": {"vocab_size": 50_280, "dim": 1536, "num_layers": 48},
    "1.4b": {"vocab_size": 50_280, "dim": 2048, "num_layers": 48},
    "2.8b": {"vocab_size": 50_280, "dim": 2560, "num_layers": 64},
    "toy": {name: TOY[name] for name in ("vocab_size", "dim", "num_layers")},
}


def mamba(size: str) -> CausalLM.Config:
    """Return the config of a Mamba: `130m`, `370m`, `790m`, `1.4b`, `2.8b` or `toy`.

    Source: Gu and Dao 2023, arXiv:2312.00752, table 12.
    """
    sizes = of_size("mamba", _MAMBA_SIZES, size)
    dim, chunk = sizes["dim"], 8 if size == "toy" else 64
    mixer = Mamba.Config(inner_dim=2 * dim, step_rank=_rank(dim), chunk=chunk)
    cfg = replace_config(
        transformer(**sizes, num_heads=1, hidden_dim=1),
        TransformerLayer,
        lambda _: MixerLayer.Config(mixer=mixer),
    )
    cfg = replace_config(cfg, UntiedHead, TiedHead.Config())
    return update_config(cfg, {"**.norm.epsilon": 1e-5})


def _rank(dim: int) -> int:
    return -(-dim // 16)


class _Channels(ConfigEntry):
    """`expand` and `time_step_rank`; how many tokens are computed at once changes no number."""

    def read(self, cfg: Any, fields: Fields) -> Any:
        """Return a config with so many channels."""
        rank = fields.take("time_step_rank", "auto")
        changes = {
            "**.mixer.inner_dim": int(fields.take("expand", 2) * cfg.dim),
            "**.mixer.step_rank": _rank(cfg.dim) if rank == "auto" else rank,
        }
        return self.normal(update_config(cfg, changes))

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the fields."""
        inner, rank = (common_value(cfg, f"**.mixer.{n}") for n in ("inner_dim", "step_rank"))
        expand = inner / cfg.dim if inner % cfg.dim else inner // cfg.dim
        return {"expand": expand, "time_step_rank": rank}

    def normal(self, cfg: Any) -> Any:
        """Return a config with chunks of the usual size."""
        return update_config(cfg, {"**.mixer.chunk": 64})


def _weights(cfg: Any) -> WeightMap:
    mixer = common_value(cfg, "**.mixer")
    inner, state = mixer.inner_dim, mixer.state_dim
    rules = (
        *fused_rows(("x", "z"), "in_proj", by_head(1, inner, inner)),
        Rule(("conv.weight",), ("conv1d.weight",), Chain(SplitAxis(1, axis=1))),
        same("conv.bias", "conv1d.bias"),
        *fused_rows(("step", "b", "c"), "x_proj", by_head(1, mixer.step_rank, state, state)),
        *linear("dt", "dt_proj"),
        same("dt_bias", "dt_proj.bias"),
        same("a_log", "A_log"),
        same("d", "D"),
        *linear("out", "out_proj"),
    )
    layer = (same("residual.norm.weight", "norm.weight"), *below("mixer", "mixer", rules))
    return (
        same("decoder.embedding.weight", "backbone.embeddings.weight"),
        *below("decoder.stack.layer.{layer}", "backbone.layers.{layer}", layer),
        same("decoder.norm.weight", "backbone.norm_f.weight"),
        same("head.weight", "lm_head.weight"),
    )


MAMBA = Family(
    architecture="MambaForCausalLM",
    template=lambda: mamba("toy"),
    config=(
        Field("vocab_size", ("vocab_size",)),
        Field("hidden_size", ("dim",)),
        Field("num_hidden_layers", ("decoder.stack.num_layers",)),
        Field("state_size", ("**.mixer.state_dim",), default=16),
        Field("conv_kernel", ("**.conv.width",), default=4),
        Field("layer_norm_epsilon", ("**.norm.epsilon",), default=1e-5, to_axcore=float),
        Field("use_bias", ("**.linear.has_bias", "**.out_linear.has_bias"), default=False),
        Field("use_conv_bias", ("**.conv.has_bias",), default=True),
        _Channels(),
        Derived("intermediate_size", lambda cfg: common_value(cfg, "**.mixer.inner_dim")),
        MustBe("hidden_act", ("silu",)),
        tied_by(default=True),
        NoPadding(),
    ),
    weights=_weights,
    irrelevant=frozenset(
        {
            "rescale_prenorm_residual",
            "residual_in_fp32",
            "time_step_floor",
            "time_step_init_scheme",
            "time_step_max",
            "time_step_min",
            "time_step_scale",
            "use_associative_scan",
            "use_mambapy",
        }
    ),
    # Of the program that trained the published weights; others repeat fields above.
    unread=frozenset(
        {"d_inner", "d_model", "fused_add_norm", "n_layer", "pad_vocab_size_multiple", "rms_norm"}
    ),
    copies=immutabledict({"lm_head.weight": "backbone.embeddings.weight"}),
)
