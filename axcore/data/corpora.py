"""A source's tokens: out of a store where it is one or is large, and read into memory otherwise."""

import sys
from hashlib import blake2b

from axcore.data.cache import cache_folder
from axcore.data.corpus import Corpus, check_corpus, read_corpus
from axcore.data.document import Source
from axcore.data.file_source import FileSource
from axcore.data.store.build import build_store
from axcore.data.store.plan import plan_identity, source_size
from axcore.data.store.progress import ProgressLine
from axcore.data.tokenizer import Tokenizer

LARGEST_IN_MEMORY = 64 << 20
"""Bytes of a source that every process tokenizes and holds by itself, which takes seconds."""


def open_corpus(source: Source, tokenizer: Tokenizer, validation_fraction: float) -> Corpus:
    """Returns the tokens of a source.

    Files of more than `LARGEST_IN_MEMORY` bytes in all are built into a store in the cache, and
    found there the next time.

    Raises:
        DataError: The source cannot be read, or there is nothing to train on.
    """
    corpus = source.open_tokens(tokenizer, validation_fraction)
    if corpus is not None:
        check_corpus(corpus, source, validation_fraction)
        return corpus
    if isinstance(source, FileSource) and source_size(source) > LARGEST_IN_MEMORY:
        return _cached(source, tokenizer, validation_fraction)
    return read_corpus(source, tokenizer, validation_fraction)


def _cached(source: FileSource, tokenizer: Tokenizer, validation_fraction: float) -> Corpus:
    identity = plan_identity(source, tokenizer.config, validation_fraction)
    key = blake2b(repr(sorted(identity.items())).encode(), digest_size=16).hexdigest()
    folder = cache_folder() / key
    print(f"data: tokens of {source.describe()} are kept in {folder}", file=sys.stderr)
    with ProgressLine() as line:
        store = build_store(
            source,
            tokenizer.config,
            folder,
            validation_fraction=validation_fraction,
            report=line.show,
        )
    return Corpus(store.splits["train"], store.splits["validation"])
