"""GLM-4.5, 4.6 and 4.7: DeepSeek-V3's experts, and attention that may normalise."""

from typing import Any

from axcore.config import replace_config
from axcore.interop import (
    ATTENTION,
    PRE_NORMS,
    SIZES,
    ConfigEntry,
    Family,
    Field,
    Fields,
    Only,
    activation,
    below,
    common_value,
    model_weights,
    same,
    without,
)
from axl_attention.models.glm45 import glm45
from axl_attention.models.hugging_face.entries import NoPadding, tied_by
from axl_attention.models.hugging_face.first_dense import (
    EXPERT_WEIGHTS,
    EXPERTS,
    FIRST_DENSE,
    Groups,
)
from axl_attention.models.hugging_face.partial_rope import PartialRopeFields
from axl_attention.query_key_norm import QueryKeyNorm

_PATH = "**.attention.position"
_ROTARY = PartialRopeFields(default=0.5, path=f"{_PATH}.inner")


class _Positions(ConfigEntry):
    """Positions of a part of each head, behind norms where there is `use_qk_norm`."""

    def read(self, cfg: Any, fields: Fields) -> Any:
        """Return a config with these positions."""
        cfg = _ROTARY.read(_with_position(cfg, lambda _: QueryKeyNorm.Config()), fields)
        has_norm = fields.take("use_qk_norm", False)
        return cfg if has_norm else _with_position(cfg, lambda old: old.inner)

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the fields."""
        has_norm = isinstance(common_value(cfg, _PATH), QueryKeyNorm.Config)
        if not has_norm:
            cfg = _with_position(cfg, lambda old: QueryKeyNorm.Config(inner=old))
        return {**_ROTARY.write(cfg), "use_qk_norm": has_norm}


def _with_position(cfg: Any, new: Any) -> Any:
    return replace_config(cfg, lambda _: True, new, at=_PATH)


_WEIGHTS = model_weights(
    *PRE_NORMS,
    *below("attention", "self_attn", ATTENTION),
    same("attention.position.query_norm.weight", "self_attn.q_norm.weight"),
    same("attention.position.key_norm.weight", "self_attn.k_norm.weight"),
    *EXPERT_WEIGHTS,
)

GLM4_MOE = Family(
    architecture="Glm4MoeForCausalLM",
    template=lambda: glm45("toy"),
    layers=FIRST_DENSE,
    config=(
        *without(SIZES, "num_hidden_layers", "intermediate_size", "rms_norm_eps"),
        _Positions(),
        Field("rms_norm_eps", ("**.norm.epsilon",), default=1e-5, to_ours=float),
        Field("head_dim", ("**.attention.head_dim",)),
        Field("attention_bias", ("**.attention.linear.has_bias",), default=False),
        activation("hidden_act", "silu"),
        *EXPERTS,
        Groups("noaux_tc", "noaux_tc", rated_by=2),
        Field("norm_topk_prob", ("**.router.is_normalized",), default=True),
        Only("scoring_func", ("sigmoid",), is_written=False),
        tied_by(),
        NoPadding(),
    ),
    weights=lambda cfg: _WEIGHTS,
    irrelevant=frozenset({"num_mtp_layers", "num_nextn_predict_layers"}),
    mtp_counts=("num_nextn_predict_layers", "num_mtp_layers"),
)
