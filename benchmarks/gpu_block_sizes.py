"""Block sizes of our kernels for GPUs, measured on the GPU at hand by `axcore kernels tune`.

    python benchmarks/gpu_block_sizes.py attention/gpu_flash_attention
    python benchmarks/gpu_block_sizes.py attention/gpu_flash_attention --dry-run    # counts alone

writes `results/block_sizes/OP.KERNEL.json` after each call of a model: the table that belongs
next to the kernel. One call that fails costs no other.
"""

import sys
from collections.abc import Iterator
from typing import Any

import _record

from axcore.cli.kernels_tune import tune_kernel
from axcore.errors import AxcoreError
from axcore.plugins import Hardware, Kernel, plugin_host
from axcore.testing.contracts import Case, contract_of

TARGET = "gpu-h100-1"
"""What candidates are counted for where there is no GPU."""


def calls(kernel: Kernel) -> Iterator[Case]:
    """Yield the calls of models that the kernel takes; each is made to be asked about."""
    assert kernel.unsupported_reason is not None
    reason = kernel.unsupported_reason.resolve()
    for case in contract_of(kernel.op).model_cases:
        if reason(case.abstract_call("bfloat16")) is None:
            yield case


def num_candidates(kernel: Kernel, case: Case) -> int:
    """Return how many block sizes are tried for a call."""
    assert kernel.block_sizes is not None
    table: Any = kernel.block_sizes.resolve()
    call, hardware = case.abstract_call("bfloat16"), Hardware.parse(TARGET)
    return len({table.default(call, hardware), *table.candidates(call, hardware)})


def main(key: str, *options: str) -> int:
    """Tunes a kernel for one call after another."""
    (kernel,) = [one for one in plugin_host().records(Kernel) if one.key == key]
    if "--dry-run" in options:
        first = next(calls(kernel))
        print(f"{key}: {num_candidates(kernel, first)} block sizes for {first.name} can be tried")
        return 0
    folder = _record.RESULTS / "block_sizes"
    folder.mkdir(parents=True, exist_ok=True)
    out = folder / f"{key.replace('/', '.')}.json"
    status = 0
    for case in calls(kernel):
        try:
            tune_kernel(key, names=(case.name,), dtype="bfloat16", repeats=5, out=out)
        except AxcoreError as error:
            print(f"{case.name}: {error}", flush=True)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
