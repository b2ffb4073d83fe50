"""Ministral 3: a Mistral whose positions are stretched, and whose queries grow in long rows."""

from typing import Any

import attrs

from axcore.config import replace_config, update_config
from axcore.errors import ConfigError
from axcore.interop import (
    LLAMA_WEIGHTS,
    SIZES,
    ConfigEntry,
    Family,
    Field,
    Fields,
    MustBe,
    RopeFields,
    activation,
    common_value,
    window,
    without,
)
from axcore.layers import RoPE
from axcore.models import TOY, CausalLM, Sizes, TiedHead, UntiedHead, of_size, transformer
from axl_attention.models.shared_maps import NoPadding, tied_by
from axl_attention.positions import LongRowQueries
from axl_attention.rope_scaling import YaRN, yarn_attention_factor

_PUBLISHED = {
    "vocab_size": 131_072,
    "num_heads": 32,
    "num_kv_heads": 8,
    "head_dim": 128,
    "original_length": 16_384,
}

_MINISTRAL3_SIZES: Sizes = {
    "3b": {"dim": 3072, "num_layers": 26, "hidden_dim": 9216, **_PUBLISHED},
    "8b": {"dim": 4096, "num_layers": 34, "hidden_dim": 14_336, **_PUBLISHED},
    "14b": {"dim": 5120, "num_layers": 40, "hidden_dim": 16_384, **_PUBLISHED},
    "toy": {**TOY, "head_dim": 32, "original_length": 8},
}


def ministral3(size: str) -> CausalLM.Config:
    """Return the config of the text part of a Ministral 3: `3b`, `8b`, `14b` or `toy`.

    Source: Mistral AI 2025, "Ministral 3"; sizes as in the configs published with the weights.
    """
    sizes = dict(of_size("ministral3", _MINISTRAL3_SIZES, size))
    head_dim, length = sizes.pop("head_dim"), sizes.pop("original_length")
    theta = 1_000_000_000.0 if size == "14b" else 1_000_000.0
    yarn = YaRN.Config(theta=theta, factor=16.0, original_length=length, attention_factor=1.0)
    cfg = replace_config(
        transformer(**sizes), RoPE, lambda _: LongRowQueries.Config(interval=length, inner=yarn)
    )
    cfg = update_config(cfg, {"**.norm.epsilon": 1e-5, "**.attention.head_dim": head_dim})
    return replace_config(cfg, UntiedHead, TiedHead.Config()) if size == "3b" else cfg


_POSITION = "**.attention.position"
_ROPE = RopeFields(f"{_POSITION}.inner", 1_000_000.0)
_STRENGTH, _LENGTH = "llama_4_scaling_beta", "original_max_position_embeddings"


class _Positions(ConfigEntry):
    """YaRN and the growth of queries, both in `rope_parameters`."""

    def read(self, cfg: Any, fields: Fields) -> Any:
        """Return a config with both.

        Raises:
            ConfigError: There is no YaRN, or nothing on the queries.
        """
        forms = [fields.take(name, None) or {} for name in ("rope_scaling", "rope_parameters")]
        values = {"rope_theta": fields.take("rope_theta", 1_000_000.0), **forms[0], **forms[1]}
        if values.get("rope_type", values.get("type")) != "yarn" or _STRENGTH not in values:
            raise ConfigError(
                f"config.json has rope_parameters={values}; Ministral 3 has yarn and {_STRENGTH}",
                where="rope_parameters",
                hint="compare it with the file that was published",
            )
        strength = float(values.pop(_STRENGTH))
        values.pop("max_position_embeddings", None)  # once more
        values.setdefault("attention_factor", _attention_factor(values))
        known = {name: one for name, one in values.items() if not name.startswith("mscale")}
        cfg = _ROPE.read(cfg, Fields({"rope_parameters": known}))
        return update_config(
            cfg, {f"{_POSITION}.strength": strength, f"{_POSITION}.interval": values[_LENGTH]}
        )

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the fields.

        Raises:
            ConfigError: There is no YaRN, or nothing on the queries.
        """
        tuned = common_value(cfg, _POSITION)
        if not (isinstance(tuned, LongRowQueries.Config) and isinstance(tuned.inner, YaRN.Config)):
            raise ConfigError(f"{_POSITION} is a {type(tuned).__qualname__}", where=_POSITION)
        values = _ROPE.write(cfg)
        scaling = {
            "attention_factor": yarn_attention_factor(tuned.inner.factor),
            **values["rope_scaling"],
            _STRENGTH: tuned.strength,
        }
        return {**values, "rope_scaling": scaling}


def _attention_factor(values: dict[str, Any]) -> float:
    """Return what queries and keys are multiplied by, as DeepSeek's weights say."""
    weights = [values.get(name) for name in ("mscale", "mscale_all_dim")]
    if not all(weights):
        return yarn_attention_factor(values["factor"])
    own, all_dims = (yarn_attention_factor(values["factor"], weight=float(w or 0)) for w in weights)
    return own / all_dims


MINISTRAL3 = Family(
    architecture="Ministral3ForCausalLM",
    template=lambda: ministral3("toy"),
    config=(
        *without(SIZES, "rms_norm_eps"),
        Field("rms_norm_eps", ("**.norm.epsilon",), default=1e-5, to_axcore=float),
        Field("head_dim", ("**.attention.head_dim",), default=128),
        activation("hidden_act", "silu"),
        tied_by(),
        _Positions(),
        window("sliding_window", None),
        NoPadding(),
    ),
    weights=lambda cfg: LLAMA_WEIGHTS,
)
MISTRAL3 = attrs.evolve(
    MINISTRAL3,
    config=(*MINISTRAL3.config, MustBe("model_type", ("ministral3",), is_written=False)),
    nested="text_config",
    written_as="ministral3",
    irrelevant=frozenset(
        {
            "image_token_index",
            "multimodal_projector_bias",
            "projector_hidden_act",
            "spatial_merge_size",
            "vision_config",
            "vision_feature_layer",
        }
    ),
    renamed=(
        (r"^(model\.)?language_model\.(model\.)?(?!lm_head)", "model."),
        (r"^language_model\.lm_head\.", "lm_head."),
    ),
    skipped=(*MINISTRAL3.skipped, r"(^|\.)(vision_tower|multi_modal_projector)\."),
)
"""Ministral 3 as published, of which the text part is read; exports have that part alone."""
