"""Documents: what a source yields, and which of them are held out for validation."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, ClassVar

import attrs
from numpy.typing import NDArray

from axcore.config import Configurable

if TYPE_CHECKING:
    from axcore.data.packing.corpus import Corpus
    from axcore.data.tokenizers.tokenizer import Tokenizer


# Eight bytes: a fraction of a corpus is exact to
# 2**-64, and the comparison is one of whole numbers.
_HASH_BYTES = 8


@attrs.frozen
class Document:
    """One piece of text that is packed, split and attended to on its own.

    Attributes:
        name: What the document is called within its source: a relative path, or `path:line`. It
            decides between training and validation text, so it contains no absolute path.
        text: The full text.
        tokens: [N] integers, where the source has tokens and no text; what frames a document is
            among them.
        offset: Where it begins in its file: a byte, or the number of its row.
        fields: What else its record contains that a transform asks for.
        loss_weights: [N] what each of its tokens weighs in the loss, booleans or floats of at least
            0; None for 1 each.
        key: Documents of equal keys are duplicates; None where duplicates stay.
        num_left: How many documents of the same record follow.
    """

    name: str
    text: str
    tokens: NDArray[Any] | None = attrs.field(default=None, eq=False, repr=False)
    offset: int = attrs.field(default=0, eq=False, repr=False)
    fields: Mapping[str, Any] = attrs.field(factory=dict, eq=False, repr=False)
    loss_weights: NDArray[Any] | None = attrs.field(default=None, eq=False, repr=False)
    key: bytes | None = attrs.field(default=None, eq=False, repr=False)
    num_left: int = attrs.field(default=0, eq=False, repr=False)

    def __len__(self) -> int:
        """Return its characters, or tokens where it has no text."""
        return len(self.text) if self.tokens is None else len(self.tokens)


class Source(Configurable, ABC):
    """A finite collection of documents.

    Attributes:
        folder_fields: Fields of the config that are paths; where they are relative, a run that is
            opened elsewhere looks below the folder that it was started in.
    """

    folder_fields: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def documents(self) -> Iterator[Document]:
        """Yield every document once, in an order that depends on nothing but the documents.

        Raises:
            DataError: There is nothing to read, or something cannot be read.
        """

    @abstractmethod
    def describe(self) -> str:
        """Say in a few words where the text comes from."""

    def open_tokens(self, tokenizer: "Tokenizer", validation_fraction: float) -> "Corpus | None":
        """Return the tokens of a source that has them already; None where there is only text.

        Raises:
            DataError: They are not those of this tokenizer, or are split in another way.
        """
        return None


def is_validation(name: str, fraction: float) -> bool:
    """Return whether a document is held out.

    The name's hash is compared with `fraction`. So the answer does not depend on the other
    documents, on their order, on the seed, on the machine or on the Python process, and a larger
    fraction only ever adds validation documents.

    Args:
        name: Name of the document within its source.
        fraction: Share of the documents to hold out, in [0, 1).
    """
    # surrogateescape: a file's name may be not UTF-8, and must still hash the same everywhere.
    digest = blake2b(name.encode("utf-8", "surrogateescape"), digest_size=_HASH_BYTES).digest()
    return int.from_bytes(digest, "big") < fraction * 2.0 ** (8 * _HASH_BYTES)
