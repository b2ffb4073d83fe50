"""`LowPrecisionState`: any optimizer, with its state stored in fewer bits."""

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from axcore.config import Configurable, PositiveInt, config
from axcore.learner.optimizers import AdamW, Optimizer, Rate
from axcore.learner.state_formats import (
    Bfloat16,
    Int8Rows,
    StateFormat,
    Stored,
    round_to_bfloat16,
)

if TYPE_CHECKING:
    import optax


class StoredState(NamedTuple):
    """The state of an optimizer as it is stored.

    Args:
        num_updates: Updates so far, from which rounding draws.
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
        """Returns the wrapped optimizer's transformation between decoding and encoding."""
        import optax

        wrapped = self.config.optimizer.build().transformation(learning_rate, specs)

        def init(params: Any) -> StoredState:
            first = jnp.zeros((), jnp.int32)
            return self._encode(wrapped.init(_in_float32(params)), params, first)

        def update(gradients: Any, state: StoredState, params: Any) -> tuple[Any, StoredState]:
            wide = _in_float32(params)
            updates, new = wrapped.update(_in_float32(gradients), self._decode(state), wide)
            bits = _random_bits(params, state.num_updates, stream=1)
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
            is_moment = x.dtype == jnp.float32 and x.shape in shapes
            if not (is_moment and self._format.can_store(x.shape)):
                return Stored(x, None)
            return self._format.encode(x, bits)

        leaves, tree = _flat(state)
        random = jax.tree.leaves(_random_bits(leaves, num_updates, stream=0))
        parts = [stored(x, bits) for x, bits in zip(leaves, random, strict=True)]
        values, scales = (tree.unflatten(part) for part in zip(*parts, strict=True))
        return StoredState(num_updates, values, scales)

    def _decode(self, state: StoredState) -> Any:
        values, tree = _flat(state.values)
        scales = tree.flatten_up_to(state.scales)
        pairs = [Stored(*pair) for pair in zip(values, scales, strict=True)]
        return tree.unflatten([self._decoded(one) for one in pairs])

    def _decoded(self, stored: Stored) -> Array:
        is_narrow = stored.values.dtype == self._format.dtype
        return self._format.decode(stored) if is_narrow else stored.values


def _in_float32(tree: Any) -> Any:
    return jax.tree.map(lambda x: x.astype(jnp.float32) if x.dtype.itemsize < 4 else x, tree)


def _exact_in_bfloat16(param: Array, update: Array, bits: Array) -> Array:
    """Returns an update that leads a bfloat16 parameter to a number of bfloat16."""
    if param.dtype != jnp.bfloat16:
        return update
    wide = param.astype(jnp.float32)
    return round_to_bfloat16(wide + update, bits).astype(jnp.float32) - wide


def _random_bits(tree: Any, num_updates: Array, *, stream: int) -> Any:
    """Returns a tree of uint32 arrays shaped as a tree's, other ones for each update."""
    leaves, structure = _flat(tree)
    key = jax.random.fold_in(jax.random.key(stream), num_updates)
    keys = [jax.random.fold_in(key, index) for index in range(len(leaves))]
    bits = [jax.random.bits(k, x.shape, jnp.uint32) for k, x in zip(keys, leaves, strict=True)]
    return structure.unflatten(bits)


def _flat(tree: Any) -> tuple[list[Array], Any]:
    """Returns the leaves of a tree and its structure, whose stubs lack its methods."""
    return jax.tree.flatten(tree)
