"""Which documents are held out of training: decided by each document's name alone."""

from hashlib import blake2b

_HASH_BYTES = 8


def is_validation(name: str, fraction: float) -> bool:
    """Says whether a document is held out.

    The name's hash is compared with `fraction`. So the answer does not depend on the other
    documents, on their order, on the seed, on the machine or on the Python process, and a larger
    fraction only ever adds validation documents.

    Args:
        name: Name of the document within its source.
        fraction: Share of the documents to hold out, in [0, 1).
    """
    digest = blake2b(name.encode("utf-8", "surrogateescape"), digest_size=_HASH_BYTES).digest()
    return int.from_bytes(digest, "big") < fraction * 2.0 ** (8 * _HASH_BYTES)
