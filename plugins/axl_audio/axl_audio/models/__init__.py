"""Families of models of sound, each a function from a size to a config."""

from axl_audio.models.conformer import wav2vec2_conformer
from axl_audio.models.voxtral import voxtral
from axl_audio.models.wav2vec2 import wav2vec2
from axl_audio.models.whisper import whisper

__all__ = ["voxtral", "wav2vec2", "wav2vec2_conformer", "whisper"]
