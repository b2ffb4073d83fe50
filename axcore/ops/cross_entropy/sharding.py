"""The arrays of a cross-entropy call, and how tokens and the vocabulary are split over devices.

Where the vocabulary is split, each device works on its own part of it, and devices exchange a few
numbers a token. Where tokens are split, each device works on its own, and the gradient of the
output projection is summed over devices once, however many chunks it was computed in.

Letters: B all leading dimensions but the last, T time, D width, V vocabulary.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import attrs
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import PartitionSpec

from axcore.ops.op import STAGE
from axcore.parallel.rules import PARAM_RULES
from axcore.parallel.shard_op import OpSharding, Partition, axes


class CrossEntropyInputs(NamedTuple):
    """The arrays of one call; `w` is `[D, V]`, or `[V, D]` where the spec says so.

    Where `w` is float32 and `x` is not, products take `w` in x's dtype.
    """

    x_BTD: Array
    w: Array
    targets_BT: Array
    weights_BT: Array


class CrossEntropyTokens(NamedTuple):
    """What kernels get of a call whose gradient is the op's: all arrays but the weights.

    Of a vocabulary that is split over devices, `w` is the device's part, and targets count from its
    first entry. A target that is not in it is -1.
    """

    x_BTD: Array
    w: Array
    targets_BT: Array


class TokenStatistics(NamedTuple):
    """What the logits of a vocabulary, or of a device's part of it, give each token; float32.

    `target_BT` is 0 where the target is -1. `mean_VBTD`, with V of size 1, is what a kernel may
    leave for its backward part: the mean of the other entries' rows of `w` by their probability,
    times the soft cap's slope, in x's dtype.
    """

    maximum_BT: Array
    lse_BT: Array
    target_BT: Array
    mean_VBTD: Array | None = None


@attrs.frozen(kw_only=True)
class CrossEntropySpec:
    """The static choices of one call; hashable.

    `for_gradient` is true where a backward kernel will follow a forward one; `sums_are_partial`
    where what a backward kernel adds to the gradient of `w` is still to be summed over devices, and
    so is wanted in float32. Kernels are not chosen by these two.
    """

    vocabulary_first: bool = False
    z_loss: float = 0.0
    soft_cap: float | None = None
    for_gradient: bool = attrs.field(default=False, metadata=STAGE)
    sums_are_partial: bool = attrs.field(default=False, metadata=STAGE)


class CrossEntropySums(NamedTuple):
    """Float32 scalars: sums over all tokens, each token times its weight.

    Only `loss` carries gradients to `x` and `w`; the others are for reports.
    """

    loss: Array
    """Negative log-likelihood plus z-loss."""
    weight: Array
    """The weights themselves, which the loss is divided by in the end."""
    z_loss: Array
    """The part of `loss` that is z-loss."""
    correct: Array
    """Tokens whose target has the largest logit."""


def cross_entropy_sharding(inputs: CrossEntropyTokens, spec: CrossEntropySpec) -> OpSharding:
    """Return how the calls of forward and of backward kernels are split."""
    tokens = _tokens(inputs.targets_BT.ndim)
    w = axes("vocab", None) if spec.vocabulary_first else axes(None, "vocab")
    return OpSharding(
        inputs=CrossEntropyTokens(axes(*tokens, None), w, tokens),
        outputs=TokenStatistics(tokens, tokens, tokens, axes("vocab", *tokens, None)),
        backward={
            "lse_BT": tokens,
            "target_BT": tokens,
            "mean_VBTD": axes("vocab", *tokens, None),
            "scale_BT": tokens,
        },
        split=("batch", "time", "vocab"),
        localize=lambda partition, own: _own_targets(partition, own, spec),
        combine=_over_all_words,
    )


def sums_sharding(inputs: CrossEntropyInputs, spec: CrossEntropySpec) -> OpSharding:
    """Return how the calls of differentiable kernels are split: by tokens only."""
    tokens = _tokens(inputs.targets_BT.ndim)
    return OpSharding(
        inputs=CrossEntropyInputs(axes(*tokens, None), axes(None, None), tokens, tokens),
        outputs=CrossEntropySums(*[axes()] * 4),
        split=("batch", "time"),
        combine=lambda partition, _, sums: partition.summed(sums, "batch", "time"),
    )


def _tokens(num_axes: int) -> Any:
    return axes(*("batch", "time")[:num_axes], *(None,) * (num_axes - 2))


def _own_targets(
    partition: Partition, own: CrossEntropyTokens, spec: CrossEntropySpec
) -> CrossEntropyTokens:
    size = own.w.shape[0 if spec.vocabulary_first else 1]
    targets_BT = own.targets_BT.astype(jnp.int32) - partition.index("vocab") * size
    is_own_BT = (targets_BT >= 0) & (targets_BT < size)
    return own._replace(targets_BT=jnp.where(is_own_BT, targets_BT, -1))


def _over_all_words(
    partition: Partition, tokens: CrossEntropyTokens, own: TokenStatistics
) -> TokenStatistics:
    """Return the statistics of the full vocabulary; of the mean, the part that each adds."""
    if not partition.axes["vocab"]:
        return own
    highest_BT = partition.largest(own.lse_BT, "vocab")
    share_BT = jnp.exp(own.lse_BT - highest_BT)
    lse_BT = highest_BT + jnp.log(partition.summed(share_BT, "vocab"))
    mean_VBTD = own.mean_VBTD
    if mean_VBTD is not None:
        factor_BT = jnp.exp(own.lse_BT - lse_BT)
        mean = factor_BT[None, ..., None] * mean_VBTD.astype(jnp.float32)
        mean_VBTD = mean.astype(mean_VBTD.dtype)
    return TokenStatistics(
        maximum_BT=partition.largest(own.maximum_BT, "vocab"),
        lse_BT=lse_BT,
        target_BT=partition.summed(own.target_BT, "vocab"),
        mean_VBTD=mean_VBTD,
    )


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

            # Here, in the forward pass, while `w` is gathered: backward would gather it a second
            # time. The loss is a scalar, so that backward only scales what is made now. `w` goes
            # in as float32, for its gradient to be added up so.
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
