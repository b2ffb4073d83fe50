"""What the reading and writing of published weights brings by name."""

from collections.abc import Iterator

from axcore.plugins import AdapterFormat, Modifier, Ref, hook


@hook.adapter_formats
def adapter_formats() -> Iterator[AdapterFormat]:
    """LoRA's."""
    yield AdapterFormat(
        name="peft",
        layer=Ref("axcore.layers:LoRALinear.Config"),
        format=Ref("axcore.interop.peft:PeftFormat"),
        summary="PEFT, of Hugging Face",
    )


@hook.modifiers
def modifiers() -> Iterator[Modifier]:
    """Change of the weights that a run begins with."""
    for name, config, summary in (
        ("rename_weights", "RenameWeights", "Initial weights under other names"),
        ("grow_vocabulary", "GrowVocabulary", "Initial weights for more tokens"),
        ("scalar_head", "FreshHead", "One number instead of logits, as a reward model ends with"),
        ("extend_positions", "ExtendPositions", "Initial weights for more learned positions"),
        ("upcycle", "Upcycle", "Initial weights of experts from a feed-forward"),
        ("stack_depth", "StackDepth", "Initial weights of more layers, or of some of them"),
        (
            "encoder_alone",
            "EncoderAlone",
            "Initial weights of an encoder, for another kind of model",
        ),
    ):
        yield Modifier(name=name, config=Ref(f"axcore.interop:{config}"), summary=summary)
