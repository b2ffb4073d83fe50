"""`Param`, which a module declares in `setup`, and `ParamSpec`, which `param_specs()` returns.

A parameter's first value is from an initializer, a config that makes it of a key, a shape and fans;
its dtype is from the module's `DTypes`.
"""

import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import attrs
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from axcore.config import config
from axcore.errors import ModuleError
from axcore.module.rng import Path, fold_paths, format_path

DType = Literal["float32", "bfloat16", "float16", "float64"]


@config
class DTypes:
    """The dtypes of a module. None inherits from the parent; the root's are float32.

    Args:
        param: Stored parameters. What is trained is stored in float32, or in bfloat16 where its
            optimizer rounds that, as `LowPrecisionState` does; other learners refuse it.
        compute: What `self.weight` reads as, and so what most arithmetic runs in.
        output: What the module returns; by default what it computed.
    """

    param: DType | None = None
    compute: DType | None = None
    output: DType | None = None

    def inheriting(self, parent: "DTypes") -> "DTypes":
        """Return these dtypes with the parent's where they are None."""
        return DTypes(
            param=self.param or parent.param,
            compute=self.compute or parent.compute,
            output=self.output or parent.output,
        )


ROOT_DTYPES = DTypes(param="float32", compute="float32")


Distribution = Literal["normal", "truncated_normal", "uniform"]


@config
class Initializer:
    """Samples an initial value. Subclasses implement `sample`."""

    def sample(self, key: Array, shape: tuple[int, ...], fans: tuple[int, int]) -> Array:
        """Return a float32 array.

        Args:
            key: The parameter's own random key.
            shape: The parameter's shape, without dimensions of stacked layers.
            fans: Number of inputs that each output sums over, and of outputs each input reaches.
        """
        raise NotImplementedError


@config
class ConstantInit(Initializer):
    """Every element is `value`."""

    value: float = 0.0

    def sample(self, key: Array, shape: tuple[int, ...], fans: tuple[int, int]) -> Array:
        """Return a constant array."""
        return jnp.full(shape, self.value, jnp.float32)


@config
class Normal(Initializer):
    """Normal with standard deviation `std`, whatever the fans."""

    std: float = 0.02

    def sample(self, key: Array, shape: tuple[int, ...], fans: tuple[int, int]) -> Array:
        """Return normal samples."""
        return self.std * jax.random.normal(key, shape, jnp.float32)


@config
class VarianceScaling(Initializer):
    """Zero mean and variance `scale / fan`.

    Source: He et al. 2015, arXiv:1502.01852, eq. 10 (fan_in, scale 2); Glorot and Bengio 2010,
    eq. 16 (fan_avg, scale 1).
    """

    scale: float = 1.0
    fan: Literal["fan_in", "fan_out", "fan_avg"] = "fan_in"
    distribution: Distribution = "truncated_normal"

    def sample(self, key: Array, shape: tuple[int, ...], fans: tuple[int, int]) -> Array:
        """Return samples scaled by the fans."""
        fan_in, fan_out = fans
        fan = {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}[self.fan]
        std = math.sqrt(self.scale / max(1.0, fan))
        if self.distribution == "normal":
            return std * jax.random.normal(key, shape, jnp.float32)
        if self.distribution == "uniform":
            limit = math.sqrt(3.0) * std
            return jax.random.uniform(key, shape, jnp.float32, -limit, limit)
        # A normal truncated at two standard deviations has 0.8796 of the deviation of a full one.
        samples = jax.random.truncated_normal(key, -2.0, 2.0, shape, jnp.float32)
        return std / 0.87962566103423978 * samples


# Names of what a dimension is, not of mesh axes: a layer must not know how it is split.
Axes = tuple[str | None, ...]
"""Logical axis names, one a dimension; None is never sharded."""

Merge = Literal["mean", "max"]
"""How the values that parts of a batch give a buffer become that of the whole."""


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value)


@attrs.frozen(kw_only=True)
class ParamDeclaration:
    """What `Param` returns, and what a module keeps of it; see there."""

    shape: tuple[int, ...] = attrs.field(converter=_as_tuple)
    axes: Axes = attrs.field(converter=_as_tuple)
    init: Initializer | float
    inputs: tuple[str, ...] | None
    decay: bool | None
    is_buffer: bool
    merge: Merge
    is_overwritten_by_gradient: bool
    cast: bool
    dtype: str | None

    @property
    def is_cast(self) -> bool:
        """Whether its module reads it in the compute dtype, where that and it are floating."""
        return self.cast and not self.is_buffer

    def __attrs_post_init__(self) -> None:
        if self.is_overwritten_by_gradient and not self.is_buffer:
            raise ModuleError(
                "is_overwritten_by_gradient is for buffers; a parameter's gradient is for optax",
                hint="add is_buffer=True",
            )
        if len(self.axes) != len(self.shape):
            raise ModuleError(
                f"a Param of shape {self.shape} has {len(self.shape)} dimensions, "
                f"but axes {self.axes}",
                hint="name one logical axis a dimension, None for one that is never sharded",
            )
        unknown = [name for name in self.inputs or () if name not in self.axes]
        if unknown:
            raise ModuleError(f"inputs names {unknown[0]!r}, which is not among axes {self.axes}")


def Param(  # noqa: N802 - reads as the declaration that it is
    shape: Iterable[int],
    *,
    axes: Iterable[str | None],
    init: Initializer | float = VarianceScaling(),  # noqa: B008 - a frozen value
    inputs: tuple[str, ...] | None = None,
    decay: bool | None = None,
    is_buffer: bool = False,
    merge: Merge = "mean",
    is_overwritten_by_gradient: bool = False,
    cast: bool = True,
    dtype: str | None = None,
) -> Array:
    """Declare an array in `setup`: `self.weight = Param((dim, hidden), axes=("embed", "mlp"))`.

    To type checkers it is the array that `self.weight` reads as inside of a method.

    Args:
        shape: Its shape.
        axes: Logical axis names, one a dimension. Mesh axes are the trainer's business.
        init: Samples the first value. A float is a constant.
        inputs: Names of the axes that the layer sums over, for the fan-in; by default all but the
            last.
        decay: Whether weight decay applies. By default it does to arrays of two or more dimensions.
        is_buffer: Kept and saved, but not trained: changed by `self.update` only.
        merge: How the values that micro-batches give a buffer become that of the batch.
        is_overwritten_by_gradient: The buffer's next value is its gradient, by which an op's
            backward pass reports what it measured; it is not to be updated otherwise.
        cast: Whether `self.weight` reads in the compute dtype; False reads it as it is stored.
        dtype: Stored dtype; by default the module's parameter dtype, float32 at least for a
            buffer.

    Raises:
        ModuleError: Axes do not fit the shape, or inputs the axes, or a parameter is said to be
            from the backward pass.
    """
    declaration: Any = ParamDeclaration(
        shape=shape,
        axes=axes,
        init=init,
        inputs=inputs,
        decay=decay,
        is_buffer=is_buffer,
        merge=merge,
        is_overwritten_by_gradient=is_overwritten_by_gradient,
        cast=cast,
        dtype=dtype,
    )
    # The declared type is a lie that helps: inside of methods
    # `self.weight` is an array, and editors should say so.
    array: Array = declaration
    return array


@attrs.frozen
class Stacked:
    """A step of a path at which copies of a module are stacked on leading dimensions.

    Copy `i` has place `i` of those dimensions, counted through the last of them first.
    """

    shape: tuple[int, ...]


@attrs.frozen(kw_only=True)
class ParamSpec:
    """Describes one array of a state, without holding it.

    `shape` and `axes` include the leading dimensions of stacked layers. Of a parameter that a
    learner freezes, `is_frozen` says so; modules do not know. `compute_dtype` is what the module
    reads it as, None for as it is stored.
    """

    path: tuple[str | int | Stacked, ...]
    shape: tuple[int, ...]
    dtype: str
    axes: Axes
    init: Initializer
    fans: tuple[int, int]
    decay: bool
    is_buffer: bool
    merge: Merge = "mean"
    is_overwritten_by_gradient: bool = False
    is_frozen: bool = False
    compute_dtype: str | None = None

    @property
    def is_trainable(self) -> bool:
        """Whether an optimizer may change it."""
        return not (self.is_buffer or self.is_frozen)

    @property
    def state_path(self) -> Path:
        """Its path in the state."""
        return tuple(step for step in self.path if not isinstance(step, Stacked))

    @property
    def name(self) -> str:
        """Its path in the state as text."""
        return format_path(self.state_path)

    @property
    def size(self) -> int:
        """Its number of elements."""
        return math.prod(self.shape)

    @property
    def is_matrix(self) -> bool:
        """Whether it has two dimensions, those of stacked modules not counted."""
        return len(self.shape) - self.num_stacked == 2

    @property
    def num_stacked(self) -> int:
        """Number of its leading dimensions that are of stacked modules."""
        return sum(len(step.shape) for step in self.path if isinstance(step, Stacked))

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        return self.size * jnp.dtype(self.dtype).itemsize

    @property
    def abstract(self) -> jax.ShapeDtypeStruct:
        """Its shape and dtype as jax knows them."""
        return jax.ShapeDtypeStruct(self.shape, jnp.dtype(self.dtype))  # type: ignore[no-untyped-call]

    @property
    def stored_as_read(self) -> "ParamSpec":
        """The spec of the same array, stored in the dtype that its module reads it as."""
        # What serving keeps: cast once, instead of at every step.
        if self.compute_dtype is None or not jnp.issubdtype(self.dtype, jnp.floating):
            return self
        return attrs.evolve(self, dtype=self.compute_dtype)

    def as_read(self, array: Array) -> Array:
        """Return the array as its module reads it."""
        is_cast = self.compute_dtype is not None and jnp.issubdtype(array.dtype, jnp.floating)
        return array.astype(self.compute_dtype) if is_cast else array

    def rng_paths(self) -> list[Path]:
        """Return the paths of the keys that it is sampled from: one for each copy."""
        steps = (
            range(math.prod(step.shape)) if isinstance(step, Stacked) else (step,)
            for step in self.path
        )
        # In the order of the stacked dimensions, the last
        # one fastest, as `reshape` in `sample` expects.
        return list(itertools.product(*steps))

    def sample(self, keys: Array) -> Array:
        """Return an initial value; `keys` are those of `rng_paths`."""
        stacked = [size for step in self.path if isinstance(step, Stacked) for size in step.shape]
        shape = self.shape[len(stacked) :]

        def draw(key: Array) -> Array:
            # Without the stacked dimensions, so that a copy
            # samples what an unrolled layer of the same path does.
            return self.init.sample(key, shape, self.fans)

        # `vmap` over keys rather than one sample of the full shape:
        # those numbers would depend on how many layers there are.
        value: Array = jax.vmap(draw)(keys).reshape(self.shape) if stacked else draw(keys[0])
        return value.astype(self.dtype)


def sample_params(specs: Any, key: Array) -> Any:
    """Return initial values for a tree of specs.

    The key of every value is folded from its path, so its siblings never change it. Those of
    unrolled layers are sampled together, as those of scanned ones are: what compiles grows with the
    kinds of parameters, not with the layers.
    """
    leaves, structure = jax.tree.flatten(specs, is_leaf=lambda leaf: isinstance(leaf, ParamSpec))
    paths = [spec.rng_paths() for spec in leaves]
    keys = fold_paths(key, [path for of_spec in paths for path in of_spec])
    begins = [*itertools.accumulate((len(of_spec) for of_spec in paths), initial=0)]
    values: dict[int, Array] = {}
    for alike in _drawn_alike(leaves):
        # By equal settings, not by name: what compiles is one sample for each kind.
        spec, begin = leaves[alike[0]], begins[alike[0]]
        if len(alike) == 1:
            values[alike[0]] = spec.sample(keys[begin : begin + len(paths[alike[0]])])
            continue
        together = stacked_spec(spec, (len(alike),), (None,), at=0)
        drawn = together.sample(keys[np.asarray([begins[number] for number in alike])])
        values |= dict(zip(alike, drawn, strict=True))
    return jax.tree.unflatten(structure, [values[number] for number in range(len(leaves))])


def _drawn_alike(specs: list[ParamSpec]) -> Iterable[list[int]]:
    """Return the numbers of specs whose values differ by their keys alone; stacked ones alone."""
    groups: dict[Any, list[int]] = {}
    for number, spec in enumerate(specs):
        kind = number if spec.num_stacked else (spec.init, spec.shape, spec.fans, spec.dtype)
        groups.setdefault(kind, []).append(number)
    return groups.values()


def param_spec_of(param: ParamDeclaration, path: Path, dtypes: DTypes) -> ParamSpec:
    """Return the spec of a declared parameter of a module with these dtypes."""
    init = (
        ConstantInit(value=float(param.init))
        if isinstance(param.init, (int, float))
        else param.init
    )
    return ParamSpec(
        path=path,
        shape=param.shape,
        dtype=param.dtype or _stored_dtype(param, str(dtypes.param)),
        axes=param.axes,
        init=init,
        fans=_fans(param),
        decay=_decays(param),
        is_buffer=param.is_buffer,
        merge=param.merge,
        is_overwritten_by_gradient=param.is_overwritten_by_gradient,
        compute_dtype=dtypes.compute if param.is_cast else None,
    )


def _stored_dtype(param: ParamDeclaration, default: str) -> str:
    # A running mean in bfloat16 stops moving once a change is below 1/256 of it.
    is_quantized = jnp.dtype(default).itemsize < 4
    return "float32" if param.is_buffer and is_quantized else default


def stacked_spec(spec: ParamSpec, shape: tuple[int, ...], axes: Axes, at: int) -> ParamSpec:
    """Return the spec of copies of such an array, stacked at step `at` of the path."""
    return attrs.evolve(
        spec,
        path=(*spec.path[:at], Stacked(shape), *spec.path[at:]),
        shape=(*shape, *spec.shape),
        axes=(*axes, *spec.axes),
    )


def _decays(param: ParamDeclaration) -> bool:
    if param.is_buffer:
        return False
    # Vectors are biases and norms' scales, which decay would only pull away from where they belong.
    return len(param.shape) >= 2 if param.decay is None else param.decay


def _fans(param: ParamDeclaration) -> tuple[int, int]:
    names = param.axes[:-1] if param.inputs is None else param.inputs
    sized = list(zip(param.axes, param.shape, strict=True))
    if param.inputs is None:
        return math.prod(param.shape[:-1]), math.prod(param.shape[-1:])
    fan_in = math.prod(size for name, size in sized if name in names)
    return fan_in, math.prod(size for name, size in sized if name not in names)


def count_params(specs: Mapping[str, Any], *, trainable_only: bool = True) -> int:
    """Return the number of parameters that a tree of specs describes; allocates nothing."""
    leaves = jax.tree.leaves(specs, is_leaf=lambda leaf: isinstance(leaf, ParamSpec))
    return sum(spec.size for spec in leaves if spec.is_trainable or not trainable_only)
