"""The memories of one NeuronCore while a kernel runs on it, and how much of each is in use.

Source: AWS Neuron documentation, "Trainium2 Architecture Guide for NKI": SBUF is 24 MiB and PSUM
2 MiB, both in 128 partitions; a partition of PSUM is eight banks of 2 KiB.
"""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum
from typing import Any

import ml_dtypes
import numpy as np

from axcore.errors import KernelError
from axl_trainium.hardware import PARTITIONS, SBUF_PARTITION_BYTES

PSUM_BANK_BYTES = 2 * 1024
PSUM_BANKS = 8

DTYPES = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
    "int32": np.dtype(np.int32),
}

Array = np.ndarray[Any, Any]


class Memory(Enum):
    """Where a tensor is."""

    SBUF = "sbuf"
    PSUM = "psum"
    HBM = "shared_hbm"


class Storage:
    """What one allocation holds, and which of it was written; given back when nothing views it.

    Floats start as NaN and integers as the largest one, so that what is read before it was written
    cannot pass for a result.
    """

    def __init__(self, shape: tuple[int, ...], dtype: str) -> None:
        kind = DTYPES[dtype]
        poison = np.iinfo(kind).max if kind.kind == "i" else np.nan
        self.values: Array = np.full(shape, poison, kind)
        self.written: Array = np.zeros(shape, bool)

    @classmethod
    def holding(cls, values: Array) -> "Storage":
        """Return storage of an argument."""
        storage = cls.__new__(cls)
        storage.values = values
        storage.written = np.ones(values.shape, bool)
        return storage


class Machine:
    """Bytes in use in each partition of SBUF, and banks in use of PSUM."""

    def __init__(self) -> None:
        self.sbuf_bytes = 0
        self.psum_banks = 0

    def allocate(self, shape: tuple[int, ...], dtype: str, memory: Memory) -> Storage:
        """Return new storage.

        Raises:
            KernelError: The memory has no room for it, or no such tile can be.
        """
        storage = Storage(shape, dtype)
        if memory is Memory.HBM:
            return storage
        if shape[0] > PARTITIONS:
            raise KernelError(
                f"a tile {shape} in {memory.value} has {shape[0]} partitions; there are "
                f"{PARTITIONS}.",
                hint="cut the first dimension into tiles",
            )
        row_bytes = int(np.prod(shape[1:], dtype=int)) * storage.values.itemsize
        if memory is Memory.SBUF:
            self._take_sbuf(storage, row_bytes, shape)
        else:
            self._take_psum(storage, row_bytes, shape)
        return storage

    def _take_sbuf(self, storage: Storage, row_bytes: int, shape: tuple[int, ...]) -> None:
        if self.sbuf_bytes + row_bytes > SBUF_PARTITION_BYTES:
            raise KernelError(
                f"a tile {shape} takes {row_bytes} bytes of each partition of sbuf, where "
                f"{self.sbuf_bytes} of {SBUF_PARTITION_BYTES} are in use.",
                hint="take smaller tiles",
            )
        self.sbuf_bytes += row_bytes
        weakref.finalize(storage, self._give_sbuf, row_bytes)

    def _take_psum(self, storage: Storage, row_bytes: int, shape: tuple[int, ...]) -> None:
        if row_bytes > PSUM_BANK_BYTES:
            raise KernelError(
                f"a tile {shape} takes {row_bytes} bytes of each partition of psum; a bank has "
                f"{PSUM_BANK_BYTES}.",
                hint="take tiles of at most 512 float32 in the free dimension",
            )
        if self.psum_banks == PSUM_BANKS:
            raise KernelError(
                f"a tile {shape} in psum: all {PSUM_BANKS} banks are in use.",
                hint="copy results to sbuf before more are begun",
            )
        self.psum_banks += 1
        weakref.finalize(storage, self._give_psum)

    def _give_sbuf(self, row_bytes: int) -> None:
        self.sbuf_bytes -= row_bytes

    def _give_psum(self) -> None:
        self.psum_banks -= 1


_machine: ContextVar[Machine | None] = ContextVar("axl_trainium_machine", default=None)


@contextmanager
def running() -> Iterator[Machine]:
    """Give a machine of its own to the kernel that runs while the context is open."""
    machine = Machine()
    token = _machine.set(machine)
    try:
        with np.errstate(all="ignore"):
            yield machine
    finally:
        _machine.reset(token)


def current_machine() -> Machine:
    """Return the machine that the kernel runs on.

    Raises:
        KernelError: No kernel runs.
    """
    machine = _machine.get()
    if machine is None:
        raise KernelError(
            "nki.language was used outside of a kernel.", hint="call the function under @nki.jit"
        )
    return machine
