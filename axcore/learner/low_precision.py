"""`LowPrecisionState`: an optimizer whose state is stored in fewer bits than it is computed in.

Rounding is stochastic: the expected value of what is stored is what was given, so that an average
that changes by less than a step of its format per update still moves.
"""

import math
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt32

from axcore.config import Configurable, PositiveInt, config
from axcore.errors import ConfigError
from axcore.learner.optimizers import AdamW, Optimizer, Rate

if TYPE_CHECKING:
    import optax


_MIN_ROW = 16
"""Rows of fewer numbers would save too little, compared with their scales."""

# Below it XLA may flush to zero, and a division by a scale of zero is nan.
SMALLEST = 2.0**-126
"""The smallest float32 that is normal."""


class Stored(NamedTuple):
    """An array as it is stored.

    Args:
        values: One value for each of the array's.
        scales: What values of a row count in; None where the format needs none.
    """

    values: Array
    scales: Array | None


class StateFormat(Protocol):
    """Stores float32 arrays; `dtype` is that of stored values."""

    dtype: Any

    def can_store(self, shape: tuple[int, ...]) -> bool:
        """Whether arrays of a shape are stored so; others stay float32."""
        ...

    def encode(self, x: Float[Array, "..."], bits: UInt32[Array, "..."]) -> Stored:
        """Return the array as it is stored, rounded by random bits of its shape."""
        ...

    def decode(self, stored: Stored) -> Float[Array, "..."]:
        """Return a stored array in float32."""
        ...


class Bfloat16:
    """Rounds to bfloat16."""

    dtype = jnp.bfloat16

    def can_store(self, shape: tuple[int, ...]) -> bool:
        """Every shape."""
        return True

    def encode(self, x: Float[Array, "..."], bits: UInt32[Array, "..."]) -> Stored:
        """Return the array in bfloat16."""
        return Stored(round_to_bfloat16(x, bits), None)

    def decode(self, stored: Stored) -> Float[Array, "..."]:
        """Return a stored array in float32."""
        return stored.values.astype(jnp.float32)


class Int8Rows:
    """Eight bits a number, and a float32 scale for each row, which is the last dimension.

    A code `c` means `scale * sign(c) * (|c| / m) ** 4`, where the scale is the row's largest
    magnitude. A row without negative numbers, as of squared gradients, has `m = 255`; others have
    `m = 127`, codes that are 128 more, and their scale is stored as a negative number. A number
    that is not 0 is never rounded to 0, where Adam would divide by it.

    Source: Dettmers et al. 2021, arXiv:2110.02861. Differs: the fourth power instead of a table,
    stochastic rounding, and rows for blocks, so that no array needs another layout.
    """

    dtype = jnp.uint8

    def __init__(self, min_size: int) -> None:
        self.min_size = min_size

    def can_store(self, shape: tuple[int, ...]) -> bool:
        """Large arrays whose rows are long enough."""
        return math.prod(shape) >= self.min_size and bool(shape) and shape[-1] >= _MIN_ROW

    def encode(self, x: Float[Array, "..."], bits: UInt32[Array, "..."]) -> Stored:
        """Return codes of the array's shape, and scales with a last dimension of 1."""
        # By the largest magnitude, so nothing is out of range;
        # the fourth power leaves enough codes for small ones.
        largest = jnp.max(jnp.abs(x), axis=-1, keepdims=True)
        # The sign of the scale says which of the two ranges
        # of codes a row has: no further array is needed.
        scales = jnp.where(jnp.min(x, axis=-1, keepdims=True) < 0, -largest, largest)
        zero, top = _zero_and_top(scales)
        magnitudes = jnp.abs(x) / jnp.maximum(largest, SMALLEST)
        below = jnp.floor(top * jnp.sqrt(jnp.sqrt(magnitudes)))
        low, high = (below / top) ** 4, ((below + 1) / top) ** 4
        # Rounded at random in proportion: a mean that moves
        # by less than a code each step would never move.
        is_up = _uniform(bits) * (high - low) < magnitudes - low
        steps = jnp.minimum(jnp.where(is_up, below + 1, below), top)
        # A second moment of 0 would be divided by: Adam's update explodes.
        steps = jnp.maximum(steps, jnp.where(magnitudes > 0, 1.0, 0.0))
        return Stored((zero + jnp.sign(x) * steps).astype(jnp.uint8), scales)

    def decode(self, stored: Stored) -> Float[Array, "..."]:
        """Return a stored array in float32."""
        assert stored.scales is not None, "codes come with scales"
        zero, top = _zero_and_top(stored.scales)
        steps = (stored.values.astype(jnp.float32) - zero) / top
        decoded: Array = jnp.abs(stored.scales) * jnp.sign(steps) * steps**4
        return decoded


def round_to_bfloat16(x: Float[Array, "..."], bits: UInt32[Array, "..."]) -> Array:
    """Return float32 numbers as one of the two nearest of bfloat16, sampled by random bits."""
    # Adding random low bits and cutting them off rounds
    # up with the right probability, carry included.
    raised = jax.lax.bitcast_convert_type(x, jnp.uint32) + (bits & jnp.uint32(0xFFFF))
    rounded = jax.lax.bitcast_convert_type(raised & jnp.uint32(0xFFFF0000), jnp.float32)
    # A nan's low bits plus a carry may become an infinity or a zero.
    return jnp.where(jnp.isfinite(x), rounded, x).astype(jnp.bfloat16)


def _zero_and_top(scales: Array) -> tuple[Array, Array]:
    """Return the code of 0, and the largest distance of a code from it, of each row."""
    zero = jnp.where(scales < 0, jnp.float32(128), jnp.float32(0))
    return zero, 255 - zero


def _uniform(bits: UInt32[Array, "..."]) -> Float[Array, "..."]:
    # 24 bits, all that a float32 holds exactly: more could round up to 1.
    uniform: Array = (bits >> jnp.uint32(8)).astype(jnp.float32) * jnp.float32(2**-24)
    return uniform


class StoredState(NamedTuple):
    """The state of an optimizer as it is stored.

    Args:
        num_updates: Updates so far, from which rounding samples.
        values: The wrapped optimizer's state, with stored values in the place of arrays.
        scales: A tree like it, with the scales of those that have some, None elsewhere.
    """

    num_updates: Int[Array, ""]
    values: Any
    scales: Any


class LowPrecisionState(Optimizer):
    """Stores another optimizer's state in fewer bits; the other computes in float32.

    Arrays of a parameter's shape are stored so, and have the parameter's sharding. Parameters that
    are bfloat16 are rounded stochastically after each update, so that small updates count.
    """

    rounded_dtypes = ("bfloat16",)

    @config
    class Config(Optimizer.Config):
        """Describes a `LowPrecisionState`.

        Args:
            optimizer: Whose state it is.
            format: `bfloat16`, or `int8_rows` with a scale for each row.
            min_size: Arrays of fewer numbers stay float32 with `int8_rows`.
        """

        optimizer: Configurable.Config = AdamW.Config()
        format: Literal["bfloat16", "int8_rows"] = "int8_rows"
        min_size: PositiveInt = 4096

    def transformation(self, learning_rate: Rate, specs: Any) -> "optax.GradientTransformation":
        """Return the wrapped optimizer's transformation between decoding and encoding.

        Raises:
            ConfigError: The wrapped optimizer fails with a state in fewer bits.
        """
        import optax

        optimizer = self.config.optimizer.build()
        if optimizer.needs_exact_state:
            raise ConfigError(
                f"{type(optimizer).__qualname__} needs its state in float32, and "
                f"LowPrecisionState would store it as {self.config.format}",
                where="learner",
                hint="leave out low_precision_optimizer, or train with AdamW",
            )
        wrapped = optimizer.transformation(learning_rate, specs)

        def init(params: Any) -> StoredState:
            first = jnp.zeros((), jnp.int32)
            return self._encode(wrapped.init(_in_float32(params)), params, first)

        def update(gradients: Any, state: StoredState, params: Any) -> tuple[Any, StoredState]:
            # The wrapped optimizer is to see what float32 training would.
            wide = _in_float32(params)
            updates, new = wrapped.update(_in_float32(gradients), self._decode(state), wide)
            bits = _random_bits(params, state.num_updates, stream=1)
            # Applied by optax as param + update in bfloat16;
            # made so that this sum is exact and rounds nothing.
            updates = jax.tree.map(_exact_in_bfloat16, params, updates, bits)
            return updates, self._encode(new, params, state.num_updates + 1)

        return optax.GradientTransformation(init, update)

    @property
    def _format(self) -> StateFormat:
        cfg = self.config
        if cfg.format == "bfloat16":
            return Bfloat16()
        return Int8Rows(cfg.min_size)

    def _encode(self, state: Any, params: Any, num_updates: Array) -> StoredState:
        shapes = {p.shape for p in jax.tree.leaves(params)}

        def stored(x: Array, bits: Array) -> Stored:
            # By shape: moments have those of parameters, while
            # counters and factored statistics stay as they are.
            is_moment = x.dtype == jnp.float32 and x.shape in shapes
            if not (is_moment and self._format.can_store(x.shape)):
                return Stored(x, None)
            return self._format.encode(x, bits)

        leaves, tree = _flat(state)
        # Another stream than that of parameters, or a parameter and its moments would round alike.
        random = jax.tree.leaves(_random_bits(leaves, num_updates, stream=0))
        parts = [stored(x, bits) for x, bits in zip(leaves, random, strict=True)]
        values, scales = (tree.unflatten(part) for part in zip(*parts, strict=True))
        return StoredState(num_updates, values, scales)

    def _decode(self, state: StoredState) -> Any:
        values, tree = _flat(state.values)
        # By the values' structure, as None among scales would vanish from a tree of their own.
        scales = tree.flatten_up_to(state.scales)
        pairs = [Stored(*pair) for pair in zip(values, scales, strict=True)]
        return tree.unflatten([self._decoded(one) for one in pairs])

    def _decoded(self, stored: Stored) -> Array:
        # By dtype, which says how it was stored whatever `min_size` is today.
        is_narrow = stored.values.dtype == self._format.dtype
        return self._format.decode(stored) if is_narrow else stored.values


def _in_float32(tree: Any) -> Any:
    return jax.tree.map(lambda x: x.astype(jnp.float32) if x.dtype.itemsize < 4 else x, tree)


def _exact_in_bfloat16(param: Array, update: Array, bits: Array) -> Array:
    """Return an update that leads a bfloat16 parameter to a number of bfloat16."""
    if param.dtype != jnp.bfloat16:
        return update
    wide = param.astype(jnp.float32)
    return round_to_bfloat16(wide + update, bits).astype(jnp.float32) - wide


def _random_bits(tree: Any, num_updates: Array, *, stream: int) -> Any:
    """Return a tree of uint32 arrays shaped as a tree's, other ones for each update."""
    leaves, structure = _flat(tree)
    # From the number of updates, not from the step: the
    # state has it, and a run that resumes samples the same.
    key = jax.random.fold_in(jax.random.key(stream), num_updates)
    keys = [jax.random.fold_in(key, index) for index in range(len(leaves))]
    bits = [jax.random.bits(k, x.shape, jnp.uint32) for k, x in zip(keys, leaves, strict=True)]
    return structure.unflatten(bits)


def _flat(tree: Any) -> tuple[list[Array], Any]:
    """Return the leaves of a tree and its structure, whose stubs lack its methods."""
    return jax.tree.flatten(tree)
