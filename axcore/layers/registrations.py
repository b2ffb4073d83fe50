"""What the layers bring by name: products in low precision, and plain rotary positions."""

from collections.abc import Iterator

from axcore.plugins import QuantizationScheme, Ref, RopeScaling, hook, requires


@hook.quantization_schemes
def quantization_schemes() -> Iterator[QuantizationScheme]:
    """Layers' products in int8 and float8, forward and backward."""
    yield QuantizationScheme(
        name="int8_dynamic",
        config=Ref("axcore.layers:Int8Dynamic.Config"),
        requires=requires(features="int8"),
        summary="int8 with a scale for each row of the input and column of the weight",
    )
    yield QuantizationScheme(
        name="fp8_current",
        config=Ref("axcore.layers:Fp8Current.Config"),
        requires=requires(features="float8"),
        summary="float8 with a scale per tensor, from its current values",
    )
    yield QuantizationScheme(
        name="fp8_delayed",
        config=Ref("axcore.layers:Fp8Delayed.Config"),
        requires=requires(features="float8"),
        summary="float8 with a scale per tensor, from what earlier steps held",
    )


@hook.rope_scalings
def rope_scalings() -> Iterator[RopeScaling]:
    """Rotary positions as they were trained."""
    plain = Ref("axcore.layers:RoPE.Config")
    yield RopeScaling(name="default", config=plain, fields={}, summary="Not scaled")
    yield RopeScaling(
        name="mrope",
        config=Ref("axcore.layers:MultimodalRoPE.Config"),
        fields={"mrope_section": "sections"},
        optional={"mrope_interleaved": "is_interleaved"},
        summary="On three axes, for texts with pictures",
    )
