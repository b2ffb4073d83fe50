"""Files of tokens as nanoGPT, llm.c and Megatron-LM write them."""

import struct

import numpy as np


def write_nanogpt(path, documents, dtype="uint16"):
    """Writes documents that end with their end token, end to end, as `data/*/prepare.py` does."""
    np.concatenate(documents).astype(dtype).tofile(path)


def write_llm_c(path, documents, dtype="uint16"):
    """Writes a header, then documents that begin with their end token, as `fineweb.py` does."""
    header = np.zeros(256, np.int32)
    header[:3] = 20240520, 1, sum(map(len, documents))
    path.write_bytes(header.tobytes() + np.concatenate(documents).astype(dtype).tobytes())


def write_megatron(prefix, documents, dtype="<u2", code=8):
    """Writes a sequence a document, as `IndexedDatasetBuilder` does with `end_document`."""
    lengths = np.array([len(one) for one in documents], np.int32)
    width = np.dtype(dtype).itemsize
    begins = (np.cumsum(lengths, dtype=np.int64) - lengths) * width
    prefix.with_suffix(".bin").write_bytes(np.concatenate(documents).astype(dtype).tobytes())
    prefix.with_suffix(".idx").write_bytes(
        b"MMIDIDX\x00\x00"
        + struct.pack("<QBQQ", 1, code, len(documents), len(documents) + 1)
        + lengths.tobytes()
        + begins.tobytes()
        + np.arange(len(documents) + 1, dtype=np.int64).tobytes()
    )
