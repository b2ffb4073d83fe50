"""The sources, the transforms and the tokenizers of the core."""

from collections.abc import Iterator

from axcore.plugins import DataSource, DataTokenizer, DataTransform, Ref, hook


@hook.data_sources
def data_sources() -> Iterator[DataSource]:
    """Where text comes from."""
    for name, config, summary in (
        ("text_files", "TextFiles", "UTF-8 files of a folder, a document each"),
        ("json_lines", "JsonLines", "Lines of JSON files, a document each"),
        ("chat_files", "ChatFiles", "Conversations, a line of JSON each; the loss is on answers"),
        ("arrow_files", "ArrowFiles", "Rows of Parquet or Arrow files, a document each"),
        ("array_record_files", "ArrayRecordFiles", "Records of ArrayRecord files, a document each"),
        ("tar_files", "TarFiles", "Samples of tar files, as WebDataset writes them"),
        ("sample_files", "SampleFiles", "Files of a folder, such as pictures, a record each"),
        ("hugging_face_dataset", "HuggingFaceDataset", "A dataset saved in a folder, or by name"),
        ("token_files", "TokenFiles", "Tokens as nanoGPT and llm.c write them"),
        ("megatron_files", "MegatronFiles", "Tokens as Megatron-LM writes them"),
        ("standard_library", "StandardLibrary", "The source of this Python's standard library"),
        ("token_store", "StoredSource", "What `axcore data build` made"),
    ):
        ref = Ref(f"axcore.data:{config}.Config")
        yield DataSource(name=name, config=ref, summary=summary)


@hook.data_transforms
def data_transforms() -> Iterator[DataTransform]:
    """What changes documents, or leaves them out."""
    for name, config, summary in (
        ("length_filter", "LengthFilter", "Documents of some length"),
        ("pattern_filter", "PatternFilter", "Documents in which a regular expression is found"),
        ("field_filter", "FieldFilter", "Documents with some value in a field"),
        ("deduplicate", "Deduplicate", "The first of equal documents"),
        ("fill_in_the_middle", "FillInTheMiddle", "Middles of documents at their ends"),
        ("span_corruption", "SpanCorruption", "Spans to write that were taken out of documents"),
        ("chat_messages", "ChatMessages", "Conversations, with loss on the answers alone"),
        ("chat_pairs", "ChatPairs", "Pairs of answers, one chosen over the other"),
        ("labelled_chats", "LabelledChats", "Answers that were labelled one by one"),
        ("image_pixels", "ImagePixels", "Images, a token for each value of each pixel"),
    ):
        ref = Ref(f"axcore.data:{config}.Config")
        yield DataTransform(name=name, config=ref, summary=summary)


@hook.tokenizers
def tokenizers() -> Iterator[DataTokenizer]:
    """How text becomes tokens."""
    for name, config, summary in (
        ("bytes", "ByteTokenizer", "A token for each byte of UTF-8"),
        ("characters", "CharacterTokenizer", "Characters by a vocab.json, for CTC"),
        ("hugging_face", "HuggingFaceTokenizer", "Any tokenizer.json"),
        ("sentence_piece", "SentencePieceTokenizer", "Any SentencePiece tokenizer.model"),
    ):
        ref = Ref(f"axcore.data:{config}.Config")
        yield DataTokenizer(name=name, config=ref, summary=summary)
