"""Cross-entropy under a mesh: each device works on its own tokens, and the gradient of the output
projection is summed over devices once, however many chunks it was computed in.

The vocabulary may be split over mesh axes that tokens are not split over; those are left to the
compiler.

Letters: B batch, T time, D width, V vocabulary.
"""

import math
from collections.abc import Callable
from typing import Any, TypeVar

import attrs
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import PartitionSpec

from axcore.ops import cross_entropy
from axcore.parallel.activations import active_mesh, current_rules, manual_axes
from axcore.parallel.rules import PARAM_RULES, AnyMesh

Sums = tuple[Array, Array]
_Loss = Callable[..., Sums]
_Gradients = tuple[Array, Array, Array]

WIDTH_AXES = PARAM_RULES["embed"]


def cross_entropy_on_each_device(
    x_BTD: Array, w: Array, targets_BT: Array, weights_BT: Array, **choices: Any
) -> Sums:
    """Returns `axcore.ops.cross_entropy` of the same arguments, computed in parts under a mesh.

    Tokens are split as the activation rules split `batch` and `time`; a dimension that does not
    divide stays whole. Every device lays its tokens in one row, so that chunks of them are not
    copied; gets all of `w` that is not split over other mesh axes; and adds up its gradient in
    float32.
    """
    split = _TokenSplit.of(x_BTD)
    if split is None:
        return cross_entropy(x_BTD, w, targets_BT, weights_BT, **choices)

    def loss(x: Array, w: Array, targets: Array, weights: Array) -> Sums:
        tokens = (part.reshape(1, -1, *part.shape[2:]) for part in (x, targets, weights))
        x, targets, weights = tokens
        return cross_entropy(x, w, targets, weights, **choices)

    width_axis = 1 if choices.get("vocabulary_first") else 0
    sums: Sums = _in_parts(loss, split, width_axis)(x_BTD, w, targets_BT, weights_BT)
    return sums


@attrs.frozen
class _TokenSplit:
    """The mesh axes over which the batch and time of one call are split."""

    mesh: AnyMesh
    batch: tuple[str, ...]
    time: tuple[str, ...]

    @classmethod
    def of(cls, x_BTD: Array) -> "_TokenSplit | None":
        """Returns the split that the rules give; None where tokens are not split by this call."""
        mesh = active_mesh()
        if mesh is None:
            return None
        batch, time = (
            _names(axis, mesh, size)
            for axis, size in zip(("batch", "time"), x_BTD.shape[:2], strict=True)
        )
        return cls(mesh, batch, time) if batch or time else None

    @property
    def names(self) -> tuple[str, ...]:
        """All mesh axes that tokens are split over; those first that parameters are split over.

        So gradients that are split over all of them come to stand where their parameters do with
        the least traffic.
        """
        return tuple(sorted((*self.batch, *self.time), key=lambda name: name not in WIDTH_AXES))

    @property
    def ways(self) -> int:
        """Number of parts."""
        return math.prod(self.mesh.shape[name] for name in self.names)

    @property
    def by_token(self) -> Any:
        """How arrays `[B, T, ...]` are split."""
        return _spec(self.batch or None, self.time or None)

    def over_devices(self, body: Callable[..., Any], out_specs: Any) -> Any:
        """Returns a function of a call's arrays that runs `body` on each device's own tokens."""
        sizes_of_1 = {name for name in self.mesh.axis_names if self.mesh.shape[name] == 1}
        return jax.shard_map(
            body,
            mesh=self.mesh,
            in_specs=(self.by_token, _spec(), self.by_token, self.by_token),
            out_specs=out_specs,
            axis_names=(set(self.names) | sizes_of_1) - manual_axes(),
            check_vma=False,
        )


def _names(axis: str, mesh: AnyMesh, size: int) -> tuple[str, ...]:
    free = [name for name in current_rules()[axis] if name not in manual_axes()]
    names = tuple(name for name in free if mesh.shape[name] > 1)
    return () if size % math.prod(mesh.shape[name] for name in names) else names


def _in_parts(loss: _Loss, split: _TokenSplit, width_axis: int) -> Any:
    """Returns `loss` over all devices; its gradients are computed with it, in the same parts."""

    @jax.custom_vjp
    def run(x: Array, w: Array, targets: Array, weights: Array) -> Sums:
        def own_sums(*own: Array) -> Sums:
            return _summed(loss(*own), split)

        sums: Sums = split.over_devices(own_sums, _spec())(x, w, targets, weights)
        return sums

    def forward(x: Array, w: Array, targets: Array, weights: Array) -> tuple[Sums, _Gradients]:
        is_scattered = w.shape[width_axis] % split.ways == 0

        def own_gradients(
            x: Array, w: Array, targets: Array, weights: Array
        ) -> tuple[Sums, _Gradients]:
            total, pull_back, weight = jax.vjp(
                lambda x, w, weights: loss(x, w, targets, weights),
                x,
                w.astype(jnp.float32),
                weights,
                has_aux=True,
            )
            dx, wide, dweights = pull_back(jnp.ones_like(total))
            whole = _scattered(wide, split, width_axis) if is_scattered else _summed(wide, split)
            gradients = (dx, whole.astype(w.dtype), dweights)
            # The gradient of `w` is summed before the backward pass goes on: put off to its end, as
            # compilers like to, each device would keep all of it in float32 until then.
            held: _Gradients = jax.lax.optimization_barrier(gradients)  # type: ignore[no-untyped-call]
            return _summed((total, weight), split), held

        names = split.names if is_scattered else None
        dw_spec = _spec(None, names) if width_axis == 1 else _spec(names, None)
        out_specs = (_spec(), (split.by_token, dw_spec, split.by_token))
        outputs: tuple[Sums, _Gradients] = split.over_devices(own_gradients, out_specs)(
            x, w, targets, weights
        )
        return outputs

    def backward(gradients: _Gradients, scales: Sums) -> tuple[Any, ...]:
        dx, dw, dweights = (
            (scales[0] * one.astype(jnp.float32)).astype(one.dtype) for one in gradients
        )
        no_gradient = np.zeros(dweights.shape, jax.dtypes.float0)
        return dx, dw, no_gradient, dweights + scales[1].astype(dweights.dtype)

    run.defvjp(forward, backward)
    return run


_T = TypeVar("_T")


def _summed(own: _T, split: _TokenSplit) -> _T:
    """Returns the sums over all devices."""
    total: _T = jax.lax.psum(own, split.names)  # type: ignore[no-untyped-call]
    return total


def _scattered(own: Array, split: _TokenSplit, axis: int) -> Array:
    """Returns the part of the sum over all devices that this device keeps."""
    part: Array = jax.lax.psum_scatter(  # type: ignore[no-untyped-call]
        own, split.names, scatter_dimension=axis, tiled=True
    )
    return part


def _spec(*entries: Any) -> Any:
    return PartitionSpec(*entries)  # type: ignore[no-untyped-call]
