"""What axl-attention brings to axcore. Imports no jax."""

from collections.abc import Iterator

from axcore.plugins import LayerVariant, Ref, hook


@hook.layer_variants
def layer_variants() -> Iterator[LayerVariant]:
    """Variants of attention."""
    yield LayerVariant(
        name="sliding_window",
        config=Ref("axl_attention.sliding_window:in_place_of"),
        replaces=Ref("axcore.layers:DotProductAttention"),
        summary="Each token sees a fixed number of tokens before it",
    )
