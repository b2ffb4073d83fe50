"""`NNXModule`: a module of `flax.nnx` as a child."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from axcore.config import REQUIRED, PositiveInt, config
from axcore.config.call import call_arguments, call_target
from axcore.layers.interop.flax_arrays import FlaxArrays, FlaxPath, leaf_of, sized
from axcore.module import Initializer, Module


@config
class NNXInit(Initializer):
    """Draws one array as the nnx module would, from a key of its own."""

    module: Any
    path: tuple[str, ...]

    def sample(self, key: Array, shape: tuple[int, ...], fans: tuple[int, int]) -> Array:
        """Returns the array; what else the module initialises is left to the compiler to drop."""
        from flax import nnx

        flat = nnx.to_flat_state(nnx.state(_make_nnx(self.module, key)))
        array: Array = {_nnx_path(path): variable.get_value() for path, variable in flat}[self.path]
        return array


class NNXModule(Module):
    """A `flax.nnx` module. Slot protocol: the parent fills `dim`."""

    @config
    class Config(Module.Config["NNXModule"]):
        """Describes an `NNXModule`.

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
        """Declares what flax would initialise."""
        from flax import nnx

        call = sized(cfg.module, cfg.dim_arguments, cfg.dim)
        abstract = nnx.eval_shape(lambda: _make_nnx(call, jax.random.key(0)))
        self.graph, state = nnx.split(abstract)
        self.variables = {_nnx_path(path): variable for path, variable in nnx.to_flat_state(state)}
        self.arrays = FlaxArrays(
            self,
            {
                path: leaf_of(
                    variable.get_value(),
                    name="/".join(path),
                    init=NNXInit(module=call, path=path),
                    is_buffer=not isinstance(variable, nnx.Param),
                )
                for path, variable in self.variables.items()
                if not isinstance(variable, nnx.RngState)
            },
        )

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Returns what the flax module returns, and keeps its new buffers in training."""
        from flax import nnx

        held = self.arrays.read(self)
        values = {
            path: held[path] if path in held else self._rng_value(variable)
            for path, variable in self.variables.items()
        }
        filled = [(path, self.variables[path].replace(value)) for path, value in values.items()]
        module = nnx.merge(self.graph, nnx.from_flat_state(filled))
        module.train() if self.training else module.eval()
        y = module(*args, **kwargs)
        if self.training:
            after = nnx.to_flat_state(nnx.state(module))
            new = {_nnx_path(path): variable.get_value() for path, variable in after}
            self.arrays.update(self, new)
        return y

    def _rng_value(self, variable: Any) -> Any:
        """Returns a fresh key, or a count from zero, for a random stream of the flax module."""
        from flax import nnx

        abstract = variable.get_value()
        if not isinstance(variable, nnx.RngKey):
            return jnp.zeros(abstract.shape, abstract.dtype)
        return self.rng("flax") if self.training and self.has_rng else jax.random.key(0)


def _make_nnx(call: Any, key: Array) -> Any:
    from flax import nnx

    return call_target(type(call))(**call_arguments(call), rngs=nnx.Rngs(key))


def _nnx_path(path: tuple[Any, ...]) -> FlaxPath:
    return tuple(map(str, path))
