"""Modules of flax as layers: `LinenModule` and `NNXModule`.

Their arrays are parameters and buffers of an axcore module: they have a path, a key folded from it,
and a place in checkpoints and shardings. The name of each is its path in flax, `Dense_0/kernel`.
flax is imported where a module is built.
"""

from collections.abc import Mapping
from typing import Any

import attrs
import jax
import jax.numpy as jnp
from jaxtyping import Array

from axcore.config import REQUIRED, PositiveInt, config, evolve
from axcore.config.build import call_arguments, call_target
from axcore.errors import ConfigError
from axcore.module import Initializer, Module, Param

_FlaxPath = tuple[str, ...]
"""A collection (`params`, `batch_stats`) and the names below it."""


@attrs.frozen(kw_only=True)
class Leaf:
    """One array of a flax module.

    Args:
        name: As the axcore module declares it.
        shape: Its shape.
        dtype: Its dtype.
        axes: Logical axes, where flax knows any.
        init: Samples its first value.
        is_buffer: Whether it is kept but not trained.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    axes: tuple[str | None, ...] | None
    init: Initializer
    is_buffer: bool


class _FlaxArrays:
    """The arrays that an axcore module declares for a flax module, by their paths in flax."""

    def __init__(self, module: Module, leaves: Mapping[_FlaxPath, Leaf]) -> None:
        self.leaves = dict(leaves)
        for leaf in leaves.values():
            axes = leaf.axes or (None,) * len(leaf.shape)
            param: Any = Param(
                leaf.shape,
                axes=axes,
                init=leaf.init,
                is_buffer=leaf.is_buffer,
                dtype=leaf.dtype,
            )
            setattr(module, leaf.name, param)

    def read(self, module: Module) -> dict[_FlaxPath, Any]:
        """Return the arrays, while the module is at work."""
        return {path: getattr(module, leaf.name) for path, leaf in self.leaves.items()}

    def update(self, module: Module, new: Mapping[_FlaxPath, Any]) -> None:
        """Set the next values of the buffers."""
        for path, leaf in self.leaves.items():
            if leaf.is_buffer and path in new:
                module.update(leaf.name, new[path])


def sized(call: Any, arguments: tuple[str, ...], dim: int) -> Any:
    """Return the call with `dim` as each of the named arguments.

    Raises:
        ConfigError: It is not the config of a call.
    """
    if not hasattr(call, "build"):
        raise ConfigError(
            f"module is {call!r}; expected a config of a call",
            hint="module=config_for(nn.Dense, features=8)",
        )
    return evolve(call, **dict.fromkeys(arguments, dim)) if arguments else call


def _leaf_of(
    abstract: Any, *, name: str, init: Initializer, is_buffer: bool, axes: Any = None
) -> Leaf:
    """Return the leaf of an abstract array."""
    return Leaf(
        name=name,
        shape=abstract.shape,
        dtype=str(abstract.dtype),
        axes=axes,
        init=init,
        is_buffer=is_buffer,
    )


def flat(tree: Any, above: _FlaxPath = ()) -> dict[_FlaxPath, Any]:
    """Return the leaves of nested mappings by their paths."""
    if not isinstance(tree, Mapping):
        return {above: tree}
    return {
        path: leaf
        for name, below in tree.items()
        for path, leaf in flat(below, (*above, str(name))).items()
    }


def nested(flat: Mapping[_FlaxPath, Any]) -> dict[str, Any]:
    """Return leaves by their paths as nested dicts."""
    tree: dict[str, Any] = {}
    for path, leaf in flat.items():
        node = tree
        for name in path[:-1]:
            node = node.setdefault(name, {})
        node[path[-1]] = leaf
    return tree


@config
class LinenInit(Initializer):
    """Sample one array as the linen module would, from a key of its own."""

    module: Any
    shapes: tuple[tuple[int, ...], ...]
    flags: Mapping[str, bool]
    path: tuple[str, ...]

    def sample(self, key: Array, shape: tuple[int, ...], fans: tuple[int, int]) -> Array:
        """Return the array; what else the module initialises is left to the compiler to drop."""
        from flax.core import meta

        # Flax initialises all arrays of a module at once, this code one by one, each in the
        # sharding that it is stored in. Under jit what is not returned is not computed.
        arrays = _initialised(self.module.build(), key, self.shapes, self.flags)
        array: Array = meta.unbox(arrays[self.path])
        return array


class LinenModule(Module):
    """A `flax.linen` module. Slot protocol: the parent fills `dim`."""

    @config
    class Config(Module.Config["LinenModule"]):
        """The config of a `LinenModule`.

        Args:
            module: The call that makes it: `config_for(nn.Dense, features=8)`.
            dim: Size of the last dimension of the input.
            dim_arguments: Arguments of the call that are given `dim`, such as `features`.
            input_shapes: Shapes of the inputs that it is initialised with; one of `[1, 1, dim]`
                where empty.
            training_flag: Argument that says whether it trains; None where it has none.
            flag_in_training: What the flag is in training: True for `train`, False for
                `deterministic` and `use_running_average`.
            streams: Random streams that it samples from in training.
        """

        module: Any = REQUIRED
        dim: PositiveInt = REQUIRED
        dim_arguments: tuple[str, ...] = ()
        input_shapes: tuple[tuple[int, ...], ...] = ()
        training_flag: str | None = None
        flag_in_training: bool = False
        streams: tuple[str, ...] = ("dropout",)

    def setup(self, cfg: Config) -> None:
        """Declare what flax would initialise."""
        from flax.core import meta

        call = sized(cfg.module, cfg.dim_arguments, cfg.dim)
        shapes = cfg.input_shapes or ((1, 1, cfg.dim),)
        flag = cfg.training_flag
        flags = {} if flag is None else {flag: not cfg.flag_in_training}
        self.linen = call.build()
        # Shapes alone: a model is built many times, and for hardware that is not available, before
        # any array is made.
        leaves = jax.eval_shape(lambda: _initialised(self.linen, jax.random.key(0), shapes, flags))
        self.arrays = _FlaxArrays(
            self,
            {
                path: _leaf_of(
                    meta.unbox(leaf),
                    name="/".join(path[1:] if path[0] == "params" else path),
                    init=LinenInit(module=call, shapes=shapes, flags=flags, path=path),
                    is_buffer=path[0] != "params",
                    axes=getattr(leaf, "names", None),
                )
                for path, leaf in leaves.items()
            },
        )

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the flax module's result, and keep its new buffers in training."""
        cfg, variables = self.config, nested(self.arrays.read(self))
        if cfg.training_flag is not None:
            kwargs[cfg.training_flag] = self.training == cfg.flag_in_training
        if not self.training:
            return self.linen.apply(variables, *args, **kwargs)
        rngs = {name: self.rng(name) for name in cfg.streams} if self.has_rng else {}
        mutable = [name for name in variables if name != "params"]
        y, new = self.linen.apply(variables, *args, rngs=rngs, mutable=mutable, **kwargs)
        self.arrays.update(self, flat(new))
        return y


def _initialised(
    linen: Any, key: Array, shapes: tuple[tuple[int, ...], ...], flags: Mapping[str, bool]
) -> dict[_FlaxPath, Any]:
    """Return the arrays that flax initialises, some in a box with their axes."""
    inputs = [jnp.zeros(shape, jnp.float32) for shape in shapes]
    return flat(linen.init(key, *inputs, **flags))


@config
class NNXInit(Initializer):
    """Sample one array as the nnx module would, from a key of its own."""

    module: Any
    path: tuple[str, ...]

    def sample(self, key: Array, shape: tuple[int, ...], fans: tuple[int, int]) -> Array:
        """Return the array; what else the module initialises is left to the compiler to drop."""
        from flax import nnx

        flat = nnx.to_flat_state(nnx.state(_make_nnx(self.module, key)))
        array: Array = {_nnx_path(path): variable.get_value() for path, variable in flat}[self.path]
        return array


class NNXModule(Module):
    """A `flax.nnx` module. Slot protocol: the parent fills `dim`."""

    @config
    class Config(Module.Config["NNXModule"]):
        """The config of an `NNXModule`.

        Args:
            module: The call that makes it, but for its `rngs`:
                `config_for(nnx.Linear, in_features=8, out_features=8)`.
            dim: Size of the last dimension of the input.
            dim_arguments: Arguments of the call that are given `dim`, such as `in_features`.
        """

        module: Any = REQUIRED
        dim: PositiveInt = REQUIRED
        dim_arguments: tuple[str, ...] = ()

    def setup(self, cfg: Config) -> None:
        """Declare what flax would initialise."""
        from flax import nnx

        call = sized(cfg.module, cfg.dim_arguments, cfg.dim)
        abstract = nnx.eval_shape(lambda: _make_nnx(call, jax.random.key(0)))
        self.graph, state = nnx.split(abstract)
        self.variables = {_nnx_path(path): variable for path, variable in nnx.to_flat_state(state)}
        self.arrays = _FlaxArrays(
            self,
            {
                path: _leaf_of(
                    variable.get_value(),
                    name="/".join(path),
                    init=NNXInit(module=call, path=path),
                    is_buffer=not isinstance(variable, nnx.Param),
                )
                for path, variable in self.variables.items()
                # Random streams are not state here: they would be saved and restored as weights
                # are. `_rng_value` gives fresh ones.
                if not isinstance(variable, nnx.RngState)
            },
        )

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the flax module's result, and keep its new buffers in training."""
        from flax import nnx

        held = self.arrays.read(self)
        values = {
            path: held[path] if path in held else self._rng_value(variable)
            for path, variable in self.variables.items()
        }
        filled = [(path, self.variables[path].replace(value)) for path, value in values.items()]
        module = nnx.merge(self.graph, nnx.from_flat_state(filled))
        # `merge` made a new object, so this changes nothing outside of the call.
        module.train() if self.training else module.eval()
        y = module(*args, **kwargs)
        if self.training:
            after = nnx.to_flat_state(nnx.state(module))
            new = {_nnx_path(path): variable.get_value() for path, variable in after}
            self.arrays.update(self, new)
        return y

    def _rng_value(self, variable: Any) -> Any:
        """Return a fresh key, or a count from zero, for a random stream of the flax module."""
        from flax import nnx

        abstract = variable.get_value()
        if not isinstance(variable, nnx.RngKey):
            return jnp.zeros(abstract.shape, abstract.dtype)
        return self.rng("flax") if self.training and self.has_rng else jax.random.key(0)


def _make_nnx(call: Any, key: Array) -> Any:
    from flax import nnx

    return call_target(type(call))(**call_arguments(call), rngs=nnx.Rngs(key))


def _nnx_path(path: tuple[Any, ...]) -> _FlaxPath:
    return tuple(map(str, path))
