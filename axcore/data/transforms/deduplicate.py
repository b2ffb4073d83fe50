"""`Deduplicate`: of equal documents the first one stays, in the order of the source."""

from hashlib import blake2b

import attrs

from axcore.config import config
from axcore.data.document import Document
from axcore.data.loss_weights import plain_tokens
from axcore.data.transforms.transform import Dropped, Transform, TransformTools

KEY_BYTES = 16
DUPLICATE = "equal to an earlier document"


class Deduplicate(Transform):
    """Marks each document by a hash of 128 bits; whoever reads all of them leaves equal ones out.

    Documents are compared as they are where this transform is in the list.
    """

    @config
    class Config(Transform.Config):
        """What counts as equal.

        Attributes:
            ignores_case_and_space: Whether documents are equal that differ in upper and lower case
                and in white space only.
        """

        ignores_case_and_space: bool = False

    marks_duplicates = True

    def apply(self, document: Document, tools: TransformTools) -> Document | Dropped:
        """Adds the key."""
        text = document.text
        if self.config.ignores_case_and_space:
            text = " ".join(text.casefold().split())
        digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=KEY_BYTES)
        if document.tokens is not None:
            digest.update(b"\0" + plain_tokens(document.tokens).astype("<i8").tobytes())
        return attrs.evolve(document, key=digest.digest())
