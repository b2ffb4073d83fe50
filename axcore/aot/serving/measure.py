"""Compiling a model's serving programs in this process, and reading them."""

import time
from importlib.metadata import version
from typing import Any

from axcore.aot.cost.analysis import ProgramAnalysis, analyse, total_s
from axcore.aot.cost.flops import Product
from axcore.aot.cost.memory import capacity_bytes
from axcore.aot.cost.times import products_s
from axcore.aot.hlo.executions import unknown_loops
from axcore.aot.hlo.program import parse_program
from axcore.aot.serving.load import ServingLoad
from axcore.aot.serving.programs import ServingProgram, ServingPrograms
from axcore.aot.serving.report import CallCost, ServingReport
from axcore.aot.targets import compile_devices
from axcore.plugins import AotTarget, Hardware


def measure_serving(
    cfg: Any, hardware: Hardware, target: AotTarget, load: ServingLoad, *, experiment: str
) -> ServingReport:
    """Returns the report of a trainer's config that serves.

    Args:
        cfg: The trainer's config.
        hardware: What it is for.
        target: How to compile for it.
        load: The calls.
        experiment: Its name in the report.

    Raises:
        AxcoreError: The config does not fit the hardware.
    """
    programs = ServingPrograms(cfg, hardware, compile_devices(target, hardware), load)
    costs, plans = [], {}
    for one in programs.each():
        costs.append(_cost(one, programs))
        plans.update(dict.fromkeys(str(one.plan).splitlines()))
    prefill, *decode = costs
    row_bytes, page_bytes = programs.cache_bytes()
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
        page_size=load.page_size,
        capacity_bytes=capacity_bytes(hardware),
        weight_bytes=programs.weight_bytes(),
        page_bytes=page_bytes,
        row_bytes=row_bytes,
        prefill=prefill,
        decode=tuple(decode),
        kernels=tuple(plans),
    )


def _cost(one: ServingProgram, programs: ServingPrograms) -> CallCost:
    started = time.perf_counter()
    compiled = one.lowered.compile(compiler_options=programs.compiler_options)
    took = time.perf_counter() - started
    stats = compiled.memory_analysis()
    program, hardware = parse_program(compiled.as_text()), programs.hardware
    analysis = analyse(program, hardware, one.plan.choices)
    waiting = None if analysis.waits_s is None else sum(analysis.waits_s)
    compiled_s = total_s((analysis.compute_s, analysis.kernels_s, waiting))
    moved_s = _memory_s(_moved_bytes(analysis), hardware)
    known = compiled_s is not None and moved_s is not None
    return CallCost(
        rows=one.rows,
        tokens=one.tokens,
        seconds=max(compiled_s or 0.0, moved_s or 0.0) if known else None,
        compiled_s=compiled_s,
        moved_s=moved_s,
        floor_s=_memory_s(one.weight_bytes + one.cache_bytes, hardware),
        products_s=_products_s(analysis, programs),
        waiting_s=waiting,
        num_collectives=sum(found.times for found in analysis.collectives),
        num_instructions=_num_instructions(analysis),
        temporaries_bytes=stats.temp_size_in_bytes,
        program_bytes=stats.generated_code_size_in_bytes,
        copied_bytes=max(0, one.cache_bytes - stats.alias_size_in_bytes),
        unknown_loops=unknown_loops(program),
        compile_s=round(took, 3),
    )


def _moved_bytes(analysis: ProgramAnalysis) -> float:
    return sum(one.nbytes for one in analysis.costs)


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
