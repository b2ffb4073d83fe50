"""The features whose cost in lines is measured, and the modules that implement each.

No other module of axcore may import them: a feature that others know costs more than its
own lines.
"""

from collections.abc import Iterator

from axcore.plugins import Feature, Ref, hook

_ADAPTERS = (
    "axcore.layers.adapters.lora",
    "axcore.layers.adapters.states",
    "axcore.modifiers.adapters:LoRA",
    "axcore.checkpoint.adapters",
    "axcore.interop.peft",
    "axcore.interop.peft_reading",
)


@hook.features
def features() -> Iterator[Feature]:
    """What the core's parts add to any model."""
    yield _feature(
        "rope",
        "Rotary positions",
        (
            "axcore.layers.attention.rope:RoPE",
            "axcore.layers.attention.rope:AxialRoPE",
            "axcore.layers.attention.rope:MultimodalRoPE",
            "axcore.layers.attention.rope:rope_frequencies",
            "axcore.layers.attention.rope:rotate",
            "axcore.layers.attention.rope:rotate_by",
            "axcore.interop.gguf_rope",
        ),
    )
    yield _feature(
        "moe",
        "Experts in the place of feed-forward layers",
        (
            "axcore.layers.moe.router",
            "axcore.layers.moe.experts",
            "axcore.layers.moe.token_permutation",
        ),
    )
    yield _feature(
        "int8",
        "Linear layers' products in int8",
        (
            "axcore.layers.quantization.quantized_dot:Int8Dynamic",
            "axcore.layers.quantization.quantized_dot:int8_spec",
            "axcore.modifiers.quantization:Int8Training",
        ),
        variant_of="low_precision",
    )
    for name, summary in (
        ("lora", "Adapters of low rank, and all else frozen"),
        ("rslora", "Adapters whose scale does not shrink with their rank"),
        ("dora", "Adapters that train lengths and directions of weights apart"),
    ):
        yield _feature(name, summary, _ADAPTERS, variant_of="lora")
    yield _feature(
        "qlora",
        "Adapters on weights that are stored in four bits",
        (
            *_ADAPTERS,
            "axcore.layers.quantization.frozen_linear",
            "axcore.layers.quantization.nf4",
            "axcore.modifiers.adapters:QuantizedBase",
            "axcore.modifiers.adapters:FreezeWeights",
            "axcore.modifiers.adapters:Frozen",
        ),
        variant_of="lora",
    )
    yield _feature(
        "multi_token_prediction",
        "Tokens after the next one predicted, by layers of their own",
        ("axcore.models.multi_token_lm", "axcore.modifiers.multi_token"),
    )
    yield _feature(
        "sliding_cache",
        "Serving keeps no more than the window",
        ("axcore.layers.attention.kv_cache:SlidingCache", "axcore.modifiers.kv_cache"),
        variant_of="kv_cache",
    )
    yield _feature(
        "half_cache",
        "Serving keeps keys and values in float16",
        ("axcore.layers.attention.kv_store:HalfPrecisionKVStore", "axcore.modifiers.kv_cache"),
        variant_of="kv_cache",
    )
    yield _feature(
        "quantized_cache",
        "Serving keeps keys and values in int8",
        ("axcore.layers.attention.kv_store:QuantizedKVStore", "axcore.modifiers.kv_cache"),
        variant_of="kv_cache",
    )


def _feature(
    name: str, summary: str, implementation: tuple[str, ...], *, variant_of: str = ""
) -> Feature:
    return Feature(
        name=name,
        apply=Ref(f"axcore.complexity.features:with_{name}"),
        evidence=Ref(f"axcore.complexity.features:has_{name}"),
        implementation=implementation,
        variant_of=variant_of,
        summary=summary,
    )
