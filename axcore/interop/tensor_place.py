"""`TensorPlace`: where a tensor is in a file."""

import math
from pathlib import Path
from typing import Any

import attrs
import numpy as np


@attrs.frozen
class TensorPlace:
    """Where a tensor is.

    Args:
        file: The file.
        dtype: Of its numbers.
        shape: Its shape.
        begin: Its first byte in the file.
    """

    file: Path
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    begin: int

    @property
    def nbytes(self) -> int:
        """Its size."""
        return math.prod(self.shape) * self.dtype.itemsize

    def read(self) -> np.ndarray:
        """Return the tensor, memory-mapped."""
        if not self.nbytes:
            return np.empty(self.shape, self.dtype)
        # Mapped: a model may be larger than memory, and each process reads its own part only.
        raw = np.memmap(self.file, np.uint8, "r", self.begin, (self.nbytes,))
        return raw.view(np.ndarray).view(self.dtype).reshape(self.shape)
