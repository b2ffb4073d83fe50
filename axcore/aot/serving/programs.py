"""`ServingPrograms`: what an engine compiles, lowered for devices that need not be here."""

import math
from typing import Any

import attrs
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from axcore.aot.cost.memory import bytes_on_a_device, capacity_bytes
from axcore.aot.serving.load import ServingLoad
from axcore.errors import AotError, ConfigError
from axcore.inference.cached_model import CachedModel
from axcore.inference.config import batch_buckets
from axcore.inference.engine_core import sampler_kinds, scheduler_config
from axcore.inference.kv_cache import cached_model_of, fit_kv_cache, kv_cache_config, serving_mesh
from axcore.inference.model_functions import ModelFunctions
from axcore.inference.programs import program_table, sampler_values
from axcore.inference.sampler import packed_mask
from axcore.inference.warm_up import program_keys
from axcore.layers import KVCacheConfig, PagedKVCacheConfig
from axcore.ops import KernelPlan, KernelPolicy, recording_plan, use_policy
from axcore.parallel import make_mesh
from axcore.plugins import Hardware, wanted_compiler_options

Key = tuple[Any, ...]
"""Of a program: its name, and the sizes that it is made for; see `program_table`."""

PREFILLING = ("prefill", "score_prompt")
DECODING = ("multi_step_decode", "decode")
"""Names of programs that run the model: on texts, and on the last token of each row."""


@attrs.frozen(kw_only=True)
class ServingProgram:
    """A program that was lowered.

    Args:
        lowered: The program, not yet compiled.
        plan: The kernels that it chose.
        num_passes: How often it reads weights and caches.
        rows: Rows of a pass.
    """

    lowered: Any
    plan: KernelPlan
    num_passes: int
    rows: int


class ServingPrograms:
    """The programs of an engine for one trainer's config on some hardware.

    Args:
        cfg: The trainer's config; a mesh in it holds.
        hardware: The target.
        devices: Its devices; the first ones are used where the mesh has fewer.
        load: The engine and its texts.

    Attributes:
        mesh: What the model is split over.
        cache_config: Of the engine: as many pages as it takes there.
        keys: Of all programs that it compiles.
        decode_buckets: Numbers of rows that programs draw for.
        num_decode_steps: Tokens of a row that a call draws.
        pages_of_row: Pages of the longest text.

    Raises:
        AotError: Memory does not hold weights and one longest text.
        ConfigError: The engine's config does not fit itself.
        ShardingError: The mesh does not fit the devices.
    """

    def __init__(self, cfg: Any, hardware: Hardware, devices: Any, load: ServingLoad) -> None:
        self.hardware = hardware
        self.load = load
        self._policy = KernelPolicy.of(cfg, hardware)
        self._trained = cfg.model.build()
        engine = load.engine
        with use_policy(self._policy):
            shape = cfg.mesh or serving_mesh(self._trained, engine, hardware, len(devices))
        used = devices if -1 in shape.values() else devices[: math.prod(shape.values())]
        self.mesh: Mesh = make_mesh(shape, used)
        self.cache_config = self._fitting_config(kv_cache_config(engine))
        self._served = self._with_caches(self.cache_config)
        shapes = batch_buckets(engine, hardware)
        limits = scheduler_config(
            engine, self.cache_config, shapes, keeps_pages_only=self._served.keeps_pages_only
        )
        self._limits, self._shapes = limits, shapes
        self._kind, *_ = kinds = sampler_kinds(engine)
        self.keys: tuple[Key, ...] = tuple(program_keys(engine, limits, shapes, kinds))
        self.decode_buckets = shapes.decode_buckets
        self.num_decode_steps = limits.num_decode_steps
        self.compute_dtype = str(self._served.model.dtypes.compute)
        self.pages_of_row = -(-limits.max_length // limits.page_size)
        self._table = program_table(
            ModelFunctions(self._served, self.pages_of_row),
            pages_per_row=self.pages_of_row,
            vocab_size=self._served.vocab_size,
            mask=self._held["allowed"],
        )

    @property
    def compiler_options(self) -> dict[str, Any] | None:
        """What plugins want programs to be compiled with."""
        return dict(wanted_compiler_options(self.hardware, serves=True)) or None

    def token_keys(self, rows: int) -> tuple[Key, ...]:
        """Returns the programs that draw `num_decode_steps` tokens of rows, the likeliest ones."""
        if self.num_decode_steps > 1:
            return (("multi_step_decode", rows, self.num_decode_steps, self._kind),)
        return ("decode", rows), ("sample", rows, self._kind)

    @property
    def pieces(self) -> tuple[int, ...]:
        """The lengths in which a prompt is read."""
        missing, found = self.load.prompt, []
        while missing > 0:
            found.append(self._limits.piece_length(missing))
            missing -= found[-1]
        return tuple(found)

    @property
    def reading_keys(self) -> tuple[Key, ...]:
        """The programs that read a prompt, and draw its first token, one by one."""
        read = (("prefill", self._shapes.prefill_bucket(1, size), size) for size in self.pieces)
        return *read, ("sample", self._shapes.prefill_bucket(1, self.pieces[-1]), self._kind)

    def weight_bytes(self) -> int:
        """Returns the bytes of weights on a device."""
        return bytes_on_a_device(self._served.conversion.abstract)

    def drawing_bytes(self) -> int:
        """Returns the bytes on a device of what slots draw by."""
        return bytes_on_a_device(
            [self._held[name] for name in ("sampler_state", "sampling", "allowed")]
        )

    def cache_bytes(self) -> tuple[int, int]:
        """Returns the bytes on a device that caches keep of a row, and besides of a page."""
        if self.cache_config.pages is None:
            return self._served.cache_bytes // self.cache_config.num_rows, 0
        size = self.cache_config.pages.page_size
        one, two = (
            self._with_caches(
                attrs.evolve(
                    self.cache_config, pages=PagedKVCacheConfig(num_pages=number, page_size=size)
                )
            ).cache_bytes
            for number in (1, 2)
        )
        return (2 * one - two) // self.cache_config.num_rows, two - one

    def all_cache_bytes(self) -> int:
        """Returns the bytes of all caches of the engine on a device."""
        return self._served.cache_bytes

    def lowered(self, key: Key) -> ServingProgram:
        """Returns the program of a key."""
        name, *sizes = key
        places = {"caches": self._placed_caches, "sampler_state": self._whole}
        with recording_plan() as recording, use_policy(self._policy):
            lowered = self._table[name].lowered(tuple(sizes), self._held, (self._whole, places))
        passes = {"prefill": 1, "decode": 1, "multi_step_decode": self.num_decode_steps}
        return ServingProgram(
            lowered=lowered, plan=recording.plan(), num_passes=passes.get(name, 0), rows=sizes[0]
        )

    @property
    def _whole(self) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec())  # type: ignore[no-untyped-call]

    @property
    def _placed_caches(self) -> Any:
        return jax.tree.map(lambda leaf: leaf.sharding, self._served.abstract_caches)

    @property
    def _held(self) -> dict[str, Any]:
        """Shape, type and place of what an engine holds."""
        vocab_size = self._served.vocab_size
        allowed = packed_mask(np.ones((1, vocab_size), bool))
        drawing = jax.eval_shape(
            lambda: sampler_values(self.cache_config.num_rows, allowed, vocab_size)
        )
        return {
            "weights": self._served.conversion.abstract,
            "caches": self._served.abstract_caches,
            **jax.tree.map(lambda leaf: leaf.update(sharding=self._whole), drawing),
        }

    def _fitting_config(self, cache_config: KVCacheConfig) -> KVCacheConfig:
        served, capacity = self._with_caches(cache_config), capacity_bytes(self.hardware)
        weights = bytes_on_a_device(served.conversion.abstract)
        free = None if capacity is None else capacity - weights
        try:
            return fit_kv_cache(self.load.engine, cache_config, served, free)
        except ConfigError as error:
            raise AotError(
                f"it does not fit: weights take {weights:,} of {capacity:,} bytes, and "
                f"{error.what}",
                where=f"target {self.hardware.name}",
                hint=f"{error.hint}; or name more chips, or chips with more memory",
            ) from error

    def _with_caches(self, cache_config: KVCacheConfig) -> CachedModel:
        with use_policy(self._policy):
            made = cached_model_of(
                self._trained, self.load.engine, cache_config, mesh=self.mesh, draft=None
            )
        assert isinstance(made, CachedModel)  # there is no draft
        return made
