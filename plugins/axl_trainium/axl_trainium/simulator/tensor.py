"""`Tensor`: a view of storage, as kernels see it."""

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from axcore.errors import KernelError
from axl_trainium.simulator.machine import Array, Memory, Storage

PARTITION_STEP = 32
"""Engines read and write from partition 0, 32, 64 or 96 on."""


class LoopIndex:
    """The index of a loop that the hardware runs: known to the kernel's author only by name."""

    def __init__(self, value: int) -> None:
        self._value = value

    def offset(self, stride: int) -> int:
        """Return the place in a tensor, for `Tensor.ap`."""
        return self._value * stride

    def _refuse(self, *_: object) -> Any:
        raise KernelError(
            "the index of nl.fori_loop is known on the chip only; arithmetic, comparisons and "
            "slices with it are not.",
            hint="pass it as scalar_offset to Tensor.ap",
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __floordiv__ = _refuse
    __mod__ = __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = _refuse
    __bool__ = __index__ = __int__ = __hash__ = _refuse


class Tensor:
    """A view: `shape`, `dtype`, the memory that it is in, and whether the kernel may write it."""

    def __init__(
        self, storage: Storage, memory: Memory, *, values: Array, written: Array, is_argument: bool
    ) -> None:
        self._storage = storage
        self.memory = memory
        self.values = values
        self.written = written
        self.is_argument = is_argument

    @classmethod
    def of(cls, storage: Storage, memory: Memory, *, is_argument: bool = False) -> "Tensor":
        """Return the view of all of a storage."""
        return cls(
            storage,
            memory,
            values=storage.values,
            written=storage.written,
            is_argument=is_argument,
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes; on chip, the first is partitions."""
        return self.values.shape

    @property
    def dtype(self) -> str:
        """As `nki.language` names it."""
        return self.values.dtype.name

    def __getitem__(self, index: Any) -> "Tensor":
        parts = index if isinstance(index, tuple) else (index,)
        for part, size in zip(parts, self.shape, strict=False):
            _check_slice(part, size, self.shape)
        if self.memory is not Memory.HBM and (parts[0].start or 0) % PARTITION_STEP:
            raise KernelError(
                f"a view of a tile {self.shape} begins at partition {parts[0].start}; engines "
                f"begin at multiples of {PARTITION_STEP}."
            )
        return self._view(self.values[parts], self.written[parts])

    def __bool__(self) -> bool:
        raise KernelError(
            "a kernel asked whether a tensor is true; what it contains is known on the chip only.",
            hint="branch on shapes and static arguments, and mask values instead",
        )

    def ap(
        self,
        pattern: list[list[int]],
        offset: int | None = None,
        scalar_offset: LoopIndex | None = None,
        vector_offset: None = None,
        indirect_dim: int = 0,
        dtype: None = None,
    ) -> "Tensor":
        """Return a view by strides: `[[stride, count], ...]` from `offset` in elements.

        `scalar_offset` counts in strides of dimension `indirect_dim`.
        """
        if self.memory is not Memory.HBM or vector_offset is not None or dtype is not None:
            raise KernelError("the simulator knows ap of tensors in HBM by scalar offset only.")
        if self.shape != self._storage.values.shape:
            raise KernelError(f"ap of a view {self.shape} of a tensor; take it of the tensor.")
        start = offset or 0
        if scalar_offset is not None:
            start += scalar_offset.offset(int(np.prod(self.shape[indirect_dim + 1 :], dtype=int)))
        last = start + sum(stride * (count - 1) for stride, count in pattern)
        if start < 0 or last >= self.values.size:
            raise KernelError(
                f"ap reads elements {start} to {last} of a tensor {self.shape} of "
                f"{self.values.size}."
            )
        shape = tuple(count for _, count in pattern)
        return self._view(*(_strided(x, pattern, start, shape) for x in self._arrays()))

    def read(self, what: str) -> Array:
        """Return the values, for an instruction.

        Raises:
            KernelError: Some were never written.
        """
        if not self.written.all():
            place = tuple(int(i) for i in np.argwhere(~self.written)[0])
            raise KernelError(
                f"{what} reads element {place} of a tile {self.shape} in {self.memory.value} that "
                "was never written.",
                hint="write it first, by memset for example",
            )
        return self.values

    def write(self, values: Array, what: str) -> None:
        """Store values, rounded to the tensor's dtype.

        Raises:
            KernelError: Shapes differ, or the tensor is an argument of the kernel.
        """
        if values.shape != self.shape:
            raise KernelError(f"{what} gives {values.shape}; dst is {self.shape}.")
        if self.is_argument:
            raise KernelError(
                f"{what} writes to an argument of the kernel.",
                hint="allocate the result in nl.shared_hbm and return it",
            )
        self.values[...] = values.astype(self.values.dtype)
        self.written[...] = True

    def _arrays(self) -> tuple[Array, Array]:
        return self._storage.values, self._storage.written

    def _view(self, values: Array, written: Array) -> "Tensor":
        return Tensor(
            self._storage,
            self.memory,
            values=values,
            written=written,
            is_argument=self.is_argument,
        )


def _check_slice(part: Any, size: int, shape: tuple[int, ...]) -> None:
    if not isinstance(part, slice) or part.step is not None:
        raise KernelError(f"a tensor {shape} was indexed by {part!r}; expected slices start:stop.")
    start, stop = part.start or 0, size if part.stop is None else part.stop
    if not 0 <= start < stop <= size:
        raise KernelError(
            f"a tensor {shape} was sliced {start}:{stop} where it has {size}.",
            hint="clip the tile to the tensor with min()",
        )


def _strided(x: Array, pattern: list[list[int]], start: int, shape: tuple[int, ...]) -> Array:
    strides = tuple(stride * x.itemsize for stride, _ in pattern)
    return as_strided(x.reshape(-1)[start:], shape, strides)
