"""How the arrays of an attention call are split over a mesh: by rows, by time, and by heads."""

import math
from collections.abc import Callable
from typing import Any

import attrs
import jax
from jax.sharding import PartitionSpec

from axcore.ops import AttentionInputs
from axcore.parallel.activations import active_mesh, current_rules, manual_axes
from axcore.parallel.rules import AnyMesh

Names = tuple[str, ...]


@attrs.frozen
class AttentionSplit:
    """The mesh axes over which rows, time and heads of one call are split.

    Query heads are split as key heads are, or else a device would lack the keys it needs.
    """

    mesh: AnyMesh
    rows: Names
    time: Names
    heads: Names

    @classmethod
    def of(cls, inputs: AttentionInputs) -> "AttentionSplit | None":
        """Returns the split that the activation rules give; None outside of a mesh.

        A dimension that does not divide stays whole, and so does what a `shard_map` around this
        has split already.
        """
        mesh = active_mesh()
        if mesh is None:
            return None
        q_BTNH, k_BSKH = inputs.q_BTNH, inputs.k_BSKH
        return cls(
            mesh,
            rows=_names("batch", mesh, q_BTNH.shape[0]),
            time=_names("time", mesh, math.gcd(q_BTNH.shape[1], k_BSKH.shape[1])),
            heads=_names("kv_heads", mesh, k_BSKH.shape[2]),
        )

    def ways(self, names: Names) -> int:
        """Returns over how many devices something split by these axes is spread."""
        return math.prod(self.mesh.shape[name] for name in names)

    @property
    def free_axes(self) -> frozenset[str]:
        """The mesh axes that no `shard_map` around this handles by hand."""
        return frozenset(self.mesh.axis_names) - manual_axes()

    def specs(self, inputs: AttentionInputs) -> AttentionInputs:
        """Returns how each array of the call is split; None where there is none."""
        rows, time, heads = (names or None for names in (self.rows, self.time, self.heads))
        whole = AttentionInputs(
            q_BTNH=_spec(rows, time, heads, None),
            k_BSKH=_spec(rows, time, heads, None),
            v_BSKV=_spec(rows, time, heads, None),
            q_segments_BT=_spec(rows, time),
            k_segments_BS=_spec(rows, time),
            k_start_BT=_spec(rows, time),
            k_end_BT=_spec(rows, time),
            query_offset_B=_spec(rows),
            bias_BNTS=_bias_spec(inputs, (rows, heads, time, None)),
            sinks_N=_spec(heads),
            dropout_seeds_BN=_spec(rows, heads),
        )
        specs: dict[str, Any] = {
            name: None if array is None else getattr(whole, name)
            for name, array in inputs._asdict().items()
        }
        return AttentionInputs(**specs)

    def output_specs(self) -> tuple[Any, Any]:
        """Returns how the output `[B, T, N, V]` and the log-sum-exp `[B, T, N]` are split."""
        entries = [names or None for names in (self.rows, self.time, self.heads)]
        return _spec(*entries, None), _spec(*entries)

    def in_parts(self, fn: Callable[..., Any], inputs: AttentionInputs, out_specs: Any) -> Any:
        """Returns `fn(inputs)`, which every device computes for its own parts."""
        mapped = jax.shard_map(
            fn,
            mesh=self.mesh,
            in_specs=(self.specs(inputs),),
            out_specs=out_specs,
            axis_names=set(self.free_axes),
            check_vma=False,
        )
        return mapped(inputs)


def _names(axis: str, mesh: AnyMesh, size: int) -> Names:
    """Returns the mesh axes that split a dimension of this size, none where it does not divide."""
    done = manual_axes()
    rule = current_rules()[axis]
    names = tuple(name for name in rule if mesh.shape[name] > 1 and name not in done)
    return () if size % math.prod(mesh.shape[name] for name in names) else names


def _bias_spec(inputs: AttentionInputs, entries: tuple[Any, ...]) -> Any:
    if inputs.bias_BNTS is None:
        return None
    shape = inputs.bias_BNTS.shape
    return _spec(*(None if size == 1 else x for size, x in zip(shape, entries, strict=True)))


def _spec(*entries: Any) -> Any:
    return PartitionSpec(*entries)  # type: ignore[no-untyped-call]
