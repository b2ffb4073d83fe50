"""Voxtral: a language model that reads sounds, by the encoder of a Whisper."""

from typing import Any

from axcore.config import update_config
from axcore.interop import (
    Computed,
    Family,
    Field,
    ModelPart,
    MustBe,
    WeightMap,
    activation,
    linear,
    part_weights,
)
from axcore.models import (
    CausalLM,
    MultimodalLM,
    language_model_of,
    llama2,
    multimodal,
    with_language_model,
)
from axl_audio.models.whisper import encoder_weights, whisper
from axl_audio.sound_tokens import SoundTokens

_SOUND = "encoder.encoder"
_LLAMA = {
    "head_dim": 128,
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "max_position_embeddings": 131_072,
    "num_attention_heads": 32,
    "num_hidden_layers": 30,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e8,
    "vocab_size": 131_072,
}
"""What transformers' own config of a Voxtral's text has, and files leave out."""


def voxtral(text: CausalLM.Config, size: str = "large-v3") -> MultimodalLM.Config:
    """Return the config of a Voxtral: a language model, and the encoder of a Whisper.

    Four tokens of the encoder are side by side in a soft token, so a sound of half a minute is 375.

    Args:
        text: The language model.
        size: Of the Whisper, whose encoder it is.

    Source: Liu et al. 2025, arXiv:2507.13264, section 2.
    """
    cfg = whisper(size)
    encoder: Any = cfg.encoder
    if size == "toy":  # whose 30 tokens do not divide by four
        encoder = update_config(encoder, {"positions.length": 32})
    sound = SoundTokens.Config(
        features=cfg.features, encoder=update_config(encoder, {"dim": cfg.dim})
    )
    return multimodal(text, sound, num_soft_tokens=sound.num_tokens, input_name="sound")


def _num_stacked(cfg: Any) -> int:
    """Return how many tokens are as wide as the encoder's hidden units, by which exports say it."""
    encoder = cfg.encoder.encoder
    return int(encoder.stack.layer.feed_forward.hidden_dim // encoder.dim)


def _weights(cfg: Any) -> WeightMap:
    return (
        *part_weights(
            language_model_of(cfg),
            "language_model.",
            moved={"decoder.embedding.": "decoder.embedding.embedding."},
        ),
        *encoder_weights(_SOUND, "audio_tower"),
        *linear("encoder.up", "multi_modal_projector.linear_1"),
        *linear("encoder.down", "multi_modal_projector.linear_2"),
    )


def _audio(name: str, paths: tuple[str, ...], default: int) -> Field:
    return Field(f"audio_config.{name}", paths, default=default)


VOXTRAL = Family(
    architecture="VoxtralForConditionalGeneration",
    template=lambda: voxtral(llama2("toy"), "toy"),
    parts=("text_config", "audio_config"),
    config=(
        ModelPart(
            name="text_config",
            get=language_model_of,
            put=with_language_model,
            family="llama",
            defaults={"llama": _LLAMA},
        ),
        _audio("hidden_size", (f"{_SOUND}.dim",), 1280),
        _audio("num_hidden_layers", (f"{_SOUND}.stack.num_layers",), 32),
        _audio("num_attention_heads", (f"{_SOUND}.stack.**.attention.num_heads",), 20),
        _audio("intermediate_size", (f"{_SOUND}.stack.**.hidden_dim",), 5120),
        _audio("num_mel_bins", ("encoder.features.num_bands",), 128),
        _audio("max_source_positions", (f"{_SOUND}.positions.length",), 1500),
        activation("audio_config.activation_function", "gelu", f"{_SOUND}.stack.**.activation"),
        MustBe("audio_config.model_type", ("voxtral_encoder",)),
        MustBe("audio_config.scale_embedding", (False,)),
        Computed("encoder.num_stacked", _num_stacked),
        Computed("decoder.embedding.num_tokens", lambda cfg: cfg.encoder.num_tokens),
        activation("projector_hidden_act", "gelu", "encoder.activation"),
    ),
    weights=_weights,
    length="text_config.max_position_embeddings",
    input_mark="audio_token_id",
    irrelevant=frozenset(
        {
            "activation_dropout",
            "attention_dropout",
            "audio_token_id",
            "dropout",
            "head_dim",  # of the encoder: its size over its heads
            "hidden_size",  # of the text, once more
            "initializer_range",
            "layerdrop",
            "num_key_value_heads",  # of the encoder, which has as many as heads
            "tie_word_embeddings",  # of the text, which says it itself
            "vocab_size",  # of a Whisper's texts, or of the text once more
        }
    ),
    skipped=(r"rotary_emb\.inv_freq$",),
    copies={"language_model.lm_head.weight": "language_model.model.embed_tokens.weight"},
)
