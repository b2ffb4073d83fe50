"""What axl-audio brings to axcore. Imports no jax."""

from collections.abc import Iterator

from axcore.plugins import (
    Command,
    Experiment,
    HuggingFaceFamily,
    LayerVariant,
    ModelApi,
    Ref,
    hook,
)


@hook.hugging_face_families
def hugging_face_families() -> Iterator[HuggingFaceFamily]:
    """Pretrained checkpoints of models of sound."""
    for name, family, summary in (
        ("whisper", "whisper:WHISPER", "Whisper, speech in many languages to text"),
        ("wav2vec2", "wav2vec2:WAV2VEC2", "wav2vec 2.0 with CTC, speech to letters"),
        ("hubert", "wav2vec2:HUBERT", "HuBERT with CTC, the same model trained otherwise"),
        (
            "wav2vec2-conformer",
            "conformer:WAV2VEC2_CONFORMER",
            "Conformers with CTC on the features of wav2vec 2.0",
        ),
        ("voxtral", "voxtral:VOXTRAL", "Voxtral, a language model that reads sounds"),
    ):
        yield HuggingFaceFamily(
            name=name, family=Ref(f"axl_audio.models.{family}"), summary=summary
        )


@hook.layer_variants
def layer_variants() -> Iterator[LayerVariant]:
    """Layers for sound."""
    yield LayerVariant(
        name="conformer",
        config=Ref("axl_audio.conformer:conformer"),
        replaces=Ref("axcore.layers:TransformerLayer"),
        summary="A convolution next to attention, between two halves of a feed-forward",
    )


@hook.experiments
def experiments() -> Iterator[Experiment]:
    """Models of sound that can be trained."""
    for name, function, summary in (
        (
            "spoken-digits",
            "spoken_digits",
            "A small CTC model that writes down spoken digits; minutes on a laptop",
        ),
        (
            "spoken-digits-chat",
            "spoken_digits_chat",
            "A small language model that answers about a spoken digit; minutes on a laptop",
        ),
        ("whisper-large-v3", "whisper_large_v3", "Whisper large-v3, 1.5B parameters"),
    ):
        yield Experiment(name=name, fn=Ref(f"axl_audio.experiments:{function}"), summary=summary)


@hook.commands
def commands() -> Iterator[Command]:
    """What is done with a trained model of sound."""
    yield Command(
        name="transcribe",
        fn=Ref("axl_audio.transcribe:command"),
        summary="Write down what sound files say, by a trained run",
    )


@hook.model_apis
def model_apis() -> Iterator[ModelApi]:
    """What `axcore serve` answers with a model of sound."""
    yield ModelApi(
        name="transcriptions",
        models=(
            "axl_audio.encoder:CTCModel.Config",
            "axl_audio.speech_to_text:SpeechToText.Config",
        ),
        fn=Ref("axl_audio.serving:endpoints"),
        summary="Transcripts of sound files",
    )
