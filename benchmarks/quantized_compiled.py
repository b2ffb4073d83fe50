"""What float8 costs a train step apart from its products, by XLA's program; no GPU is needed.

    pip install "axl-gpu[aot]"
    JAX_PLATFORMS=cpu python benchmarks/quantized_compiled.py

compiles the step of two layers of the size of Llama 3 8B's for one GPU, 8192 tokens: once as it is,
each input quantized once for all products that read it, and once with a copy for each product.
It writes `results/quantized_compiled.json`. Nothing is run.
"""

import contextlib
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _record import record
from _train_step_axcore import config, trainer
from axl_gpu.compiler import devices
from gpu_train_step import Axcore, Size

from axcore.aot.cost.measure import analyse
from axcore.aot.hlo.program import parse_program
from axcore.module import Module
from axcore.plugins import Hardware

TARGET = "gpu-h100-8"
SIZE = Size(2, 1, 8192)
CASES = {
    "fp8_current": Axcore(dtype="fp8_current"),
    "fp8_delayed": Axcore(dtype="fp8_delayed"),
    "fp8_delayed, nothing recomputed": Axcore(dtype="fp8_delayed", remat="none"),
}
MADE = re.compile(r'f8e4m3fn\[8192,\S* convert\(.*op_name="\S*/(\w+)/dot/convert_element_type"')
"""A line that makes rows float8, and the layer that does."""

TURNED = re.compile(r"= f8e\w+\[\S*8192\S* (?:transpose|copy)\(")
"""A line that transposes or copies rows in float8."""


@contextlib.contextmanager
def each_by_itself() -> Iterator[None]:
    """Inside, every product makes its own low-precision copy of its input."""
    shared = Module.made_once
    Module.made_once = lambda self, name, array, make: make()  # type: ignore[method-assign]
    try:
        yield
    finally:
        Module.made_once = shared  # type: ignore[method-assign]


def figures(case: Axcore) -> dict[str, Any]:
    """Return what the compiled step of a case holds."""
    with tempfile.TemporaryDirectory() as folder:
        chips = devices(Hardware.parse(TARGET))[:1]
        ours = trainer(case, config(case, SIZE, Path(folder)), chips)
        compiled = ours.compiler.compiled_step
        text = compiled.as_text()
        analysis = analyse(parse_program(text), ours.hardware, ours.kernel_plan().choices)
    makers = MADE.findall(text)
    return {
        "inputs_made_narrow": len(makers),
        "by": sorted(makers),
        "rows_transposed_or_copied": len(TURNED.findall(text)),
        "temporaries_gib": round(compiled.memory_analysis().temp_size_in_bytes / 2**30, 3),
        "moved_gib": round(sum(one.nbytes for one in analysis.costs) / 2**30, 2),
    }


def main() -> None:
    found: dict[str, Any] = {"target": TARGET, "layers_rows_tokens": [2, 1, 8192]}
    for name, case in CASES.items():
        with each_by_itself():
            apart = figures(case)
        found[name] = {"shared": figures(case), "each_by_itself": apart}
        print(name, found[name], flush=True)
    print(record("quantized_compiled", found))


if __name__ == "__main__":
    main()
