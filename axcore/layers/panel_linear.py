"""`PanelLinear`: a linear layer with its weight in panels of columns; it serves, it does not train.

Letters of shapes: K input, N output, P panels of C columns.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from axcore.config import REQUIRED, PositiveInt, config
from axcore.layers.broadcast import as_row
from axcore.layers.serving_products import times_panels
from axcore.module import Module, Param
from axcore.ops import PANEL_WIDTH, in_panels, num_panels

PANELS = "weight_panels"
"""The name of the array that takes the place of a `weight`."""


class PanelLinear(Module):
    """`x @ weight (+ bias)`, of which the product reads memory in its order.

    The weight is what `in_panels` makes of that of a `Linear`. Slot protocol: that of `Linear`.
    """

    @config
    class Config(Module.Config["PanelLinear"]):
        """Describes a `PanelLinear`.

        Args:
            in_dim: Size of the last dimension of the input.
            out_dim: Size of the last dimension of the output.
            axes: Logical axes of the weight, input first.
            has_bias: Whether a bias is added.
        """

        in_dim: PositiveInt = REQUIRED
        out_dim: PositiveInt = REQUIRED
        axes: tuple[str | None, str | None] = REQUIRED
        has_bias: bool = False

    def setup(self, cfg: Config) -> None:
        """Declares the panels and the bias."""
        shape = (num_panels(cfg.out_dim), cfg.in_dim, PANEL_WIDTH)
        self.weight_panels = Param(shape, axes=(None, cfg.axes[0], None), init=0.0)
        if cfg.has_bias:
            self.bias = Param((cfg.out_dim,), axes=cfg.axes[1:], init=0.0)

    def forward(self, x: Float[Array, "*batch in_dim"]) -> Float[Array, "*batch out_dim"]:
        """Returns the projection of the last dimension."""
        y = times_panels(x, self.weight_panels, self.config.out_dim)
        return y + as_row(self.bias, y.ndim) if self.config.has_bias else y


def kept_in_panels(specs: Any, weight: Float[Array, "K N"]) -> dict[str, Array]:
    """Returns the array that a `PanelLinear` of some specs keeps a weight as, by name."""
    return {PANELS: _in_panels(weight, specs[PANELS].dtype)}


def _cast_in_panels(weight: Float[Array, "K N"], dtype: str) -> Float[Array, "P K C"]:
    return in_panels(weight.astype(jnp.dtype(dtype)))


_in_panels = jax.jit(_cast_in_panels, static_argnums=1)
