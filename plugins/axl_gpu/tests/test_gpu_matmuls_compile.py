"""Our kernels of products and norms, compiled for H100s: real code of sm_90a."""

import attrs
import jax
import pytest

from axcore.ops import KernelPolicy, cross_entropy, use_policy
from axcore.ops.quantized.contract import E4M3, FLOAT8, QuantizedDotTestCase
from axcore.plugins import Hardware
from axcore.testing import CompileSuite, GroupedMatmulTestCase, grouped_matmul_case
from axcore.testing.contracts import (
    QUANTIZED_DOT,
    CrossEntropyTestCase,
    RmsNormTestCase,
    cross_entropy_case,
    rms_norm_case,
)

MOSAIC = 'custom_call_target="mosaic_gpu'


def grouped(name, *group_sizes, **fields):
    return grouped_matmul_case(GroupedMatmulTestCase(name=name, group_sizes=group_sizes, **fields))


def loss(name, **fields):
    return cross_entropy_case(CrossEntropyTestCase(name=name, **fields))


def narrow(name, **fields):
    spec = attrs.evolve(FLOAT8, gradients=E4M3)  # as products of one format alone are taken
    sample = QuantizedDotTestCase(name=name, spec=spec, **fields)
    return attrs.evolve(QUANTIZED_DOT.cases[0], name=name, make=sample.make)


def norm(name, **fields):
    return rms_norm_case(RmsNormTestCase(name=name, **fields))


class TestCompile(CompileSuite):
    plugin = "axl-gpu"
    targets = ("gpu-h100-8",)
    keys = (
        "cross_entropy/gpu_cross_entropy",
        "grouped_matmul/gpu_grouped_matmul",
        "quantized_dot/gpu_float8_matmul",
        "rms_norm/gpu_rms_norm",
    )
    calls = {
        "gpu_cross_entropy": (MOSAIC, 2),
        "gpu_float8_matmul": (MOSAIC, 3),
        "gpu_grouped_matmul": (MOSAIC, 3),
        "gpu_rms_norm": (MOSAIC, 2),
    }

    def cases(self, kernel):
        return self.cases_of[kernel.name]

    cases_of = {
        "gpu_cross_entropy": (
            loss("words", leading=(8, 1024), width=1024, vocabulary=32000, w_dtype="float32"),
            loss(
                "odd",
                leading=(3, 77),
                width=192,
                vocabulary=50257,
                spec={"vocabulary_first": True, "z_loss": 1e-4, "soft_cap": 30.0},
            ),
        ),
        "gpu_float8_matmul": (
            narrow("tokens", leading=(8, 512), width=1024, out_width=3584),
            narrow("odd", leading=(77,), width=100, out_width=200),
        ),
        "gpu_rms_norm": (
            norm("tokens", shape=(8, 1024, 4096)),
            norm("odd", shape=(7, 13, 768), scale_dtype="bfloat16", scale_offset=1.0),
            norm("widest", shape=(100, 8192), scale_dtype=None),
        ),
        "gpu_grouped_matmul": (
            grouped("experts", *(512,) * 8, num_rows=4096, width=1024, out_width=2048),
            grouped("one_group", 200, num_rows=256, width=128, out_width=64),
            grouped("odd", 100, 0, 80, num_rows=203, width=64, out_width=192),
            grouped("many_groups", *(8,) * 320, num_rows=2560, width=256, out_width=256),
        ),
    }


@pytest.mark.compile("gpu-h100-8")
def test_cross_entropy_takes_a_tenth_of_the_memory_of_its_logits(compile_devices):
    tokens, width, vocabulary = 8192, 4096, 128256  # those of Llama 3 8B
    one = jax.sharding.SingleDeviceSharding(compile_devices[0])

    def abstract(shape, dtype):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=one)

    def loss(x, w, targets, weights):
        return cross_entropy(x, w, targets, weights)[0]

    pins = {"cross_entropy": "gpu_cross_entropy"}
    with use_policy(KernelPolicy(hardware=Hardware.parse("gpu-h100-8"), pins=pins)):
        program = jax.jit(jax.grad(loss, (0, 1))).lower(
            abstract((1, tokens, width), "bfloat16"),
            abstract((width, vocabulary), "bfloat16"),
            abstract((1, tokens), "int32"),
            abstract((1, tokens), "float32"),
        )
    assert program.compile().memory_analysis().temp_size_in_bytes <= 4 * tokens * vocabulary / 10
