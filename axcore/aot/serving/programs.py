"""`ServingPrograms`: what a model that serves runs, lowered for devices that need not be here.

Letters of shapes: B rows, T tokens of a row in a call, P pages of a row.
"""

import math
from collections.abc import Iterator
from typing import Any

import attrs
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Int

from axcore.aot.cost.memory import bytes_on_a_device
from axcore.aot.serving.load import ServingLoad
from axcore.inference import EngineConfig
from axcore.inference.cached_model import CachedModel
from axcore.inference.engine_room import with_caches
from axcore.inference.serving_mesh import serving_mesh
from axcore.layers import PageRoom, ServingRoom
from axcore.ops import KernelPlan, KernelPolicy, recording_plan, use_policy
from axcore.parallel import make_mesh
from axcore.plugins import Hardware, wanted_compiler_options


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
    """The programs of one trainer's config on some hardware, of the model that an engine makes.

    Args:
        cfg: The trainer's config; a mesh in it holds.
        hardware: The target.
        devices: Its devices; the first ones are used where the mesh has fewer.
        load: The calls.

    Raises:
        ShardingError: The mesh does not fit the devices.
    """

    def __init__(self, cfg: Any, hardware: Hardware, devices: Any, load: ServingLoad) -> None:
        self.hardware = hardware
        self.load = load
        self._policy = KernelPolicy.of(cfg, hardware)
        self._engine = EngineConfig(max_length=load.context, weights=load.weights)
        self._trained = cfg.model.build()
        with use_policy(self._policy):
            shape = cfg.mesh or serving_mesh(self._trained, self._engine, hardware, len(devices))
        used = devices if -1 in shape.values() else devices[: math.prod(shape.values())]
        self.mesh: Mesh = make_mesh(shape, used)
        self.compute_dtype = str(self._call(1, 1).model.dtypes.compute)

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
        return bytes_on_a_device(self._call(1, 1).conversion.abstract)

    def cache_bytes(self) -> tuple[int, int]:
        """Returns the bytes on a device that caches keep of a row, and besides of a page."""
        one, two = (self._call(1, num_pages).cache_bytes for num_pages in (1, 2))
        return 2 * one - two, two - one

    def _lowered(self, rows: int, tokens: int) -> ServingProgram:
        model = self._call(rows, rows * self.load.pages_of_row)
        weights, caches = model.conversion.abstract, model.abstract_caches
        whole = NamedSharding(self.mesh, PartitionSpec())  # type: ignore[no-untyped-call]

        def likeliest(
            weights: Any,
            caches: Any,
            tokens: Int[Array, "B T"],
            num_cached: Int[Array, " B"],
            num_new: Int[Array, " B"],
            page_table: Int[Array, "B P"],
        ) -> tuple[Int[Array, " B"], Any]:
            """Returns the likeliest next token of each row, and new caches."""
            logits, caches = model.step(
                weights, caches, tokens, num_cached, num_new, page_table=page_table
            )
            return jnp.argmax(logits, axis=-1).astype(jnp.int32), caches

        jitted = jax.jit(
            likeliest,
            donate_argnums=1,
            out_shardings=(whole, jax.tree.map(lambda leaf: leaf.sharding, caches)),
        )
        table = (rows, self.load.pages_of_row)
        numbers = (
            jax.ShapeDtypeStruct(shape, jnp.int32, sharding=whole)  # type: ignore[no-untyped-call]
            for shape in ((rows, tokens), (rows,), (rows,), table)
        )
        with jax.set_mesh(self.mesh), recording_plan() as recording, use_policy(self._policy):
            lowered = jitted.lower(weights, caches, *numbers)
        return ServingProgram(
            rows=rows,
            tokens=tokens,
            lowered=lowered,
            plan=recording.plan(),
            weight_bytes=bytes_on_a_device(weights),
            cache_bytes=bytes_on_a_device(caches),
        )

    def _call(self, rows: int, num_pages: int) -> CachedModel:
        room = ServingRoom(
            num_rows=rows,
            capacity=self.load.pages_of_row * self.load.page_size,
            max_length=self.load.context,
            pages=PageRoom(num_pages=num_pages, page_size=self.load.page_size),
        )
        with use_policy(self._policy):
            made = with_caches(self._trained, self._engine, room, mesh=self.mesh, draft=None)
        assert isinstance(made, CachedModel)  # there is no draft
        return made
