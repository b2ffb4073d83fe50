"""What changes documents between their files and their tokens, or leaves them out."""

from axcore.data.transforms.chat import ChatMessages
from axcore.data.transforms.chat_pairs import ChatPairs, RatedChats
from axcore.data.transforms.deduplicate import Deduplicate
from axcore.data.transforms.fill_in_the_middle import FillInTheMiddle
from axcore.data.transforms.filters import FieldFilter, LengthFilter, PatternFilter
from axcore.data.transforms.images import ImagePixels
from axcore.data.transforms.span_corruption import SpanCorruption
from axcore.data.transforms.transform import Dropped, Transform, TransformTools

__all__ = [
    "ChatMessages",
    "ChatPairs",
    "Deduplicate",
    "Dropped",
    "FieldFilter",
    "FillInTheMiddle",
    "ImagePixels",
    "LengthFilter",
    "PatternFilter",
    "RatedChats",
    "SpanCorruption",
    "Transform",
    "TransformTools",
]
