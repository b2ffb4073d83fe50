"""Train a tokenizer on the documents of a source: byte-level BPE or unigram.

Every text can be written in its tokens, since the 256 bytes are among them, and is read back as it
was. Texts are split into words, numbers of at most three digits and punctuation first, by the rule
that GPT-4 and Llama 3 have, and no token crosses such a border.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import attrs

from axcore.data.document import Document, Source, is_validation
from axcore.data.tokenizers.hugging_face_tokenizer import HuggingFaceTokenizer, tokenizer_in
from axcore.errors import DataError
from axcore.whole_files import write_whole

END_OF_TEXT, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL_TOKENS = (END_OF_TEXT, START, END)
"""The first tokens: what ends a document, and what frames a message of a chat."""

# ChatML, as Qwen and many others have it.
_CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
# Source: the split of cl100k_base, which tiktoken publishes; Llama 3 has it, too.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_NUM_BYTES = 256
_FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")

Kind = Literal["bpe", "unigram"]


@attrs.frozen
class Compression:
    """How short texts become.

    Args:
        name: Of the tokenizer.
        vocab_size: Of it.
        num_bytes: Of the texts in UTF-8.
        num_tokens: Of them, without those that frame a document.
    """

    name: str
    vocab_size: int
    num_bytes: int
    num_tokens: int

    @property
    def bytes_per_token(self) -> float:
        """More is shorter."""
        return self.num_bytes / max(self.num_tokens, 1)


def train_tokenizer(
    texts: Iterable[str], folder: Path, *, vocab_size: int, kind: Kind = "bpe"
) -> HuggingFaceTokenizer.Config:
    """Train a tokenizer, write it to a folder, and return its config.

    The folder has what `tokenizer_in` and transformers read: `tokenizer.json`, its settings with a
    chat template (ChatML), and which tokens end an answer.

    Args:
        texts: What it is trained on, read once.
        folder: Made where it is missing.
        vocab_size: Tokens, special ones among them.
        kind: `bpe` merges the most frequent pairs; `unigram` keeps the pieces that make the texts
            likeliest, and is slower to train.

    Raises:
        DataError: The vocabulary is too small for the bytes, the texts are too few for it, or the
            folder has a tokenizer.
    """
    for name in _FILES:
        if (folder / name).exists():
            raise DataError(
                "file already exists", where=str(folder / name), hint="name a new folder"
            )
    least = _NUM_BYTES + len(SPECIAL_TOKENS)
    if vocab_size <= least:
        raise DataError(
            f"vocab_size is {vocab_size}; {least} tokens are bytes and marks already",
            where="vocab_size",
            hint=f"--vocab-size {4096}, or any number above {least}",
        )
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    alphabet = pre_tokenizers.ByteLevel.alphabet()
    shared: dict[str, Any] = {
        "vocab_size": vocab_size,
        "special_tokens": list(SPECIAL_TOKENS),
        "initial_alphabet": alphabet,
        "show_progress": False,
    }
    is_bpe = kind == "bpe"
    made = Tokenizer(models.BPE() if is_bpe else models.Unigram())
    trainer = trainers.BpeTrainer(**shared) if is_bpe else trainers.UnigramTrainer(**shared)
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    made.train_from_iterator(texts, trainer)
    if made.get_vocab_size() < vocab_size and is_bpe:
        raise DataError(
            f"the texts have pairs for {made.get_vocab_size()} tokens only, not for {vocab_size}",
            where="vocab_size",
            hint=f"--vocab-size {made.get_vocab_size()}, or more text",
        )
    folder.mkdir(parents=True, exist_ok=True)
    ends = [made.token_to_id(END_OF_TEXT), made.token_to_id(END)]
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END_OF_TEXT,
        "pad_token": END_OF_TEXT,
        "clean_up_tokenization_spaces": False,
        "chat_template": _CHAT_TEMPLATE,
    }
    texts_of_files = made.to_str(pretty=True), _json(settings), _json({"eos_token_id": ends})
    for name, text in zip(_FILES, texts_of_files, strict=True):
        write_whole(folder / name, text)
    return tokenizer_in(folder)


def _json(values: Any) -> str:
    return json.dumps(values, indent=2) + "\n"


def training_texts(source: Source, validation_fraction: float, max_bytes: int) -> Iterator[str]:
    """Yield the texts that are trained on, in their order, until there are so many bytes.

    Raises:
        DataError: The source has tokens and no text.
    """
    total = 0
    for document in source.documents():
        if is_validation(document.name, validation_fraction):
            continue
        text = _text_of(document)
        total += len(text.encode("utf-8", "surrogatepass"))
        if total > max_bytes:
            return
        yield text


def held_out_texts(source: Source, validation_fraction: float, max_bytes: int) -> list[str]:
    """Return the texts that are not trained on, until there are so many bytes."""
    found: list[str] = []
    total = 0
    for document in source.documents():
        if total < max_bytes and is_validation(document.name, validation_fraction):
            found.append(_text_of(document))
            total += len(found[-1])
    return found


def _text_of(document: Document) -> str:
    if document.tokens is not None:
        raise DataError(
            "the source has tokens and no text",
            where=document.name,
            hint="name a source of text, such as a folder of files",
        )
    return document.text


def compression(name: str, tokenizer: Any, texts: list[str]) -> Compression:
    """Return how short a tokenizer makes texts.

    Args:
        name: What to call it.
        tokenizer: A tokenizer of axcore.
        texts: Texts that it was not trained on.
    """
    num_bytes = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
    num_tokens = sum(len(tokenizer.encode(text)) for text in texts)
    return Compression(name, tokenizer.vocab_size, num_bytes, num_tokens)
