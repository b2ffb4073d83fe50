"""`Dot`: the product inside of every linear layer, as a part that can be replaced.

Another precision is another config in a layer's `dot` field; the layer does not know.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from axcore.config import config
from axcore.layers.serving_products import times
from axcore.layers.tokens import TOKEN_MASK
from axcore.module import Module, entry
from axcore.ops import grouped_matmul
from axcore.parallel import is_sharded

Input = Float[Array, "*batch in_dim"]
Weight = Float[Array, "in_dim out_dim"]
Output = Float[Array, "*batch out_dim"]

Rows = Float[Array, "rows in_dim"]
Weights = Float[Array, "groups in_dim out_dim"]
Sizes = Int[Array, "groups"]


class Dot(Module):
    """What multiplies an input by a weight; abstract."""

    @config
    class Config(Module.Config["Dot"]):
        """What every way to multiply has."""

    def forward(self, x: Input, weight: Weight) -> Output:
        """Returns the product over the last dimension of `x`."""
        raise NotImplementedError(f"{type(self).__qualname__} multiplies nothing")

    @entry
    def grouped(self, rows: Rows, weights: Weights, sizes: Sizes) -> Float[Array, "rows out_dim"]:
        """Returns each row times the weight of its group; the first `sizes[0]` are of group 0.

        Rows after the last group may give anything finite.
        """
        raise NotImplementedError(f"{type(self).__qualname__} has no grouped product")

    def without_padding(self, x: Input) -> Input:
        """Returns the input with zeros for padding, for what scales by the largest magnitude."""
        is_real = self.get_shared(TOKEN_MASK)
        if is_real is None or x.ndim < 3 or x.shape[:2] != is_real.shape:
            return x
        is_real = is_real.reshape(*is_real.shape, *(1 for _ in x.shape[2:]))
        return self.made_once("zeros for padding", x, lambda: jnp.where(is_real, x, 0))


class PlainDot(Dot):
    """`x @ weight`, in the dtype of both."""

    @config
    class Config(Dot.Config):
        """Describes a `PlainDot`."""

    def forward(self, x: Input, weight: Weight) -> Output:
        """Returns the product."""
        return over_rows(lambda rows: times(rows, weight), x)

    @entry
    def grouped(self, rows: Rows, weights: Weights, sizes: Sizes) -> Float[Array, "rows out_dim"]:
        """Returns each row times the weight of its group."""
        return grouped_matmul(rows, weights, sizes)


def over_rows(product: Callable[[Array], Array], x: Input) -> Output:
    """Returns `product` of `x`, given to it as a matrix.

    The weight's gradient sums over all leading dimensions. With more than one of them compilers
    copy the output's gradient transposed before that sum, which on a CPU costs more than the sum
    itself; merged into one they need no copy. Time that is split over a mesh stays apart.
    """
    if x.ndim < 3 or is_sharded("time"):
        return product(x)
    y = product(jax.lax.reshape(x, (math.prod(x.shape[:-1]), x.shape[-1])))
    return jax.lax.reshape(y, (*x.shape[:-1], y.shape[-1]))
