"""Weights in and out: published checkpoints to states of ours, and back, bit by bit."""

from axcore.interop.config_map import (
    Choice,
    ConfigEntry,
    Field,
    Fields,
    Implied,
    Only,
    common_value,
)
from axcore.interop.family import Family, family_named, family_of
from axcore.interop.published import Pretrained, PublishedModel, from_hugging_face, to_hugging_face
from axcore.interop.rope import RopeFields
from axcore.interop.transforms import (
    Chain,
    Concatenate,
    JoinAxes,
    Permute,
    Same,
    Split,
    SplitAxis,
    Transform,
    Transpose,
    interleaved,
)
from axcore.interop.weight_map import BoundMap, Rule, WeightMap, below, linear, same
from axcore.interop.weight_source import HuggingFace, WeightSource
from axcore.interop.writing import DEFAULT_SHARD_BYTES

__all__ = [
    "DEFAULT_SHARD_BYTES",
    "BoundMap",
    "Chain",
    "Choice",
    "Concatenate",
    "ConfigEntry",
    "Family",
    "Field",
    "Fields",
    "HuggingFace",
    "Implied",
    "JoinAxes",
    "Only",
    "Permute",
    "Pretrained",
    "PublishedModel",
    "RopeFields",
    "Rule",
    "Same",
    "Split",
    "SplitAxis",
    "Transform",
    "Transpose",
    "WeightMap",
    "WeightSource",
    "below",
    "common_value",
    "family_named",
    "family_of",
    "from_hugging_face",
    "interleaved",
    "linear",
    "same",
    "to_hugging_face",
]
