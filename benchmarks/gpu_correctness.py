"""A kernel for GPUs against its reference on the GPU at hand, compiled for the chip.

    python benchmarks/gpu_correctness.py attention/gpu_flash_attention
    python benchmarks/gpu_correctness.py attention/gpu_flash_attention --dry-run    # collects alone

writes `results/gpu_CHIP_correctness_OP.KERNEL.json` after each test: how each ended.
The suite's own tests run the kernels interpreted, since a GPU is seldom there, and smaller.
"""

import os
import sys
from pathlib import Path
from typing import Any

import jax
import pytest
from _gpu import results_name
from _record import record

from axcore.testing import (
    AttentionTestCase,
    Case,
    GroupedMatmulTestCase,
    KernelSuite,
    attention_case,
    grouped_matmul_case,
)
from axcore.testing.contracts import (
    CrossEntropyTestCase,
    DecodeTestCase,
    RmsNormTestCase,
    cross_entropy_case,
    decode_case,
    rms_norm_case,
)

KERNEL = "GPU_KERNEL"
"""The variable that names the kernel to the process of the tests."""


def attention(name: str, **fields: Any) -> Case:
    """Causal attention of sizes that fill tiles, and more heads than key heads."""
    sizes = {"batch": 2, "queries": 512, "keys": 512, "heads": 4, "key_heads": 2}
    widths = {"width": 128, "value_width": 128, "spec": {"right": 0}}
    return attention_case(AttentionTestCase(name=name, **{**sizes, **widths, **fields}))


def grouped(name: str, *sizes: int, num_rows: int, **widths: int) -> Case:
    """Products of groups."""
    fields = {"width": 128, "out_width": 192, **widths}
    return grouped_matmul_case(
        GroupedMatmulTestCase(name=name, group_sizes=sizes, num_rows=num_rows, **fields)
    )


def loss(name: str, **fields: Any) -> Case:
    """Cross-entropy of a width that fills tiles."""
    return cross_entropy_case(CrossEntropyTestCase(name=name, **{"width": 256, **fields}))


def decode(name: str, **fields: Any) -> Case:
    """Decode attention of a width that fills tiles."""
    sizes = {"width": 128, "value_width": 128, "lengths": (700, 17), "capacity": 1024}
    return decode_case(DecodeTestCase(name=name, **{**sizes, **fields}))


_DOCUMENTS = {"parts": ("segments",)}
_ATTENTION = (
    attention("tiles"),
    attention("odd_tokens", queries=387, keys=387),
    attention("window", spec={"left": 200, "right": 0}),
    attention("documents", **_DOCUMENTS),
    attention("packed", **_DOCUMENTS, key_heads=4),
    attention("width_64", width=64, value_width=64),
    attention("width_256", width=256, value_width=256),
)
CASES: dict[str, tuple[Case, ...]] = {
    "attention": _ATTENTION,
    "attention_backward": _ATTENTION,
    "grouped_matmul": (
        grouped("uneven", 200, 0, 313, 1, num_rows=514),
        grouped("leftover_rows", 100, 128, num_rows=300),
        grouped("one_group_takes_all", 0, 256, 0, num_rows=256),
        grouped("many_groups", *(33,) * 40, num_rows=1400, width=256, out_width=256),
    ),
    "cross_entropy": (
        loss("words", leading=(2, 200), vocabulary=1000),
        loss(
            "tied", leading=(300,), vocabulary=777, spec={"z_loss": 0.1, "vocabulary_first": True}
        ),
        loss("soft_cap", leading=(1, 64), vocabulary=512, spec={"soft_cap": 3.0}),
    ),
    "rms_norm": (
        rms_norm_case(RmsNormTestCase(name="rows", shape=(2, 129, 4096), scale_offset=1.0)),
        rms_norm_case(RmsNormTestCase(name="no_scale", shape=(7, 256), scale_dtype=None)),
    ),
    "decode_attention": (
        decode("whole"),
        decode("paged", page_size=64),
        decode("small_pages", page_size=16, lengths=(1, 0)),
        decode("sinks", has_sinks=True, queries=3, spec={"left": 300, "soft_cap": 3.0}),
        decode("int8", page_size=16, narrow="int8"),
        decode("float8", queries=3, narrow="float8_e4m3fn"),
        decode("prompt", page_size=64, queries=300, lengths=(700, 300)),
    ),
}
"""Added to the contract's own cases, most of which are narrower than what the kernels take."""


class TestKernel(KernelSuite):
    """The kernel that is asked for, or every one of the plugin's."""

    plugin = "axl-gpu"
    keys = (os.environ[KERNEL],) if KERNEL in os.environ else None
    dtypes = ("bfloat16",)

    def extra_cases(self, kernel: Any) -> tuple[Case, ...]:
        """Return cases of its op."""
        return CASES.get(kernel.op, ())

    def tolerance(self, dtype: str) -> tuple[float, float]:
        """Probabilities are rounded to bfloat16 before they meet the values."""
        return 2e-2, 4e-2


class Recorder:
    """Records how tests ended, after each, so that one that hangs costs no other."""

    def __init__(self, kernel: str) -> None:
        self.kernel = kernel
        # Before any test: one of them lets nobody ask jax for devices.
        self.gpu = jax.devices()[0].device_kind
        self.ended: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the outcome, and of a failure its last line."""
        if report.when != "call" and report.passed:
            return
        name = report.nodeid.rpartition("::")[2]
        print(
            report.longreprtext, flush=True
        )  # at once: a process that runs out of time shows none
        why = (report.longreprtext.strip().splitlines() or [""])[-1][:300]
        self.ended[name] = report.outcome if report.passed else f"{report.outcome}: {why}"
        is_right = all(how.startswith(("passed", "skipped")) for how in self.ended.values())
        figures = {"gpu": self.gpu, "kernel": self.kernel}
        name = f"correctness_{self.kernel.replace('/', '.')}"
        record(
            results_name(name, self.gpu), {**figures, "all_passed": is_right, "tests": self.ended}
        )


def main(kernel: str, *options: str) -> int:
    """Run the tests of a kernel, or collect them alone."""
    os.environ[KERNEL] = kernel
    ini = Path(__file__).parent / "gpu" / "pytest.ini"
    asked = ["-q", "--noconftest", "-p", "no:cacheprovider", "-c", str(ini), __file__]
    collects = ["--collect-only"] if "--dry-run" in options else []
    return int(pytest.main([*asked, *collects], plugins=[Recorder(kernel)]))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
