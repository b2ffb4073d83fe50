"""Data: text from files, as tokens, packed into batches whose order and position are exact."""

from axcore.data.batches import DataShard, Rows, batches, train_order, validation_order
from axcore.data.chat_template import ChatTemplate, Message
from axcore.data.data import Data, DataSummary
from axcore.data.data_loader import DataLoader
from axcore.data.document import Document, Source
from axcore.data.hugging_face_tokenizer import HuggingFaceTokenizer, ends_in, tokenizer_in
from axcore.data.json_lines import JsonLines
from axcore.data.loading import TrainBatches, ValidationBatches
from axcore.data.packing import Batch
from axcore.data.sentence_piece_tokenizer import SentencePieceTokenizer
from axcore.data.standard_library import StandardLibrary
from axcore.data.text_files import TextFiles
from axcore.data.tokenizer import ByteTokenizer, Tokenizer

__all__ = [
    "Batch",
    "ByteTokenizer",
    "ChatTemplate",
    "Data",
    "DataLoader",
    "DataShard",
    "DataSummary",
    "Document",
    "HuggingFaceTokenizer",
    "JsonLines",
    "Message",
    "Rows",
    "SentencePieceTokenizer",
    "Source",
    "StandardLibrary",
    "TextFiles",
    "Tokenizer",
    "TrainBatches",
    "ValidationBatches",
    "batches",
    "ends_in",
    "tokenizer_in",
    "train_order",
    "validation_order",
]
