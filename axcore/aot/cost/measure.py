"""Compile a trainer's step in this process, and read its costs off the compiled program."""

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Any

import attrs
import jax

from axcore.aot.cost.memory import measured_memory, memory_from_oom_error
from axcore.aot.cost.operations import CustomKernel, custom_kernels
from axcore.aot.cost.times import Cost, costs, has_unknown_loops, kernel_s, waiting_s
from axcore.aot.hlo.buffers import peak_of
from axcore.aot.hlo.collectives import Collective, collectives
from axcore.aot.hlo.loops import unknown_loops
from axcore.aot.hlo.program import ModuleNames, Program, module_paths, parse_program
from axcore.aot.report.report import CollectiveCost, ModuleCost, Report, StepTime
from axcore.aot.targets import compile_devices
from axcore.config import evolve
from axcore.ops import ChosenKernel
from axcore.plugins import AotTarget, Hardware
from axcore.trainer import ResolvedConfig, Trainer
from axcore.trainer.shardings import describe_pipelines

NO_MEMORY = "RESOURCE_EXHAUSTED"


def measure(resolved: ResolvedConfig, target: AotTarget, *, experiment: str) -> Report:
    """Return the report of a trainer's step, compiled here for devices that need not be here.

    Args:
        resolved: The trainer's config, and the hardware that it is for; no data is needed.
        target: How to compile for it.
        experiment: Its name in the report.

    Raises:
        AxcoreError: The config does not fit the hardware: all that `Trainer` and its step raise.
    """
    return measure_step(trainer_for(resolved, target), target, experiment=experiment)


def trainer_for(resolved: ResolvedConfig, target: AotTarget) -> Trainer:
    """Return a trainer on devices that need not be here, which reads no file of the user's.

    Raises:
        AxcoreError: The config does not fit the hardware.
    """
    without_files = evolve(resolved.config, data=resolved.config.data.for_shapes())
    return Trainer(
        attrs.evolve(resolved, config=without_files),
        devices=compile_devices(target, resolved.hardware),
    )


def measure_step(trainer: Any, target: AotTarget, *, experiment: str) -> Report:
    """Return the report of the step of a trainer that `trainer_for` made."""
    hardware, batch = trainer.hardware, trainer.batch_spec
    started = time.perf_counter()
    _ = trainer.compiler.lowered_step
    lowered = time.perf_counter()
    refusal = ""
    try:
        compiled = trainer.compiler.compiled_step
    except jax.errors.JaxRuntimeError as error:
        if NO_MEMORY not in str(error):
            raise
        refusal = str(error).splitlines()[0]
    # A row may be the unit itself, as of pictures.
    is_row = batch.unit == "row"
    units = {} if is_row else {f"{batch.unit}s": batch.num_units // batch.num_rows}
    plain = Report(
        experiment=experiment,
        target=hardware.name,
        chips=hardware.chips,
        compiler=target.name,
        limits=target.limits,
        versions={name: version(name) for name in ("jax", "jaxlib")},
        mesh={name: size for name, size in trainer.mesh.shape.items() if size > 1},
        pipelines=describe_pipelines(trainer.config, trainer.mesh),
        batch={"rows": batch.num_rows, **units},
        fits=False,
        refusal=refusal,
        kernels=tuple(str(trainer.kernel_plan()).splitlines()),
        lower_s=round(lowered - started, 3),
        compile_s=round(time.perf_counter() - lowered, 3),
    )
    if refusal:
        return attrs.evolve(plain, memory=memory_from_oom_error(refusal, trainer))
    return _with_figures(plain, trainer, compiled)


def _with_figures(plain: Report, trainer: Any, compiled: Any) -> Report:
    program = parse_program(compiled.as_text())
    names = ModuleNames(module_paths(trainer.model))
    analysis = analyse(program, trainer.hardware, trainer.kernel_plan().choices)
    memory = measured_memory(compiled.memory_analysis(), trainer, peak_of(program), names)
    return attrs.evolve(
        plain,
        fits=memory.fits,
        memory=memory,
        time=_step_time(analysis, trainer, unknown_loops(program)),
        modules=_modules(analysis, names, trainer.hardware),
        collectives=_collectives(analysis, names),
        unknown_loops=unknown_loops(program),
    )


@attrs.frozen(kw_only=True)
class ProgramAnalysis:
    """A program's costs, kernels and collectives, and how long those wait; None where unknown."""

    costs: tuple[Cost, ...]
    kernels: tuple[CustomKernel, ...]
    collectives: tuple[Collective, ...]
    compute_s: float | None
    kernels_s: float | None
    waits_s: tuple[float, ...] | None


def _step_time(analysis: ProgramAnalysis, trainer: Any, num_unknown: int) -> StepTime:
    hardware = trainer.hardware
    compute, kernels = analysis.compute_s, analysis.kernels_s
    waiting = None if analysis.waits_s is None else sum(analysis.waits_s)
    step = total_s((compute, kernels, waiting))
    flops = trainer.task.flops_per_unit(trainer.batch_spec)
    mfu = None if step is None or flops is None else _mfu(trainer, flops.per_unit, step)
    if has_unknown_loops(mfu, num_unknown):
        step = mfu = None
    cycles = sum(one.cycles for one in analysis.costs)
    return StepTime(
        source="cycles" if cycles else "roofline",
        cycles=cycles,
        compute_s=compute,
        products_s=None if compute is None else _products_s(analysis),
        kernels_s=kernels,
        collectives_s=waiting,
        step_s=step,
        mfu=mfu,
        mfu_peak=str(trainer.model.dtypes.compute),
        formula=flops.formula if flops else "not known",
        achievable_fraction=dict(hardware.achievable_fraction),
    )


def _products_s(analysis: ProgramAnalysis) -> float:
    return sum(one.seconds or 0.0 for one in analysis.costs if one.is_product)


def _mfu(trainer: Any, flops_per_unit: float, step_s: float) -> float | None:
    peak = trainer.hardware.peak_flops.get(str(trainer.model.dtypes.compute))
    if peak is None:
        return None
    flops = flops_per_unit * trainer.batch_spec.num_units
    return float(flops / (step_s * peak * trainer.hardware.chips))


def _modules(
    analysis: ProgramAnalysis, names: ModuleNames, hardware: Hardware
) -> tuple[ModuleCost, ...]:
    flops: dict[str, float] = defaultdict(float)
    nbytes: dict[str, float] = defaultdict(float)
    sent: dict[str, float] = defaultdict(float)
    seconds: dict[str, list[float | None]] = defaultdict(list)
    for cost in analysis.costs:
        flops[names(cost.op_name)] += cost.flops
        nbytes[names(cost.op_name)] += cost.nbytes
        seconds[names(cost.op_name)].append(cost.seconds)
    for kernel in analysis.kernels:
        flops[names(kernel.op_name)] += kernel.flops
        seconds[names(kernel.op_name)].append(kernel_s(kernel, hardware))
    for one in analysis.collectives:
        sent[names(one.op_name)] += one.sent_bytes
    rows = [
        ModuleCost(
            module=module,
            flops=flops[module],
            nbytes=nbytes[module],
            sent_bytes=sent[module],
            seconds=total_s(seconds[module]),
        )
        for module in {**flops, **sent}
        if flops[module] or nbytes[module] or sent[module]
    ]
    return tuple(sorted(rows, key=lambda row: (-(row.seconds or 0.0), -row.flops, -row.nbytes)))


def _collectives(analysis: ProgramAnalysis, names: ModuleNames) -> tuple[CollectiveCost, ...]:
    rows: dict[tuple[str, str, bool], tuple[int, float, float]] = {}
    waits = analysis.waits_s or (0.0,) * len(analysis.collectives)
    for one, waited in zip(analysis.collectives, waits, strict=True):
        key = (one.kind, names(one.op_name), one.is_hidden)
        count, sent, before = rows.get(key, (0, 0.0, 0.0))
        rows[key] = (count + one.times, sent + one.sent_bytes, before + waited)
    made = [
        CollectiveCost(
            kind=kind,
            module=module,
            count=count,
            sent_bytes=sent,
            is_hidden=is_hidden,
            waited_s=None if analysis.waits_s is None else waited,
        )
        for (kind, module, is_hidden), (count, sent, waited) in rows.items()
    ]
    return tuple(sorted(made, key=lambda row: -row.sent_bytes))


def analyse(
    program: Program, hardware: Hardware, choices: Sequence[ChosenKernel]
) -> ProgramAnalysis:
    """Return what a program costs.

    Args:
        program: The program.
        hardware: What it runs on.
        choices: The kernels that were chosen while it was traced.
    """
    kernels = tuple(custom_kernels(program, choices))
    work = costs(program, hardware, kernels)
    found = tuple(collectives(program, hardware))
    return ProgramAnalysis(
        costs=work,
        kernels=kernels,
        collectives=found,
        compute_s=total_s(one.seconds for one in work),
        kernels_s=total_s(kernel_s(one, hardware) for one in kernels),
        waits_s=waiting_s(program, found, work, kernels, hardware),
    )


def total_s(parts: Iterable[float | None]) -> float | None:
    """Return the sum, None where a part is not known."""
    known = list(parts)
    return None if None in known else float(sum(part for part in known if part is not None))
