"""Families of models of sound, each a function from a size to a config."""

from axl_audio.models.whisper import whisper

__all__ = ["whisper"]
