"""Cross-entropy with its tokens split over devices, whatever kernels compute it.

Each device works on its own tokens, and the gradient of the output projection is summed over
devices once, however many chunks it was computed in. The vocabulary may be split over mesh axes
that tokens are not split over; those are left to the kernels, or to the compiler.

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

from axcore.ops.cross_entropy.types import CrossEntropyInputs, CrossEntropySums
from axcore.parallel.rules import PARAM_RULES
from axcore.parallel.shard_op import Partition

Sums = CrossEntropySums
_Loss = Callable[..., Sums]
_Gradients = tuple[Array, Array, Array]

WIDTH_AXES = PARAM_RULES["embed"]


def split_over_tokens(loss: _Loss, inputs: CrossEntropyInputs, *, width_axis: int) -> Sums:
    """Return `loss(*inputs)`, computed in parts under a mesh.

    Tokens are split as the activation rules split `batch` and `time`; a dimension that does not
    divide stays whole. Every device lays its tokens in one row, so that chunks of them are not
    copied; gets all of `w` that is not split over other mesh axes; and adds up its gradient in
    float32.

    Args:
        loss: From arrays as those of `inputs` to the sums, of which only that of the loss has
            gradients.
        inputs: The call's arrays; `x` is `[B, T, D]` where it is to be split.
        width_axis: The dimension of `w` that is D.
    """
    if inputs.x_BTD.ndim != 3:
        return loss(*inputs)
    split = _TokenSharding(Partition.of(("batch", "time"), inputs.x_BTD, ("batch", "time", None)))
    if not split.names:
        return loss(*inputs)

    def in_one_row(x: Array, w: Array, targets: Array, weights: Array) -> Sums:
        tokens = (part.reshape(1, -1, *part.shape[2:]) for part in (x, targets, weights))
        x, targets, weights = tokens
        return loss(x, w, targets, weights)

    sums: Sums = _in_parts(in_one_row, split, width_axis)(*inputs)
    return sums


@attrs.frozen
class _TokenSharding:
    """How the tokens of one call are split."""

    partition: Partition

    @property
    def names(self) -> tuple[str, ...]:
        """All mesh axes that tokens are split over."""
        return self.partition.names

    @property
    def names_of_width(self) -> tuple[str, ...]:
        """Those that parameters are split over along the width, too."""
        return tuple(name for name in self.names if name in WIDTH_AXES)

    @property
    def ways_of_width(self) -> int:
        """Number of parts that those axes split the width into."""
        mesh = self.partition.mesh
        assert mesh is not None
        return math.prod(mesh.shape[name] for name in self.names_of_width)

    @property
    def by_token(self) -> PartitionSpec:
        """How arrays `[B, T, ...]` are split."""
        return self.partition.spec(("batch", "time"))

    def over_devices(self, body: Callable[..., Any], out_specs: Any) -> Any:
        """Return a function of a call's arrays that runs `body` on each device's own tokens."""
        mesh = self.partition.mesh
        assert mesh is not None
        sizes_of_1 = {name for name in mesh.axis_names if mesh.shape[name] == 1}
        in_specs = (self.by_token, _spec(), self.by_token, self.by_token)
        only = frozenset(self.names) | sizes_of_1
        return self.partition.run(body, in_specs, out_specs, only=only)


def _in_parts(loss: _Loss, split: _TokenSharding, width_axis: int) -> Any:
    """Return `loss` over all devices; its gradients are computed with it, in the same parts."""

    @jax.custom_vjp
    def run(x: Array, w: Array, targets: Array, weights: Array) -> Sums:
        def own_sums(*own: Array) -> Sums:
            return _summed(loss(*own), split)

        sums: Sums = split.over_devices(own_sums, _spec())(x, w, targets, weights)
        return sums

    def forward(x: Array, w: Array, targets: Array, weights: Array) -> tuple[Sums, _Gradients]:
        is_scattered = w.shape[width_axis] % split.ways_of_width == 0

        def own_gradients(
            x: Array, w: Array, targets: Array, weights: Array
        ) -> tuple[Sums, _Gradients]:
            def total_and_sums(x: Array, w: Array, weights: Array) -> tuple[Array, Sums]:
                sums = loss(x, w, targets, weights)
                return sums.loss, sums

            total, pull_back, sums = jax.vjp(
                total_and_sums, x, w.astype(jnp.float32), weights, has_aux=True
            )
            dx, wide, dweights = pull_back(jnp.ones_like(total))
            whole = _scattered(wide, split, width_axis) if is_scattered else _summed(wide, split)
            gradients = (dx, whole.astype(w.dtype), dweights)
            # The gradient of `w` is summed before the backward pass continues: put off to its end,
            # as compilers like to, each device would keep all of it in float32 until then.
            held: _Gradients = jax.lax.optimization_barrier(gradients)  # type: ignore[no-untyped-call]
            return _summed(sums, split), held

        names = split.names_of_width if is_scattered else ()
        dw_spec = _spec(None, names or None) if width_axis == 1 else _spec(names or None, None)
        out_specs = (_spec(), (split.by_token, dw_spec, split.by_token))
        outputs: tuple[Sums, _Gradients] = split.over_devices(own_gradients, out_specs)(
            x, w, targets, weights
        )
        return outputs

    def backward(gradients: _Gradients, scales: Sums) -> tuple[Any, ...]:
        dx, dw, dweights = (
            (scales.loss * one.astype(jnp.float32)).astype(one.dtype) for one in gradients
        )
        no_gradient = np.zeros(dweights.shape, jax.dtypes.float0)
        return dx, dw, no_gradient, dweights + scales.weight.astype(dweights.dtype)

    run.defvjp(forward, backward)
    return run


_T = TypeVar("_T")


def _summed(own: _T, split: _TokenSharding) -> _T:
    """Return the sums over all devices."""
    total: _T = jax.lax.psum(own, split.names)  # type: ignore[no-untyped-call]
    return total


def _scattered(own: Array, split: _TokenSharding, axis: int) -> Array:
    """Return the part of the sum over all devices that this device keeps, that of its parameters.

    Devices of one part sum parts only: over slices, that is what their slow links carry.
    """
    part = own
    if split.names_of_width:
        part = jax.lax.psum_scatter(  # type: ignore[no-untyped-call]
            own, split.names_of_width, scatter_dimension=axis, tiled=True
        )
    others = tuple(name for name in split.names if name not in split.names_of_width)
    return jax.lax.psum(part, others) if others else part  # type: ignore[no-untyped-call]


def _spec(*entries: Any) -> Any:
    return PartitionSpec(*entries)  # type: ignore[no-untyped-call]
