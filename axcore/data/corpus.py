"""A source read, tokenized and split: what packing starts from."""

from collections.abc import Iterable, Iterator
from typing import Any

import attrs
from numpy.typing import NDArray

from axcore.data.document import Document, Source
from axcore.data.packing import TokenStore
from axcore.data.split import is_heldout
from axcore.data.tokenizer import Tokenizer
from axcore.errors import DataError

_CHARACTERS_A_GROUP = 1 << 20


@attrs.frozen(eq=False)
class Corpus:
    """The documents to train on and those held out, as tokens."""

    train: TokenStore
    heldout: TokenStore


def read_corpus(source: Source, tokenizer: Tokenizer, heldout_fraction: float) -> Corpus:
    """Reads every document of a source once; holds tokens, but never all of the text.

    Raises:
        DataError: There is no document to train on; or none is held out though a fraction is
            asked for.
    """
    train: list[NDArray[Any]] = []
    heldout: list[NDArray[Any]] = []
    for group in _groups(source.documents()):
        encoded = tokenizer.encode_documents([document.text for document in group])
        for document, tokens in zip(group, encoded, strict=True):
            (heldout if is_heldout(document.name, heldout_fraction) else train).append(tokens)
    corpus = Corpus(TokenStore.of(train), TokenStore.of(heldout))
    _check(corpus, source, heldout_fraction)
    return corpus


def _groups(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """Yields runs of documents of about a megabyte: tokenizers are faster on many at a time."""
    group: list[Document] = []
    size = 0
    for document in documents:
        group.append(document)
        size += len(document.text)
        if size >= _CHARACTERS_A_GROUP:
            yield group
            group, size = [], 0
    if group:
        yield group


def _check(corpus: Corpus, source: Source, heldout_fraction: float) -> None:
    num_train, num_heldout = corpus.train.num_documents, corpus.heldout.num_documents
    if num_train + num_heldout == 0:
        raise DataError(
            f"There is no text to train on: no document of {source.describe()} has any.",
            mend="Point the source at text.",
        )
    if num_train == 0:
        raise DataError(
            f"There is no text to train on: all {num_heldout} documents of {source.describe()} "
            f"are held out (heldout_fraction is {heldout_fraction}).",
            mend="Lower heldout_fraction, or give more documents: whole documents are held out.",
        )
    if num_heldout == 0 and heldout_fraction > 0:
        raise DataError(
            f"No document is held out: heldout_fraction is {heldout_fraction}, and "
            f"{source.describe()} has {num_train} documents.",
            mend="Raise heldout_fraction, give more documents, or set heldout_fraction=0 to train "
            "without held-out text.",
        )
