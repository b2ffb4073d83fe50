"""What changes documents between their files and their tokens, or leaves them out."""

from axcore.data.transforms.chat import ChatMessages, ChatPairs, LabelledChats
from axcore.data.transforms.corruption import FillInTheMiddle, SpanCorruption
from axcore.data.transforms.filters import Deduplicate, FieldFilter, LengthFilter, PatternFilter
from axcore.data.transforms.images import (
    ImagePixels,
    decode_image,
    file_content,
    warnings_as_errors,
)
from axcore.data.transforms.transform import Dropped, Transform, TransformTools

__all__ = [
    "ChatMessages",
    "ChatPairs",
    "Deduplicate",
    "Dropped",
    "FieldFilter",
    "FillInTheMiddle",
    "ImagePixels",
    "LabelledChats",
    "LengthFilter",
    "PatternFilter",
    "SpanCorruption",
    "Transform",
    "TransformTools",
    "decode_image",
    "file_content",
    "warnings_as_errors",
]
