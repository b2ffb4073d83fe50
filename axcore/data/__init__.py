"""Data: text from files, as tokens, packed into batches whose order and position are exact."""

from axcore.data.arrays import ArrayData
from axcore.data.cache import cache_folder
from axcore.data.chat.chat_rows import PART_TYPES, ChatText, reads_parts, with_soft_tokens
from axcore.data.chat.chat_template import ChatTemplate, Message
from axcore.data.data import Data, DataSummary
from axcore.data.data_loader import (
    DataLoader,
    Policy,
    PrefetchedBatches,
    TrainBatches,
    ValidationBatches,
)
from axcore.data.document import Document, Source
from axcore.data.examples import ExampleData, Feature, FeatureArray, Label, Text
from axcore.data.media import Media, read_data_url
from axcore.data.packing.batches import DataShard, Rows, batches, train_order
from axcore.data.packing.packing import Batch
from axcore.data.preference_data import PreferenceData
from axcore.data.sources.array_record_files import ArrayRecordFiles
from axcore.data.sources.arrow_files import ArrowFiles, HuggingFaceDataset
from axcore.data.sources.file_source import BadRecord, Files, FileSource, FileSpan
from axcore.data.sources.files import NamedFile, list_files
from axcore.data.sources.json_lines import ChatFiles, JsonLines
from axcore.data.sources.mixture import Mixture, NewWeights
from axcore.data.sources.sample_files import SampleFiles
from axcore.data.sources.tar_files import TarFiles
from axcore.data.sources.text_files import StandardLibrary, TextFiles
from axcore.data.sources.token_files import MegatronFiles, TokenFiles
from axcore.data.store import build_store, open_store
from axcore.data.store.reader import StoredSource
from axcore.data.streams import FileStream, Stream, StreamData
from axcore.data.tokenizers.character_tokenizer import CharacterTokenizer, characters_in
from axcore.data.tokenizers.gguf import gguf_vocabulary
from axcore.data.tokenizers.gguf_reading import gguf_tokenizer_files
from axcore.data.tokenizers.hugging_face_tokenizer import (
    HuggingFaceTokenizer,
    published_end_ids,
    tokenizer_in,
)
from axcore.data.tokenizers.other_files import has_other_tokenizer, other_tokenizer_files
from axcore.data.tokenizers.sentence_piece_tokenizer import SentencePieceTokenizer
from axcore.data.tokenizers.tokenizer import ByteTokenizer, Tokenizer, decoded
from axcore.data.transforms import (
    ChatMessages,
    ChatPairs,
    Deduplicate,
    Dropped,
    FieldFilter,
    FillInTheMiddle,
    ImagePixels,
    LabelledChats,
    LengthFilter,
    PatternFilter,
    SpanCorruption,
    Transform,
    TransformTools,
    decode_image,
    file_content,
    warnings_as_errors,
)

__all__ = [
    "PART_TYPES",
    "ArrayData",
    "ArrayRecordFiles",
    "ArrowFiles",
    "BadRecord",
    "Batch",
    "ByteTokenizer",
    "CharacterTokenizer",
    "ChatFiles",
    "ChatMessages",
    "ChatPairs",
    "ChatTemplate",
    "ChatText",
    "Data",
    "DataLoader",
    "DataShard",
    "DataSummary",
    "Deduplicate",
    "Document",
    "Dropped",
    "ExampleData",
    "Feature",
    "FeatureArray",
    "FieldFilter",
    "FileSource",
    "FileSpan",
    "FileStream",
    "Files",
    "FillInTheMiddle",
    "HuggingFaceDataset",
    "HuggingFaceTokenizer",
    "ImagePixels",
    "JsonLines",
    "Label",
    "LabelledChats",
    "LengthFilter",
    "Media",
    "MegatronFiles",
    "Message",
    "Mixture",
    "NamedFile",
    "NewWeights",
    "PatternFilter",
    "Policy",
    "PreferenceData",
    "PrefetchedBatches",
    "Rows",
    "SampleFiles",
    "SentencePieceTokenizer",
    "Source",
    "SpanCorruption",
    "StandardLibrary",
    "StoredSource",
    "Stream",
    "StreamData",
    "TarFiles",
    "Text",
    "TextFiles",
    "TokenFiles",
    "Tokenizer",
    "TrainBatches",
    "Transform",
    "TransformTools",
    "ValidationBatches",
    "batches",
    "build_store",
    "cache_folder",
    "characters_in",
    "decode_image",
    "decoded",
    "file_content",
    "gguf_tokenizer_files",
    "gguf_vocabulary",
    "has_other_tokenizer",
    "list_files",
    "open_store",
    "other_tokenizer_files",
    "published_end_ids",
    "read_data_url",
    "reads_parts",
    "tokenizer_in",
    "train_order",
    "warnings_as_errors",
    "with_soft_tokens",
]
