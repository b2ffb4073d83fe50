"""Falcon-H1: attention and a state space side by side in each layer, and many constants."""

from typing import Any

from axcore.config import evolve, find_config, replace_config, update_config
from axcore.errors import ConfigError
from axcore.interop import (
    ATTENTION,
    ATTENTION_BIAS,
    FEED_FORWARD,
    HEAD_DIM,
    SIZES,
    Choice,
    Derived,
    Family,
    Field,
    Fields,
    MustBe,
    RopeFields,
    WeightMap,
    activation,
    below,
    common_value,
    same,
)
from axcore.layers import Attention, FeedForward
from axcore.models import TOY, CausalLM, Sizes, of_size, transformer
from axl_attention.models.mamba2 import UNLIMITED, mixer_weights
from axl_attention.models.shared_maps import MLP_BIAS, NoPadding, tied_by
from axl_attention.multipliers import (
    NoNorm,
    ParallelMixers,
    ScaledFeedForward,
    ScaledKeys,
    ScaledMamba2,
)
from axl_attention.norms import DividedLogits, GroupedRMSNorm

_ROOT = 2**-0.5
_HALF_BILLION = {
    "embedding": 4 * 2**0.5,
    "divisor": 25.6,
    "keys": 0.390625,
    "feed_forward": (1.25 * _ROOT, 0.5859375),
    "projections": (0.5 * _ROOT, 0.25, 0.5 * _ROOT, 0.5, 0.5 * _ROOT),
    "around": {"attention_out": 0.9375, "memory_in": 1.25, "memory_out": _ROOT / 3},
}

_FALCON_H1_SIZES: Sizes = {
    "0.5b": {
        "vocab_size": 32_784,
        "dim": 1024,
        "num_layers": 36,
        "num_heads": 8,
        "num_kv_heads": 2,
        "hidden_dim": 2048,
        "head_dim": 64,
        "mamba": {"num_heads": 24, "chunk": 128},
        "factors": _HALF_BILLION,
    },
    "toy": {
        **TOY,
        "head_dim": 32,
        "mamba": {"num_heads": 6, "head_dim": 16, "num_groups": 2, "state_dim": 8, "chunk": 8},
        "factors": {**_HALF_BILLION, "divisor": 2.0, "projections": (0.5, 0.75, 1.5, 1.25, 2.0)},
    },
}


def falcon_h1(size: str) -> CausalLM.Config:
    """Return the config of a Falcon-H1: `0.5b` or `toy`.

    Source: Falcon LLM Team 2025, arXiv:2507.22448, sections 2 and 3; constants as in the config
    published with the weights.
    """
    sizes = dict(of_size("falcon_h1", _FALCON_H1_SIZES, size))
    head_dim, mamba, factors = (sizes.pop(name) for name in ("head_dim", "mamba", "factors"))
    memory = ScaledMamba2.Config(norm=NoNorm.Config(), factors=factors["projections"], **mamba)

    def side_by_side(old: Any) -> Any:
        keys = ScaledKeys.Config(factor=factors["keys"], inner=old.position)
        attention = evolve(old, head_dim=head_dim, position=keys)
        return ParallelMixers.Config(attention=attention, memory=memory, **factors["around"])

    def feed_forward(old: Any) -> Any:
        return ScaledFeedForward.Config(
            hidden_dim=old.hidden_dim, linear=old.linear, factors=factors["feed_forward"]
        )

    cfg = replace_config(transformer(**sizes), FeedForward, feed_forward)
    cfg = replace_config(cfg, Attention, side_by_side)
    return update_config(
        cfg,
        {
            "head": DividedLogits.Config(divisor=factors["divisor"]),
            "decoder.embedding.scale": factors["embedding"],
            "**.norm.epsilon": 1e-5,
            "**.position.inner.theta": 100_000_000_000.0,
        },
    )


def _weights(cfg: Any) -> WeightMap:
    layer = (
        same("attention_residual.norm.weight", "input_layernorm.weight"),
        same("feed_forward_residual.norm.weight", "pre_ff_layernorm.weight"),
        *below("attention.attention", "self_attn", ATTENTION),
        *below("attention.memory", "mamba", mixer_weights(find_config(cfg, ScaledMamba2)[0].node)),
        *below("feed_forward", "feed_forward", FEED_FORWARD),
    )
    return (
        same("decoder.embedding.weight", "model.embed_tokens.weight"),
        *below("decoder.stack.layer.{layer}", "model.layers.{layer}", layer),
        same("decoder.norm.weight", "model.final_layernorm.weight"),
        same("head.inner.weight", "lm_head.weight"),
    )


class _NormBehindGate(MustBe):
    """Channels are normalised behind the gate; a file that has the norm and not this field is not
    read, since it means the other order."""

    def read(self, cfg: Any, fields: Fields) -> Any:
        """Return the config.

        Raises:
            ConfigError: They are normalised before the gate.
        """
        if self.name not in fields.values and find_config(cfg, GroupedRMSNorm):
            raise ConfigError(
                f"{self.name} is missing, which means True; the model here has False",
                where=self.name,
                hint=f'write "{self.name}": false into config.json if the model has that',
            )
        return super().read(cfg, fields)


def _constant(name: str, path: str) -> Field:
    return Field(name, (path,), default=1.0, to_axcore=float)


def _constants(name: str, path: str, count: int) -> Field:
    return Field(
        name,
        (path,),
        default=None,
        to_axcore=lambda given: tuple(map(float, given or [1.0] * count)),
        to_hf=list,
    )


def _inner(cfg: Any) -> int:
    heads, size = (common_value(cfg, f"**.memory.{name}") for name in ("num_heads", "head_dim"))
    return int(heads * size)


FALCON_H1 = Family(
    architecture="FalconH1ForCausalLM",
    template=lambda: falcon_h1("toy"),
    config=(
        *SIZES,
        HEAD_DIM,
        activation("hidden_act", "silu"),
        RopeFields("**.position.inner"),
        ATTENTION_BIAS,
        MLP_BIAS,
        tied_by("head.inner"),
        NoPadding(),
        Choice(
            "mamba_rms_norm",
            "**.memory.norm",
            {False: NoNorm.Config(), True: GroupedRMSNorm.Config()},
            False,
        ),
        Field("mamba_n_heads", ("**.memory.num_heads",)),
        Field("mamba_d_head", ("**.memory.head_dim",)),
        Derived("mamba_d_ssm", _inner),
        Field("mamba_n_groups", ("**.memory.num_groups",), default=1),
        Field("mamba_d_state", ("**.memory.state_dim",), default=256),
        Field("mamba_d_conv", ("**.memory.conv.width",), default=4),
        Field("mamba_chunk_size", ("**.memory.chunk",), default=256),
        Field("mamba_conv_bias", ("**.memory.conv.has_bias",), default=True),
        Field("mamba_proj_bias", ("**.memory.linear.has_bias",), default=False),
        Field("projectors_bias", ("**.memory.out_linear.has_bias",), default=False),
        _NormBehindGate("mamba_norm_before_gate", (False,)),
        MustBe("time_step_limit", UNLIMITED, is_written=False),
        _constant("embedding_multiplier", "decoder.embedding.scale"),
        _constant("key_multiplier", "**.position.factor"),
        _constant("attention_in_multiplier", "**.attention_in"),
        _constant("attention_out_multiplier", "**.attention_out"),
        _constant("ssm_in_multiplier", "**.memory_in"),
        _constant("ssm_out_multiplier", "**.memory_out"),
        _constants("ssm_multipliers", "**.memory.factors", 5),
        _constants("mlp_multipliers", "**.feed_forward.factors", 2),
        Field(
            "lm_head_multiplier",
            ("head.divisor",),
            default=1.0,
            to_axcore=lambda factor: 1.0 / factor,
            # Without it, some numbers would differ from what was read in their last bit.
            to_hf=lambda divisor: float(f"{1.0 / divisor:.12g}"),
        ),
    ),
    weights=_weights,
    irrelevant=frozenset(
        {"mamba_expand", "mamba_use_mlp", "mlp_expansion_factor", "num_logits_to_keep"}
    ),
)
