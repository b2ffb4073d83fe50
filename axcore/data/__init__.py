"""Data: text from files, as tokens, packed into batches whose order and position are exact."""

from axcore.data.data import Data, DataSummary
from axcore.data.document import Document, Source
from axcore.data.hugging_face_tokenizer import HuggingFaceTokenizer
from axcore.data.json_lines import JsonLines
from axcore.data.loading import HeldoutBatches, TrainBatches
from axcore.data.packing import Batch
from axcore.data.standard_library import StandardLibrary
from axcore.data.text_files import TextFiles
from axcore.data.tokenizer import ByteTokenizer, Tokenizer

__all__ = [
    "Batch",
    "ByteTokenizer",
    "Data",
    "DataSummary",
    "Document",
    "HeldoutBatches",
    "HuggingFaceTokenizer",
    "JsonLines",
    "Source",
    "StandardLibrary",
    "TextFiles",
    "Tokenizer",
    "TrainBatches",
]
