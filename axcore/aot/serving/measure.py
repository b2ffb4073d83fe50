"""Compile what an engine runs in this process, and read its costs off the compiled programs.

`ServingPrograms` lowers them for devices that need not exist.
"""

import math
import time
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import attrs
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from axcore.aot.cost.measure import ProgramAnalysis, analyse, total_s
from axcore.aot.cost.memory import bytes_on_a_device, capacity_bytes
from axcore.aot.cost.operations import Product
from axcore.aot.cost.times import products_s
from axcore.aot.hlo.loops import unknown_loops
from axcore.aot.hlo.program import parse_program
from axcore.aot.serving.report import (
    CallCost,
    FirstToken,
    ServingLoad,
    ServingReport,
    shared_evenly,
    sum_of_calls,
)
from axcore.aot.targets import compile_devices
from axcore.errors import AotError, ConfigError
from axcore.inference.cached_model import CachedModel
from axcore.inference.config import batch_buckets
from axcore.inference.engine_core import sampler_kinds, scheduler_config
from axcore.inference.kv_cache import cached_model_of, fit_kv_cache, kv_cache_config, serving_mesh
from axcore.inference.model_functions import ModelFunctions
from axcore.inference.programs import program_table, sampler_values
from axcore.inference.request import kind_index
from axcore.inference.sampler import packed_mask
from axcore.inference.warm_up import program_keys
from axcore.inference.weights import WeightConversion
from axcore.layers import KVCacheConfig, PagedKVCacheConfig
from axcore.ops import KernelPlan, KernelPolicy, recording_plan, use_policy
from axcore.parallel import make_mesh
from axcore.plugins import AotTarget, Hardware, wanted_compiler_options

_NUM_AHEAD = 2
"""Calls that may be under way when a request comes: one runs, and the next one was started."""


Key = tuple[Any, ...]
"""Of a program: its name, and the sizes that it is made for; see `program_table`."""

_PREFILLING = ("prefill", "score_prompt")
_DECODING = ("multi_step_decode", "decode")
"""Names of programs that run the model: on texts, and on the last token of each row."""


def measure_serving(
    cfg: Any, hardware: Hardware, target: AotTarget, load: ServingLoad, *, experiment: str
) -> ServingReport:
    """Return the report of a trainer's config that serves.

    Args:
        cfg: The trainer's config.
        hardware: What it is for.
        target: How to compile for it.
        load: The engine and its texts.
        experiment: Its name in the report.

    Raises:
        AxcoreError: The config does not fit the hardware.
    """
    programs = ServingPrograms(cfg, hardware, compile_devices(target, hardware), load)
    engine, pages = load.engine, programs.cache_config.pages
    row_bytes, page_bytes = programs.cache_bytes()
    measured = MeasuredPrograms(programs)
    beside = (
        0,
        *dict.fromkeys(min(size, engine.max_num_seqs - 1) for size in programs.decode_buckets),
    )
    decode = {size: measured.token(size) for size in programs.decode_buckets}
    first = [measured.first_token(rows, decode) for rows in dict.fromkeys(beside)]
    return ServingReport(
        experiment=experiment,
        target=hardware.name,
        chips=hardware.chips,
        compiler=target.name,
        limits=target.limits,
        versions={name: version(name) for name in ("jax", "jaxlib")},
        mesh={name: size for name, size in programs.mesh.shape.items() if size > 1},
        prompt=load.prompt,
        context=load.context,
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        num_decode_steps=programs.num_decode_steps,
        page_size=None if pages is None else pages.page_size,
        num_pages=None if pages is None else pages.num_pages,
        num_programs=len(programs.keys),
        num_compiled=len(measured.costs),
        compile_s=round(measured.compile_s, 3),
        capacity_bytes=capacity_bytes(hardware),
        weight_bytes=programs.weight_bytes(),
        drawing_bytes=programs.drawing_bytes(),
        program_bytes=program_bytes(programs.keys, measured.costs),
        temporaries_bytes=max(one.temporaries_bytes for one in measured.costs.values()),
        page_bytes=page_bytes,
        row_bytes=row_bytes,
        first=tuple(first),
        decode=tuple(decode.values()),
        kernels=tuple(measured.plans),
    )


@attrs.frozen(kw_only=True)
class _ServingProgram:
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
        mesh: What the model is split over; None takes that of the config, or as few devices as
            hold it.
        held_bytes: What else a device holds while it serves.

    Attributes:
        mesh: What the model is split over.
        cache_config: Of the engine: as many pages as it takes there.
        keys: Of all programs that it compiles.
        decode_buckets: Numbers of rows that programs sample for.
        enable_prefix_caching: Whether prompts that begin alike are computed once.
        num_decode_steps: Tokens that a call samples for a row.
        pages_of_row: Pages of the longest text.

    Raises:
        AotError: Memory does not hold weights and one longest text.
        ConfigError: The engine's config does not fit itself.
        ShardingError: The mesh does not fit the devices.
    """

    def __init__(
        self,
        cfg: Any,
        hardware: Hardware,
        devices: Any,
        load: ServingLoad,
        *,
        mesh: Mesh | None = None,
        held_bytes: int = 0,
    ) -> None:
        self.hardware = hardware
        self.load = load
        self._held_bytes = held_bytes
        self._policy = KernelPolicy.of(cfg, hardware)
        self._trained = cfg.model.build()
        engine = load.engine
        self.mesh: Mesh = self._own_mesh(cfg, devices) if mesh is None else mesh
        self.cache_config = self._fitting_config(kv_cache_config(engine))
        self._served = self._with_caches(self.cache_config)
        shapes = batch_buckets(engine, hardware)
        limits = scheduler_config(
            engine, self.cache_config, shapes, keeps_pages_only=self._served.keeps_pages_only
        )
        self._limits, self._shapes = limits, shapes
        self.enable_prefix_caching = limits.enable_prefix_caching
        kinds = sampler_kinds(engine)
        self._kind = kinds[kind_index(load.sampling, kinds)]
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
        """Return the programs that decode `num_decode_steps` tokens of rows."""
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

    @property
    def conversion(self) -> WeightConversion:
        """What makes the weights of a state."""
        return self._served.conversion

    def weight_bytes(self) -> int:
        """Return the bytes of weights on a device."""
        return bytes_on_a_device(self.conversion.abstract)

    def drawing_bytes(self) -> int:
        """Return the bytes on a device of each slot's sampling settings."""
        return bytes_on_a_device(
            [self._held[name] for name in ("sampler_state", "sampling", "allowed")]
        )

    def cache_bytes(self) -> tuple[int, int]:
        """Return the bytes on a device that caches keep of a row, and of a page."""
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
        """Return the bytes of all caches of the engine on a device."""
        return self._served.cache_bytes

    def lowered(self, key: Key) -> _ServingProgram:
        """Return the program of a key."""
        name, *sizes = key
        places = {"caches": self._placed_caches, "sampler_state": self._whole}
        with recording_plan() as recording, use_policy(self._policy):
            lowered = self._table[name].lowered(tuple(sizes), self._held, (self._whole, places))
        passes = {"prefill": 1, "decode": 1, "multi_step_decode": self.num_decode_steps}
        return _ServingProgram(
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

    def _own_mesh(self, cfg: Any, devices: Any) -> Mesh:
        with use_policy(self._policy):
            shape = cfg.mesh or serving_mesh(
                self._trained, self.load.engine, self.hardware, len(devices)
            )
        used = devices if -1 in shape.values() else devices[: math.prod(shape.values())]
        return make_mesh(shape, used)

    def _fitting_config(self, cache_config: KVCacheConfig) -> KVCacheConfig:
        served, capacity = self._with_caches(cache_config), capacity_bytes(self.hardware)
        weights = bytes_on_a_device(served.conversion.abstract)
        free = None if capacity is None else capacity - weights - self._held_bytes
        try:
            return fit_kv_cache(self.load.engine, cache_config, served, free)
        except ConfigError as error:
            raise AotError(
                f"it does not fit: weights take {weights:,} of {capacity:,} bytes, "
                + f"training {self._held_bytes:,}, " * bool(self._held_bytes)
                + f"and {error.what}",
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


def program_bytes(keys: tuple[Key, ...], costs: Mapping[Key, CallCost]) -> int:
    """Return what all programs of an engine take.

    One that runs the model and was not compiled counts as the largest of its kind that was; those
    that do not run it are small, and count as nothing.
    """

    def largest(names: tuple[str, ...]) -> int:
        return max(
            (cost.program_bytes for key, cost in costs.items() if key[0] in names), default=0
        )

    kinds = {name: largest(names) for names in (_PREFILLING, _DECODING) for name in names}
    return sum(costs[key].program_bytes if key in costs else kinds.get(key[0], 0) for key in keys)


class MeasuredPrograms:
    """Programs of an engine, each compiled once.

    Args:
        programs: Of the engine.

    Attributes:
        costs: Of each program that was compiled.
        plans: Lines that say which kernels they use.
        compile_s: Seconds that lowering and compiling took here.
    """

    def __init__(self, programs: ServingPrograms) -> None:
        row_bytes, page_bytes = programs.cache_bytes()
        self._programs = programs
        self._text_bytes = row_bytes + programs.pages_of_row * page_bytes
        self.costs: dict[Key, CallCost] = {}
        self.plans: dict[str, None] = {}
        self.compile_s = 0.0

    def token(self, rows: int) -> CallCost:
        """Return what a token of each row takes while no text is read."""
        keys = self._programs.token_keys(rows)
        return shared_evenly(
            sum_of_calls([self._cost(key) for key in keys], rows=rows),
            self._programs.num_decode_steps,
        )

    def first_token(self, beside: int, decode: Mapping[int, CallCost]) -> FirstToken:
        """Return what the first token after a prompt takes in addition to rows that decode."""
        pieces = self._programs.pieces
        costs = [self._cost(key) for key in self._programs.reading_keys]
        waits_s: float | None = 0.0
        if beside:
            token = decode[min(size for size in decode if size >= beside)]
            costs += [token] * (len(pieces) - 1)
            count = _NUM_AHEAD * self._programs.num_decode_steps
            waits_s = None if token.seconds is None else count * token.seconds
        total = sum_of_calls(costs, rows=1, tokens=self._programs.load.prompt)
        return FirstToken(beside=beside, pieces=pieces, waits_s=waits_s, cost=total)

    def _cost(self, key: Key) -> CallCost:
        if key not in self.costs:
            started = time.perf_counter()
            lowered = self._programs.lowered(key)
            options = self._programs.compiler_options
            compiled = lowered.lowered.compile(compiler_options=options)
            self.compile_s += time.perf_counter() - started
            self.plans.update(dict.fromkeys(str(lowered.plan).splitlines()))
            self.costs[key] = self._read(lowered, compiled)
        return self.costs[key]

    def _read(self, one: _ServingProgram, compiled: Any) -> CallCost:
        programs, hardware = self._programs, self._programs.hardware
        stats, program = compiled.memory_analysis(), parse_program(compiled.as_text())
        analysis = analyse(program, hardware, one.plan.choices)
        waiting = None if analysis.waits_s is None else sum(analysis.waits_s)
        compiled_s = total_s((analysis.compute_s, analysis.kernels_s, waiting))
        moved_s = memory_s(sum(found.nbytes for found in analysis.costs), hardware)
        known = compiled_s is not None and moved_s is not None
        caches = programs.all_cache_bytes() if one.num_passes else 0
        min_kind = one.num_passes * (programs.weight_bytes() + one.rows * self._text_bytes)
        return CallCost(
            rows=one.rows,
            tokens=one.num_passes,
            seconds=max(compiled_s or 0.0, moved_s or 0.0) if known else None,
            compiled_s=compiled_s,
            moved_s=moved_s,
            floor_s=memory_s(min_kind, hardware),
            products_s=_products_s(analysis, programs),
            waiting_s=waiting,
            num_collectives=sum(found.times for found in analysis.collectives),
            num_instructions=_num_instructions(analysis),
            temporaries_bytes=stats.temp_size_in_bytes,
            program_bytes=stats.generated_code_size_in_bytes,
            copied_bytes=max(0, caches - stats.alias_size_in_bytes),
            unknown_loops=unknown_loops(program),
        )


def memory_s(nbytes: float, hardware: Hardware) -> float | None:
    """Return the time in which a device's memory moves so many bytes; None where unknown."""
    if hardware.memory_bandwidth is None:
        return None
    return nbytes / (hardware.memory_bandwidth / hardware.devices_per_chip)


def _products_s(analysis: ProgramAnalysis, programs: ServingPrograms) -> float | None:
    hardware = programs.hardware
    if not hardware.peak_flops:
        return None
    kernels = [Product(one.flops, one.dtype, one.op_name) for one in analysis.kernels]
    rest = Product(sum(one.flops for one in analysis.costs), programs.compute_dtype, "")
    return products_s((*kernels, rest), hardware)


def _num_instructions(analysis: ProgramAnalysis) -> int:
    kernels = sum(one.times for one in analysis.kernels)
    return kernels + sum(one.times for one in analysis.costs if one.seconds)
