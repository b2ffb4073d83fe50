"""What axl-attention brings to axcore. Imports no jax."""

from collections.abc import Iterator

from axcore.plugins import LayerVariant, Ref, hook

_VARIANTS = (
    ("DotProductAttention", "sliding_window", "Each token sees a fixed number of tokens before it"),
    ("DotProductAttention", "chunked", "Each token sees its own chunk of the document"),
    ("DotProductAttention", "sinks", "A learned logit per head that takes probability only"),
    ("DotProductAttention", "soft_cap", "Logits capped smoothly at 50"),
    ("DotProductAttention", "alibi", "Logits fall with the distance, by a slope per head"),
    ("RoPE", "no_position", "Queries and keys as they are"),
    ("RoPE", "linear_rope", "RoPE squeezed by a factor"),
    ("RoPE", "ntk_rope", "RoPE of a larger base"),
    ("RoPE", "yarn", "RoPE stretched by how often a pair turns"),
    ("RoPE", "llama3_rope", "RoPE stretched by wavelength"),
    ("RoPE", "partial_rotary", "Positions for a part of each head"),
    ("Attention", "query_key_norm", "Queries and keys normalised before their positions"),
    ("Attention", "latent_attention", "Keys and values made from one short vector a token"),
    ("Attention", "value_residual", "Values mixed with those of the first layer"),
    ("Embedding", "learned_position", "A learned vector for each position"),
    ("Embedding", "sinusoidal_position", "Waves of each position"),
    ("Repeat", "shared_keys", "Every second layer uses the keys of the one before"),
    ("PreNorm", "sandwich_norm", "A norm before and after each branch"),
)
"""The layer of the core that is replaced, the variant's name (its file's too), and a summary."""

_CONFIGS = {
    "no_position": "axcore.layers:NoPosition.Config",
    "linear_rope": "axl_attention.linear_rope:LinearRoPE.Config",
    "ntk_rope": "axl_attention.ntk_rope:NTKRoPE.Config",
    "yarn": "axl_attention.yarn:YaRN.Config",
    "llama3_rope": "axl_attention.llama3_rope:Llama3RoPE.Config",
}
"""Those that need nothing of what they replace but its fields. The others have `in_place_of`."""


@hook.layer_variants
def layer_variants() -> Iterator[LayerVariant]:
    """Variants of attention, of positions, and of what carries both."""
    for replaced, name, summary in _VARIANTS:
        yield LayerVariant(
            name=name,
            config=Ref(_CONFIGS.get(name, f"axl_attention.{name}:in_place_of")),
            replaces=Ref(f"axcore.layers:{replaced}"),
            summary=summary,
        )
