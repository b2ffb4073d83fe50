"""Families of models of pictures, each a function from a size to a config."""

from axl_vision.models.clip import clip
from axl_vision.models.dinov2 import dinov2, dinov2_classifier
from axl_vision.models.dit import dit
from axl_vision.models.gemma3_vision import gemma3_vision
from axl_vision.models.llava import llava
from axl_vision.models.qwen2_5_vl import qwen2_5_vl, with_picture_size
from axl_vision.models.qwen3_vl import qwen3_vl
from axl_vision.models.siglip import siglip
from axl_vision.models.vit import vit

__all__ = [
    "clip",
    "dinov2",
    "dinov2_classifier",
    "dit",
    "gemma3_vision",
    "llava",
    "qwen2_5_vl",
    "qwen3_vl",
    "siglip",
    "vit",
    "with_picture_size",
]
