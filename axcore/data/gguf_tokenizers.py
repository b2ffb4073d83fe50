"""`gguf_vocabulary`: any tokenizer as llama.cpp reads it, or an error that says why not."""

from typing import Any

from axcore.data.gguf_byte_level import byte_level_vocabulary
from axcore.data.gguf_pieces import merged_pieces_vocabulary, pieces_vocabulary
from axcore.data.gguf_vocabulary import GGUFVocabulary, byte_vocabulary, unreadable
from axcore.data.hugging_face_tokenizer import HuggingFaceTokenizer
from axcore.data.sentence_piece_tokenizer import SentencePieceTokenizer
from axcore.data.tokenizer import ByteTokenizer, Tokenizer


def gguf_vocabulary(tokenizer: Tokenizer | None, size: int) -> tuple[dict[str, Any], str]:
    """Returns the metadata that a GGUF file has of a tokenizer, and what llama.cpp does otherwise.

    Args:
        tokenizer: The tokenizer.
        size: Tokens of the model, of which the last ones may be unused.

    Raises:
        ConfigError: llama.cpp has nothing that makes the same tokens of text.
    """
    if tokenizer is None:
        raise unreadable("there is none, and llama.cpp reads text", "data")
    found, template = _vocabulary(tokenizer), getattr(tokenizer, "chat_template_source", None)
    metadata = found.metadata(tokenizer, size)
    if template is not None:
        metadata["tokenizer.chat_template"] = template
    tool_template = getattr(tokenizer, "tool_template_source", None)
    if tool_template is not None:
        metadata["tokenizer.chat_templates"] = ["tool_use"]
        metadata["tokenizer.chat_template.tool_use"] = tool_template
    return metadata, found.note


def _vocabulary(tokenizer: Tokenizer) -> GGUFVocabulary:
    if isinstance(tokenizer, ByteTokenizer):
        return byte_vocabulary()
    if isinstance(tokenizer, SentencePieceTokenizer):
        return pieces_vocabulary(tokenizer.model_proto, tokenizer.config.path)
    if isinstance(tokenizer, HuggingFaceTokenizer):
        content, path = tokenizer.content, tokenizer.config.path
        kind = content["model"]["type"]
        if kind != "BPE":
            raise unreadable(f"it is a {kind}; axcore writes BPE", path)
        if content["model"]["byte_fallback"]:
            return merged_pieces_vocabulary(content, path)
        return byte_level_vocabulary(content, path)
    raise unreadable(f"it is a {type(tokenizer).__name__}, which axcore does not know")
