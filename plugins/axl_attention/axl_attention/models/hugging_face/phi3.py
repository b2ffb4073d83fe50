"""Phi-3, Phi-3.5 and Phi-4: queries, keys and values in one matrix, gates and inputs in another."""

from typing import Any

from axcore.errors import ConfigError
from axcore.interop import (
    PRE_NORMS,
    SIZES,
    ConfigEntry,
    Family,
    Field,
    Fields,
    Only,
    WeightMap,
    activation,
    common_value,
    linear,
    model_weights,
    window,
    without,
)
from axl_attention.longrope import longrope_attention_factor
from axl_attention.models.hugging_face.entries import NoPadding, fused, tied_by
from axl_attention.models.hugging_face.partial_rope import PartialRopeFields
from axl_attention.models.phi3 import phi3


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
        Field("rms_norm_eps", ("**.norm.epsilon",), default=1e-5, to_ours=float),
        activation("hidden_act", "silu"),
        _Positions(),
        tied_by(),
        NoPadding(),
        window("sliding_window", None),
        *(
            Only(name, (False,), is_written=False)
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
