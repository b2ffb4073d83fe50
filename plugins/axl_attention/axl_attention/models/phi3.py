"""Phi-3 and Phi-4: Llamas of Microsoft's sizes; small ones have a window, Phi-4-mini long rows."""

from typing import Any

from axcore.config import replace_config, update_config
from axcore.errors import ConfigError
from axcore.interop import (
    PRE_NORMS,
    SIZES,
    ConfigEntry,
    Family,
    Field,
    Fields,
    MustBe,
    WeightMap,
    activation,
    common_value,
    linear,
    model_weights,
    window,
    without,
)
from axcore.layers import RoPE
from axcore.models import TOY, CausalLM, Sizes, TiedHead, UntiedHead, of_size, transformer
from axl_attention.models.shared_maps import NoPadding, PartialRopeFields, fused, tied_by
from axl_attention.positions import PartialRotary
from axl_attention.rope_scaling import LongRoPE, longrope_attention_factor

_LARGE = {"dim": 5120, "num_layers": 40, "num_heads": 40, "num_kv_heads": 10, "hidden_dim": 17_920}

_PHI3_SIZES: Sizes = {
    "3-mini": {
        "vocab_size": 32_064,
        "dim": 3072,
        "num_layers": 32,
        "num_heads": 32,
        "hidden_dim": 8192,
    },
    "3-medium": {"vocab_size": 32_064, **_LARGE},
    "4": {"vocab_size": 100_352, **_LARGE},
    "4-mini": {
        "vocab_size": 200_064,
        "dim": 3072,
        "num_layers": 32,
        "num_heads": 24,
        "num_kv_heads": 8,
        "hidden_dim": 8192,
    },
    "toy": TOY,
}

_WINDOWS = {"3-mini": 2047, "3-medium": 2047, "4-mini": 262_144, "toy": 4}
"""Tokens that a query sees, its own included."""

# fmt: off
_LONG_FACTORS = (
    1.0, 1.118320672, 1.250641126, 1.398617824, 1.564103225, 1.74916897, 1.956131817, 2.187582649,
    2.446418898, 2.735880826, 3.059592084, 3.421605075, 3.826451687, 4.279200023, 4.785517845,
    5.351743533, 5.984965424, 6.693110555, 7.485043894, 8.370679318, 9.36110372, 10.4687158,
    11.70738129, 13.09260651, 14.64173252, 16.37415215, 18.31155283, 20.47818807, 22.90118105,
    25.61086418, 28.64115884, 32.03, 32.1, 32.13, 32.23, 32.6, 32.61, 32.64, 32.66, 32.7, 32.71,
    32.93, 32.97, 33.28, 33.49, 33.5, 44.16, 47.77,
)
# fmt: on
"""Of Phi-4-mini, for the pairs of three quarters of a head."""


def phi3(size: str) -> CausalLM.Config:
    """Return a Phi-3 for 4096 tokens, or a Phi-4: `3-mini`, `3-medium`, `4`, `4-mini` or `toy`.

    Source: Abdin et al. 2024, arXiv:2404.14219, section 2, and arXiv:2412.08905, section 3;
    Microsoft 2025, arXiv:2503.01743, section 2; windows and factors as in the configs published
    with the weights.
    """
    window = _WINDOWS.get(size)
    cfg = update_config(
        transformer(**of_size("phi3", _PHI3_SIZES, size)),
        {
            "**.norm.epsilon": 1e-5,
            "**.position.theta": 250_000.0 if size == "4" else 10_000.0,
            "**.core.window": window and (window - 1, 0),
        },
    )
    return _for_long_rows(cfg) if size == "4-mini" else cfg


def _for_long_rows(cfg: Any) -> Any:
    """Return Phi-4-mini's tied head, and its positions of three quarters of a head."""
    pairs = len(_LONG_FACTORS)
    position = LongRoPE.Config(
        theta=10_000.0,
        short_factors=(1.0,) * pairs,
        long_factors=_LONG_FACTORS,
        attention_factor=longrope_attention_factor(131_072 / 4096, 4096),
    )
    cfg = replace_config(cfg, RoPE, PartialRotary.Config(fraction=0.75, inner=position))
    return replace_config(cfg, UntiedHead, TiedHead.Config())


def _weights(cfg: Any) -> WeightMap:
    num_heads = common_value(cfg, "**.attention.num_heads")
    kv_heads = common_value(cfg, "**.attention.num_kv_heads") or num_heads
    kv, hidden = cfg.dim // num_heads * kv_heads, common_value(cfg, "**.hidden_dim")
    qkv = tuple(f"attention.{part}" for part in "qkv")
    return model_weights(
        *PRE_NORMS,
        fused(qkv, "self_attn.qkv_proj", (cfg.dim, kv, kv)),
        *linear("attention.out", "self_attn.o_proj"),
        fused(("feed_forward.gate", "feed_forward.up"), "mlp.gate_up_proj", (hidden, hidden)),
        *linear("feed_forward.down", "mlp.down_proj"),
    )


_LENGTH = "original_max_position_embeddings"
_LONG = ("longrope", "su", "yarn")
"""What files call LongRoPE; early ones have other names."""


class _Positions(ConfigEntry):
    """Rotary positions; those for long rows leave out what follows from the lengths of rows."""

    def read(self, cfg: Any, fields: Fields) -> Any:
        """Return a config with these positions.

        Raises:
            ConfigError: The family has no such positions, or two lengths contradict each other.
        """
        forms = (fields.take(name, None) or {} for name in ("rope_scaling", "rope_parameters"))
        values = {name: value for form in forms for name, value in form.items()}
        length = fields.take(_LENGTH, 4096)
        kind = values.pop("rope_type", None) or values.get("type", "default")
        values.pop("type", None)
        if kind != "default":
            values = {**_complete(kind, values, fields, length), "rope_type": "longrope"}
        inner = Fields({**fields.values, "rope_scaling": None, "rope_parameters": values})
        cfg = PartialRopeFields().read(cfg, inner)
        fields.read |= inner.read
        return cfg

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the fields.

        Raises:
            ConfigError: Positions are scaled in a way that the family does not know.
        """
        values = PartialRopeFields().write(cfg)
        scaling = values["rope_scaling"]
        if scaling is None:
            return values
        if scaling["rope_type"] != "longrope":
            raise ConfigError(f"positions are of type {scaling['rope_type']}, and not of longrope")
        return {**values, _LENGTH: scaling[_LENGTH]}


def _complete(kind: str, values: dict[str, Any], fields: Fields, length: int) -> dict[str, Any]:
    """Return the fields of LongRoPE with the length, and the attention factor that follows."""
    if kind not in _LONG:
        raise ConfigError(
            f"config.json has rotary positions of type {kind!r}; axcore knows longrope for Phi",
            where="rope_scaling",
        )
    if values.get(_LENGTH, length) != length:
        raise ConfigError(
            f"{_LENGTH} is {length}, and {values[_LENGTH]} in rope_scaling",
            where=_LENGTH,
        )
    longest = fields.take("max_position_embeddings", 4096)
    factor = values.pop("factor", None) or longest / length
    given = values.get("attention_factor")
    used = longrope_attention_factor(factor, length) if given is None else given
    return {**values, _LENGTH: length, "attention_factor": used}


PHI3 = Family(
    architecture="Phi3ForCausalLM",
    template=lambda: phi3("toy"),
    config=(
        *without(SIZES, "rms_norm_eps"),
        Field("rms_norm_eps", ("**.norm.epsilon",), default=1e-5, to_axcore=float),
        activation("hidden_act", "silu"),
        _Positions(),
        tied_by(),
        NoPadding(),
        window("sliding_window", None),
        *(
            MustBe(name, (False,), is_written=False)
            for name in ("attention_bias", "lm_head_bias", "mlp_bias")
        ),
    ),
    weights=_weights,
    irrelevant=frozenset(
        {
            "embd_pdrop",
            "full_attn_mod",
            "interpolate_factor",
            "resid_pdrop",
        }
    ),
)
