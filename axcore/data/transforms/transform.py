"""`Transform`: changes a document, or leaves it out; the same way wherever and whenever it runs."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, ClassVar

import attrs
import numpy as np

from axcore.config import Configurable
from axcore.data.document import Document
from axcore.data.tokenizers.tokenizer import Tokenizer
from axcore.plugins import attributed, wrong_method_return


@attrs.frozen
class Dropped:
    """A document is left out, and why; equal reasons are counted together."""

    reason: str


@attrs.frozen
class TransformTools:
    """What a transform may use in addition to the document.

    Attributes:
        tokenizer: The data's own.
        place: Of the transform among those of its source, so that two sample different numbers.
    """

    tokenizer: Tokenizer
    place: int

    def rng(self, seed: int, document: Document) -> np.random.Generator:
        """Return random numbers that depend on the seed and on the document's name alone.

        So they do not depend on other documents, on their order, or on who reads which of them.
        """
        # The place is in it, or two transforms of one seed would sample the same numbers.
        what = f"{seed} {self.place} {document.name}".encode("utf-8", "surrogateescape")
        return np.random.default_rng(int.from_bytes(blake2b(what, digest_size=16).digest()))


class Transform(Configurable, ABC):
    """Changes documents one by one; pure.

    Attributes:
        replaces_text: Whether it makes a document out of other fields than the source's `field`,
            which records then need not have.
        makes_loss_mask: Whether it makes documents of which the loss counts some tokens only.
        marks_duplicates: Whether it gives every document a key.
    """

    replaces_text: ClassVar[bool] = False
    makes_loss_mask: ClassVar[bool] = False
    marks_duplicates: ClassVar[bool] = False

    @property
    def makes_loss_weights(self) -> bool:
        """Whether a store supports weights of tokens other than 0 and 1."""
        return False

    @property
    def fields(self) -> tuple[str, ...]:
        """Fields of a record that it reads, apart from the text; a record without one is bad."""
        return ()

    @property
    def optional_fields(self) -> tuple[str, ...]:
        """Fields that it reads where a record has them."""
        return ()

    @abstractmethod
    def apply(
        self, document: Document, tools: TransformTools
    ) -> Document | Sequence[Document] | Dropped:
        """Return a document in its place, or several, of the same name, or why there is none.

        Raises:
            DataError: The record is bad.
        """


def apply_all(
    transforms: Sequence[Transform], document: Document, tokenizer: Tokenizer
) -> list[Document] | Dropped:
    """Return what all transforms make of a document, one after another.

    Raises:
        DataError: The record is bad.
    """
    documents, dropped = [document], None
    for place, transform in enumerate(transforms):
        made: list[Document] = []
        for one in documents:
            found = _applied(transform, one, TransformTools(tokenizer, place))
            if isinstance(found, Dropped):
                dropped = found
            else:
                made += found
        if dropped is not None and not made:
            return dropped
        documents = made
    num_left = len(documents) - 1
    return [attrs.evolve(one, num_left=num_left - n) for n, one in enumerate(documents)]


def _applied(
    transform: Transform, document: Document, tools: TransformTools
) -> list[Document] | Dropped:
    """Return what a transform makes of a document, which somebody else may have written."""
    with attributed(transform, "apply"):
        made = transform.apply(document, tools)
    if isinstance(made, Dropped):
        return made
    several: list[Any] = list(made) if isinstance(made, list | tuple) else [made]
    # The name decides the split, so a transform must not
    # change it: text of one record would be on both sides.
    found = [one for one in several if isinstance(one, Document) and one.name == document.name]
    if not found or len(found) < len(several):
        expected = "a Document of the same name, or several, or a Dropped"
        raise wrong_method_return(transform, "apply", made, expected)
    if len(found) > 1 and document.key is not None:
        # Each is a duplicate of its like alone.
        keys = [blake2b(b"%d" % n, key=document.key, digest_size=16) for n in range(len(found))]
        found = [attrs.evolve(one, key=key.digest()) for one, key in zip(found, keys, strict=True)]
    return found
