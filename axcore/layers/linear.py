"""`Linear`: the affine map that every projection is made of."""

import math

from jaxtyping import Array, Float

from axcore.config import REQUIRED, config
from axcore.layers.broadcast import as_row
from axcore.module import Initializer, Module, Param, VarianceScaling
from axcore.parallel import is_split


class Linear(Module):
    """`x @ weight (+ bias)`.

    Slot protocol: the parent fills `in_dim`, `out_dim` and `axes`.
    """

    @config
    class Config(Module.Config):
        """Describes a `Linear`.

        Args:
            in_dim: Size of the last dimension of the input.
            out_dim: Size of the last dimension of the output.
            axes: Logical axes of the weight, input first.
            has_bias: Whether a bias is added.
            weight_init: First value of the weight.
        """

        in_dim: int = REQUIRED
        out_dim: int = REQUIRED
        axes: tuple[str | None, str | None] = REQUIRED
        has_bias: bool = False
        weight_init: Initializer = VarianceScaling()

    def setup(self, cfg: Config) -> None:
        """Declares the weight and the bias."""
        self.weight = Param((cfg.in_dim, cfg.out_dim), axes=cfg.axes, init=cfg.weight_init)
        if cfg.has_bias:
            self.bias = Param((cfg.out_dim,), axes=cfg.axes[1:], init=0.0)

    def forward(self, x: Float[Array, "*batch in_dim"]) -> Float[Array, "*batch out_dim"]:
        """Returns the projection of the last dimension."""
        y = project(x, self.weight)
        return y + as_row(self.bias, y.ndim) if self.config.has_bias else y


def project(
    x: Float[Array, "*batch in_dim"], weight: Float[Array, "in_dim out_dim"]
) -> Float[Array, "*batch out_dim"]:
    """Returns `x @ weight`, as a product of two matrices.

    The weight's gradient sums over all leading dimensions. With more than one of them compilers
    copy the output's gradient transposed before that sum, which on a CPU costs more than the sum
    itself; merged into one they need no copy. Time that is split over a mesh stays apart.
    """
    if x.ndim < 3 or is_split("time"):
        return x @ weight
    rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    return (rows @ weight).reshape(*x.shape[:-1], weight.shape[-1])
