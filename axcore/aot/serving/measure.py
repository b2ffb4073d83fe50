"""Compiling what an engine runs in this process, and reading it."""

import time
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from axcore.aot.cost.analysis import ProgramAnalysis, analyse, total_s
from axcore.aot.cost.flops import Product
from axcore.aot.cost.memory import capacity_bytes
from axcore.aot.cost.times import products_s
from axcore.aot.hlo.executions import unknown_loops
from axcore.aot.hlo.program import parse_program
from axcore.aot.serving.call_cost import CallCost, shared_evenly, sum_of_calls
from axcore.aot.serving.load import ServingLoad
from axcore.aot.serving.programs import DECODING, PREFILLING, Key, ServingProgram, ServingPrograms
from axcore.aot.serving.report import FirstToken, ServingReport
from axcore.aot.targets import compile_devices
from axcore.plugins import AotTarget, Hardware

NUM_AHEAD = 2
"""Calls that may be under way when a request comes: one runs, and the next one was started."""


def measure_serving(
    cfg: Any, hardware: Hardware, target: AotTarget, load: ServingLoad, *, experiment: str
) -> ServingReport:
    """Returns the report of a trainer's config that serves.

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
    measured = _Measured(programs, row_bytes + programs.pages_of_row * page_bytes)
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


def program_bytes(keys: tuple[Key, ...], costs: Mapping[Key, CallCost]) -> int:
    """Returns what all programs of an engine take.

    One that runs the model and was not compiled counts as the largest of its kind that was; those
    that do not run it are small, and count as nothing.
    """

    def largest(names: tuple[str, ...]) -> int:
        return max(
            (cost.program_bytes for key, cost in costs.items() if key[0] in names), default=0
        )

    kinds = {name: largest(names) for names in (PREFILLING, DECODING) for name in names}
    return sum(costs[key].program_bytes if key in costs else kinds.get(key[0], 0) for key in keys)


class _Measured:
    """Programs of an engine, each compiled once."""

    def __init__(self, programs: ServingPrograms, text_bytes: int) -> None:
        self._programs, self._text_bytes = programs, text_bytes
        self.costs: dict[Key, CallCost] = {}
        self.plans: dict[str, None] = {}
        self.compile_s = 0.0

    def token(self, rows: int) -> CallCost:
        """Returns what a token of each row takes while no text is read."""
        keys = self._programs.token_keys(rows)
        return shared_evenly(
            sum_of_calls([self._cost(key) for key in keys], rows=rows),
            self._programs.num_decode_steps,
        )

    def first_token(self, beside: int, decode: Mapping[int, CallCost]) -> FirstToken:
        """Returns what the first token after a prompt takes beside rows that draw."""
        pieces = self._programs.pieces
        costs = [self._cost(key) for key in self._programs.reading_keys]
        waits_s: float | None = 0.0
        if beside:
            token = decode[min(size for size in decode if size >= beside)]
            costs += [token] * (len(pieces) - 1)
            count = NUM_AHEAD * self._programs.num_decode_steps
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

    def _read(self, one: ServingProgram, compiled: Any) -> CallCost:
        programs, hardware = self._programs, self._programs.hardware
        stats, program = compiled.memory_analysis(), parse_program(compiled.as_text())
        analysis = analyse(program, hardware, one.plan.choices)
        waiting = None if analysis.waits_s is None else sum(analysis.waits_s)
        compiled_s = total_s((analysis.compute_s, analysis.kernels_s, waiting))
        moved_s = _memory_s(sum(found.nbytes for found in analysis.costs), hardware)
        known = compiled_s is not None and moved_s is not None
        caches = programs.all_cache_bytes() if one.num_passes else 0
        min_kind = one.num_passes * (programs.weight_bytes() + one.rows * self._text_bytes)
        return CallCost(
            rows=one.rows,
            tokens=one.num_passes,
            seconds=max(compiled_s or 0.0, moved_s or 0.0) if known else None,
            compiled_s=compiled_s,
            moved_s=moved_s,
            floor_s=_memory_s(min_kind, hardware),
            products_s=_products_s(analysis, programs),
            waiting_s=waiting,
            num_collectives=sum(found.times for found in analysis.collectives),
            num_instructions=_num_instructions(analysis),
            temporaries_bytes=stats.temp_size_in_bytes,
            program_bytes=stats.generated_code_size_in_bytes,
            copied_bytes=max(0, caches - stats.alias_size_in_bytes),
            unknown_loops=unknown_loops(program),
        )


def _memory_s(nbytes: float, hardware: Hardware) -> float | None:
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
