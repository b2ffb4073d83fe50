"""The seam at which attention calls are spread over devices. Ops know of no mesh: who splits arrays
over devices enters a partition, which calls `run_attention` on parts.
"""

from contextlib import AbstractContextManager
from typing import Any, Protocol, cast, runtime_checkable

import jax
from jax import Array

from axcore.ops.attention_kernels import run_attention
from axcore.ops.attention_types import AttentionInputs, AttentionSpec


@runtime_checkable
class AttentionPartition(Protocol):
    """Runs a call in parts; hashable, because programs are traced anew for another."""

    def __call__(
        self, inputs: AttentionInputs, spec: AttentionSpec, *, with_lse: bool
    ) -> tuple[Array, Array]:
        """Return `(o_BTNV, lse_BTN)` of the whole call."""
        ...


_partition: Any = jax.make_user_context(default_value=None)  # type: ignore[no-untyped-call]


def use_attention_partition(partition: AttentionPartition) -> AbstractContextManager[None]:
    """Return a context in which attention calls are run by `partition`."""
    return cast(AbstractContextManager[None], _partition(partition))


def partitioned_attention(
    inputs: AttentionInputs, spec: AttentionSpec, *, with_lse: bool
) -> tuple[Array, Array]:
    """Return `(o_BTNV, lse_BTN)` by the partition in force; outside of any, the call as it is."""
    run = cast(AttentionPartition | None, _partition.value) or run_attention
    return run(inputs, spec, with_lse=with_lse)
