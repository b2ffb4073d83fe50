"""Data: text from files, as tokens, packed into batches whose order and position are exact."""

from axcore.data.array_record_files import ArrayRecordFiles
from axcore.data.arrays import Arrays, from_arrays
from axcore.data.arrow_files import ArrowFiles
from axcore.data.batches import DataShard, Rows, batches, train_order, validation_order
from axcore.data.chat_files import ChatFiles
from axcore.data.chat_template import ChatTemplate, Message
from axcore.data.data import Data, DataSummary
from axcore.data.data_loader import DataLoader
from axcore.data.document import Document, Source
from axcore.data.file_source import BadRecord, FileSource, FileSpan
from axcore.data.files import NamedFile
from axcore.data.gguf_tokenizers import gguf_vocabulary
from axcore.data.hugging_face_dataset import HuggingFaceDataset
from axcore.data.hugging_face_tokenizer import HuggingFaceTokenizer, published_end_ids, tokenizer_in
from axcore.data.json_lines import JsonLines
from axcore.data.loading import Policy, TrainBatches, ValidationBatches
from axcore.data.mixture import Mixture
from axcore.data.packing import Batch
from axcore.data.preference_data import PreferenceData
from axcore.data.prefetching import PrefetchedBatches
from axcore.data.sentence_piece_tokenizer import SentencePieceTokenizer
from axcore.data.standard_library import StandardLibrary
from axcore.data.store import build_store, open_store
from axcore.data.stored_source import StoredSource
from axcore.data.stream import FileStream, Stream
from axcore.data.stream_data import StreamData
from axcore.data.tar_files import TarFiles
from axcore.data.text_files import TextFiles
from axcore.data.token_files import MegatronFiles, TokenFiles
from axcore.data.tokenizer import ByteTokenizer, Tokenizer, decoded
from axcore.data.transforms import (
    ChatMessages,
    ChatPairs,
    Deduplicate,
    Dropped,
    FieldFilter,
    FillInTheMiddle,
    ImagePixels,
    LengthFilter,
    PatternFilter,
    RatedChats,
    SpanCorruption,
    Transform,
    TransformTools,
)
from axcore.data.weight_changes import NewWeights

__all__ = [
    "ArrayRecordFiles",
    "Arrays",
    "ArrowFiles",
    "BadRecord",
    "Batch",
    "ByteTokenizer",
    "ChatFiles",
    "ChatMessages",
    "ChatPairs",
    "ChatTemplate",
    "Data",
    "DataLoader",
    "DataShard",
    "DataSummary",
    "Deduplicate",
    "Document",
    "Dropped",
    "FieldFilter",
    "FileSource",
    "FileSpan",
    "FileStream",
    "FillInTheMiddle",
    "HuggingFaceDataset",
    "HuggingFaceTokenizer",
    "ImagePixels",
    "JsonLines",
    "LengthFilter",
    "MegatronFiles",
    "Message",
    "Mixture",
    "NamedFile",
    "NewWeights",
    "PatternFilter",
    "Policy",
    "PreferenceData",
    "PrefetchedBatches",
    "RatedChats",
    "Rows",
    "SentencePieceTokenizer",
    "Source",
    "SpanCorruption",
    "StandardLibrary",
    "StoredSource",
    "Stream",
    "StreamData",
    "TarFiles",
    "TextFiles",
    "TokenFiles",
    "Tokenizer",
    "TrainBatches",
    "Transform",
    "TransformTools",
    "ValidationBatches",
    "batches",
    "build_store",
    "decoded",
    "from_arrays",
    "gguf_vocabulary",
    "open_store",
    "published_end_ids",
    "tokenizer_in",
    "train_order",
    "validation_order",
]
