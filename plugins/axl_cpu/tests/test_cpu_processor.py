"""Kernels for processors that are not available: their vectors, and what LLVM makes of them."""

import re

import pytest
from axl_cpu import doctor
from axl_cpu.kernels.decode_attention.api import cpu_decode_attention
from axl_cpu.kernels.decode_matmul.api import cpu_decode_matmul
from axl_cpu.llvm.processor import Processor
from other_processors import assemblies

from axcore.testing.contracts import DecodeMatmulTestCase, DecodeTestCase

X86, ARM, APPLE = "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu", "arm64-apple-macosx14.0"
AVX512 = "+avx2,+avx512f,+fma"


@pytest.mark.parametrize(
    ("triple", "features", "lanes", "num_vectors"),
    [
        (X86, AVX512, 16, 32),
        (X86, "+avx2,-avx512f,+fma", 8, 16),
        (X86, "+avx2,-fma", 4, 16),
        (X86, "", 4, 16),
        (ARM, "+neon,+sve", 4, 32),
        (APPLE, "", 4, 32),
    ],
)
def test_vectors_are_the_longest_that_a_processor_has(triple, features, lanes, num_vectors):
    processor = Processor.of(triple, "any", features)
    assert (processor.lanes, processor.num_vectors) == (lanes, num_vectors)


CALLS = {
    "row": (cpu_decode_matmul, DecodeMatmulTestCase(name="row", rows=1)),
    "rows": (cpu_decode_matmul, DecodeMatmulTestCase(name="rows", rows=8)),
    "panels": (cpu_decode_matmul, DecodeMatmulTestCase(name="panels", rows=8, is_in_panels=True)),
    "transposed": (cpu_decode_matmul, DecodeMatmulTestCase(name="transposed", transposed=True)),
    "int4": (cpu_decode_matmul, DecodeMatmulTestCase(name="int4", narrow="int4", num_groups=4)),
    "attention": (cpu_decode_attention, DecodeTestCase(name="attention", page_size=8)),
}


OTHERS = (
    ("znver4", X86, AVX512, r"vfmadd\S+\s.*%zmm", "fmaf"),
    ("sapphirerapids", X86, AVX512, r"vfmadd\S+\s.*%zmm", "fmaf"),
    ("haswell", X86, "+avx2,+fma", r"vfmadd\S+\s.*%ymm", "zmm"),
    ("x86-64", X86, "", r"mulps\s.*%xmm", "ymm|zmm|fma"),
    ("neoverse-n1", ARM, "", r"fmla\s+v\d+\.4s", "fmaf"),
    ("apple-m1", APPLE, "", r"fmla\.4s\s+v\d+", "fmaf"),
)
"""Processors, what their code of a kernel has, and what it does not have."""


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("processor", OTHERS, ids=lambda one: one[0])
@pytest.mark.quick_one_in(4)
def test_kernels_compile_for_processors_that_are_not_here(call, processor):
    """Into products of full vectors, rounded once where the processor can."""
    name, triple, features, has, lacks = processor
    function, sample = CALLS[call]
    (text,) = assemblies(Processor.of(triple, name, features), function, *sample.make())
    assert re.search(has, text)
    assert not re.search(lacks, text)


@pytest.mark.parametrize(("triple", "level"), [(X86, "ok"), (ARM, "warning")])
def test_the_doctor_says_where_no_kernel_ever_ran(monkeypatch, triple, level):
    processor = Processor.of(triple, "some", "+avx2,+fma")
    monkeypatch.setattr("axl_cpu.llvm.processor.this_processor", lambda: processor)
    (found,) = doctor.llvm()
    assert found.level == level
    assert f"for some: {processor.lanes} float32 numbers" in found.text
    assert (level == "ok") != found.text.endswith(f"never ran on {triple}")
