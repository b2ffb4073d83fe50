"""The spec of a batch of packed rows."""

from typing import Protocol

from axcore.data.packing import PackedRows
from axcore.module import ArraySpec, BatchSpec


class PackedShape(Protocol):
    """What decides the arrays of a batch of packed rows."""

    @property
    def batch_size(self) -> int: ...  # noqa: D102

    @property
    def seq_len(self) -> int: ...  # noqa: D102

    @property
    def masks_documents(self) -> bool: ...  # noqa: D102


def packed_batch_spec(cfg: PackedShape, vocab_size: int) -> BatchSpec:
    """Returns the arrays of `[batch, time]` that `PackedRows.batch` makes."""
    num_values = dict.fromkeys(("tokens", "targets"), vocab_size)
    return BatchSpec(
        arrays={
            name: ArraySpec(
                shape=(cfg.batch_size, cfg.seq_len),
                axes=("batch", "time"),
                dtype=dtype,
                num_values=num_values.get(name),
            )
            for name, dtype in PackedRows.dtypes(cfg.masks_documents).items()
        },
        unit="token",
        num_units=cfg.batch_size * cfg.seq_len,
        sized_by={"batch": "batch_size", "time": "seq_len"},
    )
