"""Layers of one matrix: `Linear` and its product (`Dot`), `PackedLinear` for CPUs, `Embedding`.

Another precision is another config in a layer's `dot` field; the layer does not know.

Letters of shapes: K input, N output, G groups of K, P panels of C columns.
"""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax.lax import dot_general
from jaxtyping import Array, Float, Int

from axcore._jax_compat import user_context
from axcore.config import REQUIRED, PositiveInt, config
from axcore.layers.tokens import TOKEN_MASK, TokenInfo
from axcore.module import Initializer, Module, Normal, Param, VarianceScaling, entry
from axcore.ops import (
    PANEL_WIDTH,
    decode_matmul,
    grouped_matmul,
    in_panels,
    low_precision_product,
    num_panels,
)
from axcore.parallel import is_sharded, shard

Input = Float[Array, "*batch in_dim"]
Weight = Float[Array, "in_dim out_dim"]
Output = Float[Array, "*batch out_dim"]

Rows = Float[Array, "rows in_dim"]
Weights = Float[Array, "groups in_dim out_dim"]
Sizes = Int[Array, "groups"]


class Dot(Module):
    """The product of an input and a weight; abstract."""

    @config
    class Config(Module.Config["Dot"]):
        """The fields of every way to multiply."""

    def forward(self, x: Input, weight: Weight) -> Output:
        """Return the product over the last dimension of `x`."""
        raise NotImplementedError(f"{type(self).__qualname__} multiplies nothing")

    @entry
    def grouped(self, rows: Rows, weights: Weights, sizes: Sizes) -> Float[Array, "rows out_dim"]:
        """Return each row times the weight of its group; the first `sizes[0]` are of group 0.

        Rows after the last group may give anything finite.
        """
        raise NotImplementedError(f"{type(self).__qualname__} has no grouped product")

    def without_padding(self, x: Input) -> Input:
        """Return the input with zeros for padding, for what scales by the largest magnitude."""
        # Padding may hold anything: one large number there would cost all real tokens precision.
        is_real = self.get_shared(TOKEN_MASK)
        if is_real is None or x.ndim < 3 or x.shape[:2] != is_real.shape:
            return x
        is_real = is_real.reshape(*is_real.shape, *(1 for _ in x.shape[2:]))
        # Projections of queries, keys and values share an input; it is zeroed for the first alone.
        return self.made_once("zeros for padding", x, lambda: jnp.where(is_real, x, 0))


class PlainDot(Dot):
    """`x @ weight`, in the dtype of both."""

    @config
    class Config(Dot.Config):
        """The config of a `PlainDot`."""

    def forward(self, x: Input, weight: Weight) -> Output:
        """Return the product."""
        return over_rows(lambda rows: matmul(rows, weight), x)

    @entry
    def grouped(self, rows: Rows, weights: Weights, sizes: Sizes) -> Float[Array, "rows out_dim"]:
        """Return each row times the weight of its group."""
        return grouped_matmul(rows, weights, sizes)


def over_rows(product: Callable[[Array], Array], x: Input) -> Output:
    """Return `product` of `x`, given to it as a matrix.

    The weight's gradient sums over all leading dimensions. With more than one of them compilers
    copy the output's gradient transposed before that sum, which on a CPU costs more than the sum
    itself; merged into one they need no copy. Time that is split over a mesh stays apart.
    """
    if x.ndim < 3 or is_sharded("time"):
        return product(x)
    y = product(jax.lax.reshape(x, (math.prod(x.shape[:-1]), x.shape[-1])))
    return jax.lax.reshape(y, (*x.shape[:-1], y.shape[-1]))


# A user context and not a context variable: jit caches on it, and would otherwise reuse what was
# traced with the other value.
_decode_matmul_is_used = user_context(False)


def use_decode_matmul() -> AbstractContextManager[None]:
    """Inside, layers compute products by the op `decode_matmul`, which has no gradient or mesh."""
    return cast(AbstractContextManager[None], _decode_matmul_is_used(True))


def matmul(x: Float[Array, "*rows K"], weight: Float[Array, "K N"]) -> Float[Array, "*rows N"]:
    """Return `x @ weight`."""
    return decode_matmul(x, weight) if _uses_decode_matmul(x) else x @ weight


def packed_product(
    x: Float[Array, "*rows K"], panels: Array, out_dim: int, scale: Array | None = None
) -> Float[Array, "*rows N"]:
    """Return the product with a weight in panels, of which a low-precision one has a scale."""
    y = decode_matmul(x.reshape(-1, x.shape[-1]), panels, scale, out_dim=out_dim)
    return y.reshape(*x.shape[:-1], out_dim)


def matmul_transposed(
    x: Float[Array, "*rows K"], rows: Array, scale: Float[Array, "N 1"] | None = None
) -> Float[Array, "*rows N"]:
    """Return `x @ rows.T`, of rows `[N, K]` that are times a scale where they have one."""
    if _uses_decode_matmul(x):
        return decode_matmul(x, rows, scale, transposed=True)
    # No `x @ rows.T`: the contraction reads rows as they are stored, where a transpose may be
    # written down first.
    y = dot_general(x, rows.astype(x.dtype), (((x.ndim - 1,), (1,)), ((), ())))
    return (
        y
        if scale is None
        else (y.astype(jnp.float32) * as_row(scale[:, 0], y.ndim)).astype(y.dtype)
    )


def quantized_product(
    x: Float[Array, "*rows K"], values: Array, scale: Float[Array, "G N"]
) -> Float[Array, "*rows N"]:
    """Return `x @ (values * scale)`, of a weight as a `QuantizedLinear` keeps it."""
    return (
        decode_matmul(x, values, scale)
        if _uses_decode_matmul(x)
        else low_precision_product(x, values, scale)
    )


def _uses_decode_matmul(x: Array) -> bool:
    # The op takes a matrix: a call with a time dimension that could not be merged is split over it.
    return bool(_decode_matmul_is_used.value) and x.ndim == 2


def as_row(vector: Float[Array, " dim"], ndim: int) -> Float[Array, "... dim"]:
    """Return the vector with `ndim` dimensions, all but the last of size 1."""
    return jnp.expand_dims(vector, tuple(range(ndim - 1)))


class Linear(Module):
    """`x @ weight (+ bias)`.

    Slot protocol: the parent fills `in_dim`, `out_dim` and `axes`.
    """

    @config
    class Config(Module.Config["Linear"]):
        """The config of a `Linear`.

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
        """Declare the weight and the bias, and build the product."""
        self.weight = Param((cfg.in_dim, cfg.out_dim), axes=cfg.axes, init=cfg.weight_init)
        if cfg.has_bias:
            self.bias = Param((cfg.out_dim,), axes=cfg.axes[1:], init=0.0)
        self.dot = cfg.dot.build()

    def forward(self, x: Float[Array, "*batch in_dim"]) -> Float[Array, "*batch out_dim"]:
        """Return the projection of the last dimension."""
        y = self.dot(x, self.weight)
        return y + as_row(self.bias, y.ndim) if self.config.has_bias else y


PANELS = "weight_panels"
"""The name of the array that replaces a `weight`."""


class PackedLinear(Module):
    """`x @ weight (+ bias)`, the weight laid out in the order in which the product reads it.

    The weight is what `in_panels` makes of that of a `Linear`. Slot protocol: that of `Linear`.
    """

    @config
    class Config(Module.Config["PackedLinear"]):
        """The config of a `PackedLinear`.

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
        """Declare the panels and the bias."""
        shape = (num_panels(cfg.out_dim), cfg.in_dim, PANEL_WIDTH)
        self.weight_panels = Param(shape, axes=(None, cfg.axes[0], None), init=0.0)
        if cfg.has_bias:
            self.bias = Param((cfg.out_dim,), axes=cfg.axes[1:], init=0.0)

    def forward(self, x: Float[Array, "*batch in_dim"]) -> Float[Array, "*batch out_dim"]:
        """Return the projection of the last dimension."""
        y = packed_product(x, self.weight_panels, self.config.out_dim)
        return y + as_row(self.bias, y.ndim) if self.config.has_bias else y


def packed_arrays(specs: Any, weight: Float[Array, "K N"]) -> dict[str, Array]:
    """Return a weight as a `PackedLinear` of some specs stores it, by name of the array."""
    return {PANELS: _in_panels(weight, specs[PANELS].dtype)}


def _cast_in_panels(weight: Float[Array, "K N"], dtype: str) -> Float[Array, "P K C"]:
    return in_panels(weight.astype(jnp.dtype(dtype)))


_in_panels = jax.jit(_cast_in_panels, static_argnums=1)


GROUP_SIZES = "group_sizes"
"""The shared value with the number of rows of each copy; rows are sorted by copy."""


class GroupedRows:
    """A module whose parameters can be stacked, and each row uses those of its copy.

    The copies are the experts of a layer. Parameters have a leading dimension then, and the shared
    value `GROUP_SIZES` says how many rows each copy has.
    """


def row_groups(sizes: Int[Array, " groups"], num_rows: int) -> Int[Array, " rows"]:
    """Return the copy of each row."""
    row = jnp.arange(num_rows, dtype=sizes.dtype)
    group = jnp.searchsorted(jnp.cumsum(sizes), row, side="right")
    # Rows behind the last group have no copy; they take the last one's, and nobody reads them.
    return jnp.minimum(group, len(sizes) - 1)


def take_by_group(
    values: Float[Array, "groups dim"], sizes: Int[Array, " groups"], num_rows: int
) -> Float[Array, "rows dim"]:
    """Return for each row the values of its copy."""
    return jnp.take(values, row_groups(sizes, num_rows), axis=0)


class Embedding(Module):
    """Look tokens up in a table `[vocab_size, dim]`.

    Slot protocol: the parent fills `vocab_size` and `dim`, calls it with the tokens and their info,
    and reads `weight`, the table, which a tied head projects by.
    """

    @config
    class Config(Module.Config["Embedding"]):
        """The config of an `Embedding`.

        Args:
            vocab_size: Number of rows.
            dim: Size of a row.
            scale: Factor on the vectors that are looked up.
            weight_init: First value of the table.
        """

        vocab_size: PositiveInt = REQUIRED
        dim: PositiveInt = REQUIRED
        scale: float = 1.0
        weight_init: Initializer = Normal(std=0.02)

    def setup(self, cfg: Config) -> None:
        """Declare the table."""
        self.weight = Param(
            (cfg.vocab_size, cfg.dim), axes=("vocab", "embed"), init=cfg.weight_init
        )
        # A lookup multiplies nothing, so the count of FLOPs leaves the table out.
        self.inactive_params = cfg.vocab_size * cfg.dim

    def forward(
        self, tokens: Int[Array, "*batch"], info: TokenInfo | None = None
    ) -> Float[Array, "*batch dim"]:
        """Return the tokens' vectors in the compute dtype; their positions change nothing."""
        # Rows are read whole: split along `embed`, as it is stored, the result would first have to
        # be gathered on every device.
        table = shard(self.weight, "vocab", "embed")
        x = jnp.take(table, tokens, axis=0)
        return x if self.config.scale == 1.0 else x * jnp.asarray(self.config.scale, x.dtype)
