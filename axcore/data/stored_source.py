"""A token store as a source: `axcore data build` made it, and training reads it as it is."""

from collections.abc import Iterator
from functools import cached_property

from axcore.config import REQUIRED, config
from axcore.data.corpus import Corpus
from axcore.data.document import Document, Source
from axcore.data.store.manifest import tokenizer_digest
from axcore.data.store.reader import TokenStoreDirectory, open_store
from axcore.data.tokenizer import Tokenizer


class StoredSource(Source):
    """The documents of a token store.

    Its tokens are mapped into memory, so that opening it takes no time, whatever its size. They
    must be those of the data's own tokenizer, and split as the data ask.
    """

    @config
    class Config(Source.Config):
        """Which store.

        Attributes:
            path: Its folder, relative to the working directory.
        """

        path: str = REQUIRED

    folder_fields = ("path",)

    def open_tokens(self, tokenizer: Tokenizer, validation_fraction: float) -> Corpus:
        """Returns the store's tokens.

        Raises:
            DataError: There is no store, or it was built with another tokenizer or split.
        """
        self._store.check_tokenizer(tokenizer_digest(tokenizer.config))
        self._store.check_split(validation_fraction)
        splits = self._store.splits
        return Corpus(splits["train"], splits["validation"])

    def documents(self) -> Iterator[Document]:
        """Yields every document as its tokens spell it, named by its split and number."""
        tokenizer = self._store.tokenizer()
        for name, split in self._store.splits.items():
            for index in range(split.num_documents):
                yield Document(f"{name}:{index}", tokenizer.decode(split.document(index)))

    def describe(self) -> str:
        """Names the store, and what it was built from."""
        return f"token store {self.config.path} of {self._store.manifest.source}"

    @cached_property
    def _store(self) -> TokenStoreDirectory:
        return open_store(self.config.path)
