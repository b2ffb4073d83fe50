"""`Linear`: the affine map that every projection is made of."""

from jaxtyping import Array, Float

from axcore.config import REQUIRED, PositiveInt, config
from axcore.layers.broadcast import as_row
from axcore.layers.dot import Dot, PlainDot
from axcore.module import Initializer, Module, Param, VarianceScaling


class Linear(Module):
    """`x @ weight (+ bias)`.

    Slot protocol: the parent fills `in_dim`, `out_dim` and `axes`.
    """

    @config
    class Config(Module.Config["Linear"]):
        """Describes a `Linear`.

        Args:
            in_dim: Size of the last dimension of the input.
            out_dim: Size of the last dimension of the output.
            axes: Logical axes of the weight, input first.
            has_bias: Whether a bias is added.
            weight_init: First value of the weight.
            dot: Multiplies the input by the weight, in its own precision.
        """

        in_dim: PositiveInt = REQUIRED
        out_dim: PositiveInt = REQUIRED
        axes: tuple[str | None, str | None] = REQUIRED
        has_bias: bool = False
        weight_init: Initializer = VarianceScaling()
        dot: Dot.Config = PlainDot.Config()

    def setup(self, cfg: Config) -> None:
        """Declares the weight and the bias, and builds the product."""
        self.weight = Param((cfg.in_dim, cfg.out_dim), axes=cfg.axes, init=cfg.weight_init)
        if cfg.has_bias:
            self.bias = Param((cfg.out_dim,), axes=cfg.axes[1:], init=0.0)
        self.dot = cfg.dot.build()

    def forward(self, x: Float[Array, "*batch in_dim"]) -> Float[Array, "*batch out_dim"]:
        """Returns the projection of the last dimension."""
        y = self.dot(x, self.weight)
        return y + as_row(self.bias, y.ndim) if self.config.has_bias else y
