"""`ServingPrograms`: what a model that serves runs, lowered for devices that need not be here.

Letters of shapes: B rows, T tokens of a row in a call, P pages of a row.
"""

from collections.abc import Callable, Iterator
from typing import Any

import attrs
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Int

from axcore.aot.cost.memory import bytes_on_a_device
from axcore.aot.serving.load import ServingLoad
from axcore.config import evolve
from axcore.layers import PageRoom, ServingRoom, continued_rows
from axcore.modifiers import for_serving
from axcore.module import DTypes, Module, ParamSpec, apply_updates, functional
from axcore.ops import KernelPlan, KernelPolicy, recording_plan, use_policy
from axcore.parallel import (
    ActivationSharding,
    make_mesh,
    param_shardings,
    partition_spec,
    sharding_activations,
    where_divisible,
)
from axcore.plugins import Hardware, wanted_compiler_options

SPLIT_OVER_ALL = {"model": -1}
"""Where the config names no mesh: heads and hidden units over all chips, so that each reads its
share of the weights alone. Rows are many times fewer than in training; nothing splits them."""


@attrs.frozen(kw_only=True)
class ServingProgram:
    """A program that was lowered.

    Args:
        rows: B.
        tokens: T.
        lowered: The program, not yet compiled.
        plan: The kernels that it chose.
        weight_bytes: Of a device.
        cache_bytes: Of a device.
    """

    rows: int
    tokens: int
    lowered: Any
    plan: KernelPlan
    weight_bytes: int
    cache_bytes: int


class ServingPrograms:
    """The programs of one trainer's config on some hardware.

    Weights are stored in the dtype that they are computed in.

    Args:
        cfg: The trainer's config; a mesh in it holds.
        hardware: The target.
        devices: Its devices.
        load: The calls.

    Raises:
        ShardingError: The mesh does not fit the devices.
    """

    def __init__(self, cfg: Any, hardware: Hardware, devices: Any, load: ServingLoad) -> None:
        self.config = cfg
        self.hardware = hardware
        self.load = load
        self.mesh: Mesh = make_mesh(cfg.mesh or SPLIT_OVER_ALL, devices)
        compute = cfg.model.build().dtypes.compute
        self.compute_dtype = str(compute)
        dtypes = DTypes(param=compute, compute=compute)
        self._model_config = evolve(cfg.model, dtypes=dtypes)
        trained = _specs(self._model_config.build())
        self._trained = {path for spec in trained for path in spec.rng_paths()}

    @property
    def compiler_options(self) -> dict[str, Any] | None:
        """What plugins want programs to be compiled with."""
        return dict(wanted_compiler_options(self.hardware)) or None

    def each(self) -> Iterator[ServingProgram]:
        """Yields the program that reads a prompt, and those that decode, lowered one by one."""
        yield self._lowered(1, self.load.prompt)
        for rows in self.load.rows:
            yield self._lowered(rows, 1)

    def weight_bytes(self) -> int:
        """Returns the bytes of weights on a device."""
        return bytes_on_a_device(self._weights(self._call(1, 1)))

    def cache_bytes(self) -> tuple[int, int]:
        """Returns the bytes on a device that caches keep of a row, and besides of a page."""
        one, two = (
            bytes_on_a_device(self._caches(self._call(1, num_pages))) for num_pages in (1, 2)
        )
        return 2 * one - two, two - one

    def _lowered(self, rows: int, tokens: int) -> ServingProgram:
        call = self._call(rows, rows * self.load.pages_of_row)
        weights, caches = self._weights(call), self._caches(call)
        whole = NamedSharding(self.mesh, PartitionSpec())  # type: ignore[no-untyped-call]
        jitted = jax.jit(
            self._in_context(call),
            donate_argnums=1,
            out_shardings=(whole, [leaf.sharding for leaf in caches]),
        )
        table = (rows, self.load.pages_of_row)
        numbers = (
            jax.ShapeDtypeStruct(shape, jnp.int32, sharding=whole)  # type: ignore[no-untyped-call]
            for shape in ((rows, tokens), (rows,), (rows,), table)
        )
        with jax.set_mesh(self.mesh), recording_plan() as recording:
            lowered = jitted.lower(weights, caches, *numbers)
        return ServingProgram(
            rows=rows,
            tokens=tokens,
            lowered=lowered,
            plan=recording.plan(),
            weight_bytes=bytes_on_a_device(weights),
            cache_bytes=bytes_on_a_device(caches),
        )

    def _call(self, rows: int, num_pages: int) -> "_Call":
        room = ServingRoom(
            num_rows=rows,
            capacity=self.load.pages_of_row * self.load.page_size,
            max_length=self.load.context,
            pages=PageRoom(num_pages=num_pages, page_size=self.load.page_size),
        )
        return _Call(for_serving(self._model_config, room).build(), self._trained)

    def _weights(self, call: "_Call") -> list[Any]:
        shardings = param_shardings(call.weights, self.config.param_rules, self.mesh)
        return _abstract(call.weights, shardings)

    def _caches(self, call: "_Call") -> list[Any]:
        """Returns caches; a dimension that does not divide, as few key heads do not, is whole."""
        shardings = []
        for spec in call.caches:
            parts = partition_spec(spec.axes, self.config.activation_rules, self.mesh)
            whole = where_divisible(NamedSharding(self.mesh, parts), spec.shape)
            shardings.append(whole)
        return _abstract(call.caches, shardings)

    def _in_context(self, call: "_Call") -> Callable[..., Any]:
        """Returns a call that is traced under the mesh, its rules and the kernels' policy."""
        cfg = self.config
        activations = ActivationSharding(
            self.mesh, cfg.activation_rules, cfg.context_parallelism, cfg.param_rules
        )
        policy = KernelPolicy.of(cfg, self.hardware)

        def in_context(*args: Any) -> Any:
            with sharding_activations(activations), use_policy(policy):
                return call(*args)

        return in_context


class _Call:
    """One call of a model that serves: the likeliest next token of each row, and new caches."""

    def __init__(self, model: Module, trained: set[Any]) -> None:
        self.model = model
        leaves, self._structure = jax.tree.flatten(model.param_specs(), is_leaf=_is_spec)
        self._is_cache = [spec.rng_paths()[0] not in trained for spec in leaves]
        self.weights = self._picked(leaves, is_cache=False)
        self.caches = self._picked(leaves, is_cache=True)

    def __call__(
        self,
        weights: list[Array],
        caches: list[Array],
        tokens: Int[Array, "B T"],
        num_cached: Int[Array, " B"],
        num_new: Int[Array, " B"],
        page_table: Int[Array, "B P"],
    ) -> tuple[Int[Array, " B"], list[Array]]:
        parts = {False: iter(weights), True: iter(caches)}
        leaves = [next(parts[is_cache]) for is_cache in self._is_cache]
        state = jax.tree.unflatten(self._structure, leaves)
        info = continued_rows(tokens, num_cached, num_new, page_table=page_table)
        last = jnp.maximum(num_new - 1, 0)[:, None]
        logits, outputs = functional(self.model, state, tokens, info, at=last, method="logits")
        changed = jax.tree.leaves(apply_updates(state, outputs.updates))
        drawn = jnp.argmax(logits[:, 0], axis=-1).astype(jnp.int32)
        return drawn, self._picked(changed, is_cache=True)

    def _picked(self, leaves: list[Any], *, is_cache: bool) -> list[Any]:
        return [leaf for leaf, one in zip(leaves, self._is_cache, strict=True) if one == is_cache]


def _abstract(specs: list[ParamSpec], shardings: list[NamedSharding]) -> list[Any]:
    return [
        spec.abstract.update(sharding=sharding)  # type: ignore[no-untyped-call]
        for spec, sharding in zip(specs, shardings, strict=True)
    ]


def _specs(model: Module) -> list[ParamSpec]:
    return jax.tree.leaves(model.param_specs(), is_leaf=_is_spec)


def _is_spec(node: Any) -> bool:
    return isinstance(node, ParamSpec)
