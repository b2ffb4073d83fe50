"""Published configs of language models, shrunk in their sizes alone.

What is kept: every flag and constant, which layers are of which kind, and the ratios of heads to
those of keys and values, of experts to their groups, and of widths to heads.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from axcore.interop import family_named

PUBLISHED: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "interop" / "published_configs.json").read_text()
)
NOT_TEXT = {"bert", "clip", "dinov2", "dinov2_with_registers", "hubert", "llava", "modernbert"}
NOT_TEXT |= {"qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "siglip", "t5", "vit", "wav2vec2"}
NOT_TEXT |= {"wav2vec2-conformer", "whisper"}
"""Families of pictures, of sounds and of encoders."""
_NOT_OF_SHAPES = {"quantization_config", "auto_map"}

HEAD = 16
"""Numbers of a head."""
_SIZES = {
    "attention_chunk_size": 7,
    "chunk_size": 8,
    "ffn_dim": 40,
    "ffn_hidden_size": 40,
    "head_dim": HEAD,
    "index_head_dim": 12,
    "index_n_heads": 16,
    "index_topk": 5,
    "initial_context_length": 16,
    "intermediate_size": 40,
    "intermediate_size_mlp": 56,
    "kv_lora_rank": 32,
    "linear_key_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 12,
    "mamba_chunk_size": 8,
    "mamba_d_head": HEAD,
    "mamba_d_state": 16,
    "mamba_head_dim": HEAD,
    "mamba_num_heads": 8,
    "moe_intermediate_size": 24,
    "moe_shared_expert_intermediate_size": 32,
    "n_positions": 64,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "rotary_dim": 8,
    "shared_expert_intermediate_size": 48,
    "shared_intermediate_size": 48,
    "sliding_window": 5,
    "ssm_state_size": 16,
    "state_size": 16,
    "v_head_dim": 20,
}
"""What each becomes, unless it is null or zero."""
_LAYERS = ("num_hidden_layers", "n_layer")
_WIDTHS = ("hidden_size", "n_embd", "n_embed", "d_model", "word_embed_proj_dim")
_HEADS = ("num_attention_heads", "n_head")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
_TOP_K = ("num_experts_per_tok", "experts_per_token")
_OF_LAYERS = (
    *("layer_types", "no_rope_layers", "attn_type_list", "mlp_layer_types"),
    "hybrid_override_pattern",
)
_PERIODS = (
    *("sliding_window_pattern", "_sliding_window_pattern", "full_attention_interval"),
    *("no_rope_layer_interval", "interleave_moe_layer_step", "first_k_dense_replace"),
)
_DEFAULT_PERIODS = {"gemma3_text": 6, "llama4_text": 4}


def texts() -> dict[str, dict[str, Any]]:
    """Returns the published configs of language models; of larger models, their text part's."""
    found = {
        name: values for name, values in PUBLISHED.items() if values["model_type"] not in NOT_TEXT
    }
    return {name: _text_part(values) for name, values in found.items()}


def _text_part(values: dict[str, Any]) -> dict[str, Any]:
    if "text_config" not in values:
        return values
    return {**family_named(values["model_type"]).defaults, **values["text_config"]}


def shrunk(published: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a config of a small model that differs in nothing but its sizes."""
    values = {name: value for name, value in published.items() if name not in _NOT_OF_SHAPES}
    small: dict[str, Any] = {name: size for name, size in _SIZES.items() if values.get(name)}
    heads, kv_heads = _heads(values)
    width = _width(values, heads)
    layers, experts = _num_layers(values), max(8, 2 * (values.get("n_group") or 0))
    top_k = min(_first(values, _TOP_K, 0), experts // 2)
    for names, size in (
        (_LAYERS, layers),
        (_WIDTHS, width),
        (_HEADS, heads),
        (_KV_HEADS, kv_heads),
        (_EXPERTS, experts),
        (_TOP_K, top_k),
    ):
        small |= {name: size for name in names if values.get(name)}
    small |= {name: values[name][:layers] for name in _OF_LAYERS if values.get(name)}
    small |= _state_space(values, width)
    small |= _positions(values)
    small["vocab_size"] = 264
    if (values.get("pad_token_id") or 0) > small["vocab_size"]:  # torch refuses it
        small["pad_token_id"] = 3
    return values | small


def _first(values: Mapping[str, Any], names: tuple[str, ...], default: Any = None) -> Any:
    return next((values[name] for name in names if values.get(name)), default)


def _num_layers(values: Mapping[str, Any]) -> int:
    """Returns with how many layers there is each kind, and one more."""
    counts = [values.get(name) or 0 for name in _PERIODS]
    counts.append(_DEFAULT_PERIODS.get(values["model_type"], 1))
    for kinds in (values.get(name) or [0] for name in _OF_LAYERS):
        counts += [kinds.index(kind) + 1 for kind in dict.fromkeys(kinds)]
    return int(max(counts)) + 1


def _heads(values: Mapping[str, Any]) -> tuple[int, int]:
    heads = _first(values, _HEADS, 1)
    kv_heads = _first(values, _KV_HEADS, heads)
    common = math.gcd(heads, kv_heads)
    kept = min(common, 4 if heads == kv_heads else 2)
    return heads // common * kept, kv_heads // common * kept


def _width(values: Mapping[str, Any], heads: int) -> int:
    """Returns the width, as large beside the heads together as it was, in steps of eight."""
    width, size = _first(values, _WIDTHS), values.get("head_dim")
    if not size or not _first(values, _HEADS):
        return heads * HEAD if _first(values, _HEADS) else 64
    return max(8, round(HEAD * heads * width / (_first(values, _HEADS) * size) / 8) * 8)


def _state_space(values: Mapping[str, Any], width: int) -> dict[str, Any]:
    expand = _first(values, ("expand", "mamba_expand"))
    if not expand:
        return {}
    inner, rank = expand * width, -(-width // 16)
    small: dict[str, Any] = {"num_heads": inner // HEAD, "mamba_n_heads": inner // HEAD}
    if "expand" in values:
        small |= {"intermediate_size": inner, "d_inner": inner, "time_step_rank": rank}
    small["mamba_d_ssm"] = inner
    return {name: size for name, size in small.items() if name in values}


def _positions(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the rows that are long, where some numbers change behind them, and the factors."""
    name = "rope_parameters" if values.get("rope_parameters") else "rope_scaling"
    scaling, small = dict(values.get(name) or {}), {}
    if values["model_type"] == "opt":  # it has a vector for each
        small["max_position_embeddings"] = 64
    if values["model_type"] == "phimoe":  # behind that length transformers keeps its short factors
        factors = {name: scaling[name][: HEAD // 2] for name in ("short_factor", "long_factor")}
        return {name: scaling | factors}
    longrope = "longrope" in (scaling.get("rope_type"), scaling.get("type"))
    if not longrope and not scaling.get("llama_4_scaling_beta"):
        return small
    before, original = {**values, **scaling}, "original_max_position_embeddings"
    ratio = values["max_position_embeddings"] // before[original]
    small["max_position_embeddings"] = ratio * HEAD
    (small if original in values else scaling)[original] = HEAD
    factors = int(HEAD * values.get("partial_rotary_factor", 1.0)) // 2
    for kind in ("short_factor", "long_factor"):
        if kind in scaling:
            scaling[kind] = scaling[kind][:factors]
    return small | {name: scaling}
