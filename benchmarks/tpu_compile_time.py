"""How long a train step takes to compile for TPUs, by what fusions may hold on the chip.

    pip install "axl-tpu[aot]"
    python benchmarks/tpu_compile_time.py
    python benchmarks/tpu_compile_time.py --only "24 MiB"

compiles Llama 2 7B for 256 chips of v5p as its rule has it, each time in a process of its own, with
limits of `xla_tpu_scoped_vmem_limit_kib` and without other options that axl-tpu asks for. It writes
`results/tpu_compile_time.json`: processor time of libtpu's part, and what the program takes for it.
Nothing here has run on a chip.
"""

import time
from collections.abc import Mapping
from typing import Any

import attrs
from _apart import record_cases

from axcore.aot import compile_devices, find_aot_target
from axcore.aot.cost.measure import analyse, total_s
from axcore.aot.hlo.program import parse_program
from axcore.config import evolve
from axcore.experiments.named import load_resolved
from axcore.plugins import Hardware, wanted_compiler_options
from axcore.trainer import ResolvedConfig, Trainer

EXPERIMENT, TARGET = "llama2-7b", "tpu-v5p-512"
LIMIT = "xla_tpu_scoped_vmem_limit_kib"
CASES: Mapping[str, Mapping[str, Any]] = {
    "as axl-tpu asks": {},
    "fusions of 24 MiB": {LIMIT: 24 * 1024},
    "fusions of 16 MiB": {LIMIT: 16 * 1024},
    "weights are not gathered under products": {
        "xla_tpu_enable_async_collective_fusion": False,
        "xla_tpu_enable_async_collective_fusion_fuse_all_gather": False,
        "xla_tpu_enable_async_collective_fusion_fuse_all_reduce": False,
    },
}
"""By name, what is changed of the options that axl-tpu asks for."""


def measure(case: str) -> dict[str, Any]:
    """Return the figures of a case, in this process."""
    hardware = Hardware.parse(TARGET)
    resolved = load_resolved(EXPERIMENT, ("kernels.choice=fastest",), hardware=hardware)
    return compiled_figures(resolved, CASES[case])


def compiled_figures(resolved: ResolvedConfig, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of a step.

    Args:
        resolved: The trainer's config, for the hardware that the process compiles for.
        options: Of the compiler, in addition to those that plugins ask for, or in their place.
    """
    hardware = resolved.hardware
    config = evolve(resolved.config, data=resolved.config.data.for_shapes())
    devices = compile_devices(find_aot_target(hardware), hardware)
    trainer = Trainer(attrs.evolve(resolved, config=config), devices=devices)
    lowered = trainer.compiler.lowered_step
    started, used = time.perf_counter(), time.process_time()
    asked = {**wanted_compiler_options(hardware), **options}
    compiled = lowered.compile(compiler_options=asked)
    compile_s, processor_s = time.perf_counter() - started, time.process_time() - used
    text = compiled.as_text()
    found = analyse(parse_program(text), hardware, trainer.kernel_plan().choices)
    waits_s = None if found.waits_s is None else sum(found.waits_s)
    return {
        "options": dict(options),
        "processor_s": round(processor_s, 1),
        "compile_s": round(compile_s, 1),
        "instructions": text.count(" = "),
        "fusions": text.count(" fusion("),
        "temporaries_gib": round(compiled.memory_analysis().temp_size_in_bytes / 2**30, 2),
        "waits_s": waits_s,
        "predicted_step_s": total_s((found.compute_s, found.kernels_s, waits_s)),
    }


def main() -> None:
    summary = (__doc__ or "").splitlines()[0]
    record_cases("tpu_compile_time", tuple(CASES), measure, target=TARGET, summary=summary)


if __name__ == "__main__":
    main()
