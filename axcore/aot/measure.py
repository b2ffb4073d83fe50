"""Compiling a trainer's step in this process, and reading everything off the result."""

import time
from collections import defaultdict
from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

import attrs
import jax

from axcore.aot.buffers import peak_of
from axcore.aot.collectives import Collective, collectives
from axcore.aot.custom_kernels import CustomKernel, custom_kernels
from axcore.aot.executions import unknown_loops
from axcore.aot.memory import measured_memory, refused_memory
from axcore.aot.modules import ModuleNames, module_paths
from axcore.aot.program import Program, parse_program
from axcore.aot.report import CollectiveCost, ModuleCost, Report, StepTime
from axcore.aot.times import Cost, costs, kernel_s, misses_loops, waiting_s
from axcore.config import evolve
from axcore.data import ByteTokenizer, StandardLibrary
from axcore.plugins import AotTarget, Hardware
from axcore.trainer import Trainer
from axcore.trainer.flops import FORMULA, flops_per_token
from axcore.trainer.pipelines import describe_pipelines

NO_MEMORY = "RESOURCE_EXHAUSTED"


@attrs.frozen(kw_only=True)
class Reading:
    """A compiled program, read: its costs, kernels and collectives, and how long those wait."""

    costs: tuple[Cost, ...]
    kernels: tuple[CustomKernel, ...]
    collectives: tuple[Collective, ...]
    waits_s: tuple[float, ...] | None


def without_data(cfg: Any) -> Any:
    """Returns a trainer's config that needs no text and no tokenizer; shapes stay what they are."""
    data = evolve(cfg.data, source=StandardLibrary.Config(), tokenizer=ByteTokenizer.Config())
    return evolve(cfg, data=data)


def measure(cfg: Any, hardware: Hardware, target: AotTarget, *, experiment: str) -> Report:
    """Returns the report of a trainer's step, compiled here for devices that need not be here.

    Args:
        cfg: The trainer's config.
        hardware: What it is for.
        target: How to compile for it.
        experiment: Its name in the report.

    Raises:
        AxcoreError: The config does not fit the hardware: whatever `Trainer` and its step raise.
    """
    devices = target.devices.resolve()(hardware)
    trainer = Trainer(without_data(cfg), devices=devices, hardware=hardware)
    started = time.perf_counter()
    trainer.lowered_step()
    lowered = time.perf_counter()
    refusal = ""
    try:
        compiled = trainer.step_program()
    except jax.errors.JaxRuntimeError as error:
        if NO_MEMORY not in str(error):
            raise
        refusal = str(error).splitlines()[0]
    plain = Report(
        experiment=experiment,
        target=hardware.name,
        chips=hardware.chips,
        compiler=target.name,
        limits=target.limits,
        versions={name: version(name) for name in ("jax", "jaxlib")},
        mesh={name: size for name, size in trainer.mesh.shape.items() if size > 1},
        pipelines=describe_pipelines(trainer.config, trainer.mesh),
        batch={"rows": trainer.config.data.batch_size, "tokens": trainer.config.data.seq_len},
        fits=False,
        refusal=refusal,
        changes=trainer.hardware_changes,
        kernels=tuple(str(trainer.kernel_plan()).splitlines()),
        lower_s=round(lowered - started, 3),
        compile_s=round(time.perf_counter() - lowered, 3),
    )
    if refusal:
        return attrs.evolve(plain, memory=refused_memory(refusal, trainer))
    return _with_figures(plain, trainer, compiled)


def _with_figures(plain: Report, trainer: Any, compiled: Any) -> Report:
    program = parse_program(compiled.as_text())
    names = ModuleNames(module_paths(trainer.model))
    reading = _read(program, trainer)
    memory = measured_memory(compiled.memory_analysis(), trainer, peak_of(program), names)
    return attrs.evolve(
        plain,
        fits=memory.fits,
        memory=memory,
        time=_step_time(reading, trainer, unknown_loops(program)),
        modules=_modules(reading, names, trainer.hardware),
        collectives=_collectives(reading, names),
        unknown_loops=unknown_loops(program),
    )


def _read(program: Program, trainer: Any) -> Reading:
    hardware = trainer.hardware
    kernels = tuple(custom_kernels(program, trainer.kernel_plan().choices))
    work = costs(program, hardware, kernels)
    found = tuple(collectives(program, hardware))
    return Reading(
        costs=work,
        kernels=kernels,
        collectives=found,
        waits_s=waiting_s(program, found, work, kernels, hardware),
    )


def _step_time(reading: Reading, trainer: Any, num_unknown: int) -> StepTime:
    hardware = trainer.hardware
    compute = _total(one.seconds for one in reading.costs)
    kernels = _total(kernel_s(one, hardware) for one in reading.kernels)
    waiting = None if reading.waits_s is None else sum(reading.waits_s)
    step = _total((compute, kernels, waiting))
    mfu = None if step is None else _mfu(trainer, step)
    if misses_loops(mfu, num_unknown):
        step = mfu = None
    cycles = sum(one.cycles for one in reading.costs)
    return StepTime(
        source="cycles" if cycles else "roofline",
        cycles=cycles,
        compute_s=compute,
        products_s=None if compute is None else _products_s(reading),
        kernels_s=kernels,
        collectives_s=waiting,
        step_s=step,
        mfu=mfu,
        formula=FORMULA,
        reached=dict(hardware.reached),
    )


def _products_s(reading: Reading) -> float:
    return sum(one.seconds or 0.0 for one in reading.costs if one.is_product)


def _mfu(trainer: Any, step_s: float) -> float | None:
    data = trainer.config.data
    peak = trainer.hardware.peak_flops.get(str(trainer.model.dtypes.compute))
    if peak is None:
        return None
    flops = flops_per_token(trainer.model, data.seq_len) * data.batch_size * data.seq_len
    return float(flops / (step_s * peak * trainer.hardware.chips))


def _total(parts: Iterable[float | None]) -> float | None:
    """Returns the sum, None where a part is not known."""
    known = list(parts)
    return None if None in known else float(sum(part for part in known if part is not None))


def _modules(reading: Reading, names: ModuleNames, hardware: Hardware) -> tuple[ModuleCost, ...]:
    flops: dict[str, float] = defaultdict(float)
    nbytes: dict[str, float] = defaultdict(float)
    sent: dict[str, float] = defaultdict(float)
    seconds: dict[str, list[float | None]] = defaultdict(list)
    for cost in reading.costs:
        flops[names(cost.op_name)] += cost.flops
        nbytes[names(cost.op_name)] += cost.nbytes
        seconds[names(cost.op_name)].append(cost.seconds)
    for kernel in reading.kernels:
        flops[names(kernel.op_name)] += kernel.flops
        seconds[names(kernel.op_name)].append(kernel_s(kernel, hardware))
    for one in reading.collectives:
        sent[names(one.op_name)] += one.sent_bytes
    rows = [
        ModuleCost(
            module=module,
            flops=flops[module],
            nbytes=nbytes[module],
            sent_bytes=sent[module],
            seconds=_total(seconds[module]),
        )
        for module in {**flops, **sent}
        if flops[module] or nbytes[module] or sent[module]
    ]
    return tuple(sorted(rows, key=lambda row: (-(row.seconds or 0.0), -row.flops, -row.nbytes)))


def _collectives(reading: Reading, names: ModuleNames) -> tuple[CollectiveCost, ...]:
    rows: dict[tuple[str, str, bool], tuple[int, float, float]] = {}
    waits = reading.waits_s or (0.0,) * len(reading.collectives)
    for one, waited in zip(reading.collectives, waits, strict=True):
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
            waited_s=None if reading.waits_s is None else waited,
        )
        for (kind, module, is_hidden), (count, sent, waited) in rows.items()
    ]
    return tuple(sorted(made, key=lambda row: -row.sent_bytes))
