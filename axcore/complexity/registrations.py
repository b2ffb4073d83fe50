"""The features whose cost in lines is measured, and the modules that implement each.

No other module of axcore may import these modules: a feature that others know costs more than its
own lines.
"""

from collections.abc import Iterator

from axcore.plugins import Feature, Ref, hook

_ADAPTERS = (
    "axcore.layers.lora.linear",
    "axcore.layers.lora.adapters",
    "axcore.layers.lora.magnitude",
    "axcore.modifiers.lora",
    "axcore.checkpoint.adapters",
    "axcore.interop.peft",
    "axcore.interop.peft_reading",
    "axcore.interop.peft_magnitudes",
)


@hook.features
def features() -> Iterator[Feature]:
    """What the core's parts add to any model."""
    yield _feature(
        "rope",
        "Rotary positions",
        ("axcore.layers.attention.rope", "axcore.interop.gguf_rope"),
    )
    yield _feature(
        "moe",
        "Experts in the place of feed-forward layers",
        (
            "axcore.layers.moe.layer",
            "axcore.layers.moe.router",
            "axcore.layers.moe.routing",
            "axcore.layers.moe.experts",
            "axcore.layers.moe.dropless",
            "axcore.layers.moe.capacity",
            "axcore.layers.moe.grouped_linear",
            "axcore.layers.moe.expert_all_to_all",
            "axcore.layers.moe.token_permutation",
        ),
    )
    yield _feature(
        "int8",
        "Linear layers' products in int8",
        (
            "axcore.layers.quantization.current_scaling",
            "axcore.layers.quantization.delayed_scaling",
            "axcore.modifiers.quantization",
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
        "Adapters beside weights that are kept in four bits",
        (
            *_ADAPTERS,
            "axcore.layers.quantization.frozen_linear",
            "axcore.layers.quantization.nf4",
            "axcore.interop.freezing",
            "axcore.modifiers.quantized_base",
        ),
        variant_of="lora",
    )
    yield _feature(
        "sliding_cache",
        "Serving keeps no more than the window",
        ("axcore.layers.attention.sliding_cache", "axcore.modifiers.sliding_cache"),
        variant_of="kv_cache",
    )
    yield _feature(
        "half_cache",
        "Serving keeps keys and values in float16",
        ("axcore.layers.attention.half_store", "axcore.modifiers.half_cache"),
        variant_of="kv_cache",
    )
    yield _feature(
        "quantized_cache",
        "Serving keeps keys and values in int8",
        ("axcore.layers.attention.quantized_store", "axcore.modifiers.quantized_cache"),
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
