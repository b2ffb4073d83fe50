"""A source read, tokenized and split: what packing starts from."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from axcore.data.document import Document, Source, is_validation
from axcore.data.packing.packing import TokenReader, TokenStore, weigh_tokens
from axcore.data.sources.file_source import FileSource
from axcore.data.tokenizers.tokenizer import Tokenizer
from axcore.errors import DataError
from axcore.plugins import attributed, of_plugin, wrong_method_return

_CHARACTERS_A_GROUP = 1 << 20

_MAX_EMPTY = 100_000
"""After how many documents without text, and none with any, a source is given up as endless."""


@attrs.frozen(eq=False)
class Corpus:
    """The documents to train on and those held out, as tokens."""

    train: TokenReader
    validation: TokenReader


def read_corpus(source: Source, tokenizer: Tokenizer, validation_fraction: float) -> Corpus:
    """Read every document of a source once, into memory; holds tokens, but never all of the text.

    Raises:
        DataError: There is no document to train on; or none is held out though a fraction is
            asked for.
    """
    train: list[NDArray[Any]] = []
    validation: list[NDArray[Any]] = []
    has_text = False
    for group in groups(_documents(source, tokenizer)):
        has_text = has_text or any(map(len, group))
        encoded = encode_documents(group, tokenizer)
        for document, tokens in zip(group, encoded, strict=True):
            (validation if is_validation(document.name, validation_fraction) else train).append(
                tokens
            )
    corpus = Corpus(TokenStore.of(train), TokenStore.of(validation))
    check_corpus(corpus, source, validation_fraction, has_text=has_text)
    return corpus


def _documents(source: Source, tokenizer: Tokenizer) -> Iterator[Document]:
    with attributed(source, "describe"):
        described: object = source.describe()
    if not isinstance(described, str):
        raise wrong_method_return(source, "describe", described, "text")
    expected = "an iterator over Document"
    with attributed(source, "documents"):
        if isinstance(source, FileSource):
            documents: object = source.transformed(tokenizer)
        else:
            documents = source.documents()
        if not isinstance(documents, Iterable):
            raise wrong_method_return(source, "documents", documents, expected)
        num_empty = 0
        for document in documents:
            if not isinstance(document, Document):
                raise wrong_method_return(source, "documents", document, expected)
            if num_empty < _MAX_EMPTY:  # no more are counted once one has text
                num_empty = _MAX_EMPTY if len(document) else num_empty + 1
                if num_empty == _MAX_EMPTY and not len(document):
                    raise _only_empty(source)
            yield document


def _only_empty(source: Source) -> DataError:
    return DataError(
        f"None of the first {_MAX_EMPTY:,} documents of {source.describe()}{of_plugin(source)} "
        "has text.",
        hint="Point the source at text, or correct it so that it ends.",
    )


def groups(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """Yield runs of documents of about a megabyte: tokenizers are faster on many at a time."""
    group: list[Document] = []
    size = 0
    for document in documents:
        group.append(document)
        size += len(document)
        if size >= _CHARACTERS_A_GROUP:
            yield group
            group, size = [], 0
    if group:
        yield group


def encode_documents(group: Sequence[Document], tokenizer: Tokenizer) -> list[NDArray[Any]]:
    """Return the tokens of documents, of the narrowest width that holds the vocabulary.

    Those of a document with weights say what each weighs; see `axcore.data.packing.packing`.

    Raises:
        DataError: A document that has tokens has one that is not the tokenizer's.
    """
    if all(document.tokens is None for document in group):
        return tokenizer.encode_documents([document.text for document in group])
    return [_weighed(document, _checked(document, tokenizer)) for document in group]


def _weighed(document: Document, tokens: NDArray[Any]) -> NDArray[Any]:
    weights = document.loss_weights
    return tokens if weights is None else weigh_tokens(tokens, weights)


def _checked(document: Document, tokenizer: Tokenizer) -> NDArray[Any]:
    tokens = document.tokens
    if tokens is None:
        return tokenizer.encode_documents([document.text])[0]
    if len(tokens) and not 0 <= tokens.min() <= tokens.max() < tokenizer.vocab_size:
        raise DataError(
            f"{document.name} has the tokens {tokens.min()} to {tokens.max()}; the tokenizer's are "
            f"0 to {tokenizer.vocab_size - 1}.",
            where=document.name,
            hint="Set data.tokenizer to the one that made the file, and the source's dtype.",
        )
    return tokens.astype(np.min_scalar_type(tokenizer.vocab_size - 1))


def check_corpus(
    corpus: Corpus, source: Source, validation_fraction: float, *, has_text: bool = True
) -> None:
    """Check that there is something to train on, and that documents are held out if any should be.

    Raises:
        DataError: There is not, or they are not.
    """
    if not has_text:
        raise DataError(
            f"There is no text to train on: no document of {source.describe()}"
            f"{of_plugin(source)} has any.",
            hint="Point the source at text.",
        )
    num_train, num_validation = corpus.train.num_documents, corpus.validation.num_documents
    if num_train == 0:
        raise DataError(
            f"There is no text to train on: all {num_validation} documents of {source.describe()} "
            f"are held out (validation_fraction is {validation_fraction}).",
            hint="Lower validation_fraction, or give more: documents are held out in full.",
        )
    if num_validation == 0 and validation_fraction > 0:
        raise DataError(
            f"No document is held out: validation_fraction is {validation_fraction}, and "
            f"{source.describe()} has {num_train} documents.",
            hint="Raise validation_fraction, give more documents, or set validation_fraction=0 to "
            "train without validation text.",
        )
