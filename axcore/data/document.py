"""What text comes from: a source yields named documents."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar

import attrs

from axcore.config import Configurable


@attrs.frozen
class Document:
    """One piece of text that is packed, split and attended to on its own.

    Attributes:
        name: What the document is called within its source: a relative path, or `path:line`. It
            decides between training and validation text, so it holds no absolute path.
        text: The whole text.
    """

    name: str
    text: str


class Source(Configurable, ABC):
    """A finite collection of documents.

    Attributes:
        folder_fields: Fields of the config that are paths; where they are relative, a run that is
            opened elsewhere looks below the folder that it was started in.
    """

    folder_fields: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def documents(self) -> Iterator[Document]:
        """Yields every document once, in an order that depends on nothing but the documents.

        Raises:
            DataError: There is nothing to read, or something cannot be read.
        """

    @abstractmethod
    def describe(self) -> str:
        """Says in a few words where the text comes from."""
