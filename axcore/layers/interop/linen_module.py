"""`LinenModule`: a module of `flax.linen` as a child."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from axcore.config import REQUIRED, PositiveInt, config
from axcore.layers.interop.flax_arrays import FlaxArrays, FlaxPath, flat, leaf_of, nested, sized
from axcore.module import Initializer, Module


@config
class LinenInit(Initializer):
    """Draws one array as the linen module would, from a key of its own."""

    module: Any
    shapes: tuple[tuple[int, ...], ...]
    flags: Mapping[str, bool]
    path: tuple[str, ...]

    def sample(self, key: Array, shape: tuple[int, ...], fans: tuple[int, int]) -> Array:
        """Returns the array; what else the module initialises is left to the compiler to drop."""
        from flax.core import meta

        arrays = _initialised(self.module.build(), key, self.shapes, self.flags)
        array: Array = meta.unbox(arrays[self.path])
        return array


class LinenModule(Module):
    """A `flax.linen` module. Slot protocol: the parent fills `dim`."""

    @config
    class Config(Module.Config["LinenModule"]):
        """Describes a `LinenModule`.

        Args:
            module: The call that makes it: `config_for(nn.Dense, features=8)`.
            dim: Size of the last dimension of the input.
            dim_arguments: Arguments of the call that are given `dim`, such as `features`.
            input_shapes: Shapes of the inputs that it is initialised with; one of `[1, 1, dim]`
                where empty.
            training_flag: Argument that says whether it trains; None where it has none.
            flag_in_training: What the flag is in training: True for `train`, False for
                `deterministic` and `use_running_average`.
            streams: Random streams that it draws from in training.
        """

        module: Any = REQUIRED
        dim: PositiveInt = REQUIRED
        dim_arguments: tuple[str, ...] = ()
        input_shapes: tuple[tuple[int, ...], ...] = ()
        training_flag: str | None = None
        flag_in_training: bool = False
        streams: tuple[str, ...] = ("dropout",)

    def setup(self, cfg: Config) -> None:
        """Declares what flax would initialise."""
        from flax.core import meta

        call = sized(cfg.module, cfg.dim_arguments, cfg.dim)
        shapes = cfg.input_shapes or ((1, 1, cfg.dim),)
        flag = cfg.training_flag
        flags = {} if flag is None else {flag: not cfg.flag_in_training}
        self.linen = call.build()
        leaves = jax.eval_shape(lambda: _initialised(self.linen, jax.random.key(0), shapes, flags))
        self.arrays = FlaxArrays(
            self,
            {
                path: leaf_of(
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
        """Returns what the flax module returns, and keeps its new buffers in training."""
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
) -> dict[FlaxPath, Any]:
    """Returns the arrays that flax initialises, some in a box with their axes."""
    inputs = [jnp.zeros(shape, jnp.float32) for shape in shapes]
    return flat(linen.init(key, *inputs, **flags))
