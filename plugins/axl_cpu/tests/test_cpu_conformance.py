"""axl-cpu, proven by axcore's suites."""

from typing import ClassVar

import jax
import numpy as np
import pytest
from axl_cpu.kernels.decode_matmul.api import cpu_decode_matmul
from other_processors import SHORTER, on

from axcore.testing import KernelSuite, PluginSuite, SamplerSuite
from axcore.testing.contracts import (
    Case,
    DecodeMatmulTestCase,
    DecodeTestCase,
    decode_case,
    decode_matmul_case,
)


class TestPlugin(PluginSuite):
    plugin = "axl-cpu"


@pytest.mark.slow
class TestSampler(SamplerSuite):
    plugin = "axl-cpu"


@pytest.mark.quick_one_in(4)
class TestKernels(KernelSuite):
    plugin = "axl-cpu"

    def extra_cases(self, kernel) -> tuple[Case, ...]:
        if kernel.op == "decode_matmul":
            return (
                decode_matmul_case(DecodeMatmulTestCase(name="most_rows", rows=64, out_dim=200)),
                decode_matmul_case(
                    DecodeMatmulTestCase(name="large", rows=8, in_dim=300, out_dim=1000)
                ),
            )
        wide = {
            "lengths": (599, 17, 0, 300),
            "capacity": 608,
            "width": 32,
            "value_width": 48,
            "queries": 3,
            "has_sinks": True,
            "spec": {"left": 300, "soft_cap": 3.0},
        }
        return tuple(
            decode_case(DecodeTestCase(**{"name": name, **wide, **change}))
            for name, change in {
                "wide_everything": {},
                "wide_pages": {"page_size": 32},
                "wide_odd_pages": {"page_size": 19},
                "wide_int8": {"page_size": 32, "narrow": "int8"},
                "wide_float8": {"narrow": "float8_e4m3fn", "has_sinks": False},
            }.items()
        )


class ShorterVectors(TestKernels):
    """The same by code for a processor with shorter vectors, which this one runs."""

    name: ClassVar[str]

    def implementation(self, kernel):
        processors = [one for one in SHORTER if one.name == self.name]
        if not processors:
            pytest.skip(f"this processor does not run code for {self.name}, or has no other")
        return on(processors[0], super().implementation(kernel))


@pytest.mark.quick_one_in(4)
class TestKernelsByVectorsOf8(ShorterVectors):
    name = "x86-64-v3"


@pytest.mark.quick_one_in(4)
class TestKernelsByVectorsOf4(ShorterVectors):
    name = "x86-64"


@pytest.mark.parametrize("narrow", [None, "int8", "int4"])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.quick_one_in(2)
def test_a_row_gives_the_same_bits_beside_any_others(narrow, transposed):
    """So what a request gets depends on no other one."""
    if narrow and transposed:
        pytest.skip("low-precision weights are not transposed")
    sample = DecodeMatmulTestCase(
        name="bits",
        rows=21,
        in_dim=1024,
        out_dim=328,
        narrow=narrow,
        transposed=transposed,
        num_groups=16 if narrow == "int4" else 1,
    )
    inputs, spec = sample.make()
    together = jax.jit(cpu_decode_matmul, static_argnums=1)(inputs, spec)
    for rows in (slice(0, 1), slice(5, 7), slice(3, 12), slice(20, 21)):
        alone = jax.jit(cpu_decode_matmul, static_argnums=1)(
            inputs._replace(x_RK=inputs.x_RK[rows]), spec
        )
        np.testing.assert_array_equal(alone, together[rows])
