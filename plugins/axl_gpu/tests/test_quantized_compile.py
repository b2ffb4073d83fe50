"""Train steps in float8 and int8, really compiled for H100s: linears multiply narrow operands."""

import re
from collections import Counter

import pytest

from axcore.config import evolve, update_config
from axcore.layers import Fp8Current, Fp8Delayed
from axcore.modifiers import Fp8Training, Int8Training
from axcore.module import DTypes
from axcore.testing import small_experiment, trainer_on

MODIFIERS = {
    "current": Fp8Training(dot=Fp8Current.Config()),
    "delayed": Fp8Training(dot=Fp8Delayed.Config()),
    "int8": Int8Training(),
}
LINEARS = 7
"""Of a layer, which is compiled once for all layers."""

MERGED = {"float8": 0, "int8": 3}
"""XLA makes one of int8 products of one input: query, key and value, and gate and up."""

CUBLAS = {"xla_gpu_enable_triton_gemm": False}
"""Products by cuBLAS, whose calls can be counted."""

pytestmark = pytest.mark.compile("gpu-h100-8")


def trainer(folder, devices, name=None):
    """A transformer of two scanned layers, in bfloat16, split over eight devices."""
    cfg = update_config(small_experiment(folder), {"model.decoder.stack.unroll": 1})
    model = evolve(cfg.model, dtypes=DTypes(compute="bfloat16"))
    cfg = evolve(cfg, model=model, mesh={"fsdp": 8}, kernels={"attention": "portable"})
    plain = trainer_on(cfg, devices)
    if name is None:
        return plain
    return trainer_on(MODIFIERS[name].apply(cfg, plain.hardware), devices)


def products(trainer):
    """How many matrix products of each operand format are in the compiled step."""
    program = trainer.compiler.lowered_step.compile(compiler_options=CUBLAS).as_text()
    found = re.findall(r'= \(?(\w+)\[.*custom_call_target="(__cublas[^"]*)"', program)
    kinds = Counter("float8" if call.endswith("$f8") else dtype for dtype, call in found)
    return {"float8": kinds.pop("float8", 0), "int8": kinds.pop("s32", 0), "wide": kinds.total()}


@pytest.fixture(scope="module")
def wide(tmp_path_factory, compile_devices):
    return products(trainer(tmp_path_factory.mktemp("text"), compile_devices))


@pytest.mark.parametrize(
    ("name", "dtype"), [("current", "float8"), ("delayed", "float8"), ("int8", "int8")]
)
def test_each_linear_compiles_to_three_narrow_products(
    tmp_path, compile_devices, wide, name, dtype
):
    narrow = trainer(tmp_path, compile_devices, name)
    found = products(narrow)
    assert narrow.hardware.name == "gpu-h100-8"
    assert found[dtype] == 3 * LINEARS - MERGED[dtype]
    assert found["wide"] <= wide["wide"] - LINEARS
    kernels = {
        one.kernel.name for one in narrow.kernel_plan().choices if "quantized" in one.call.op
    }
    assert dtype in kernels  # beside those of steps that this process traced before


def test_without_a_modifier_no_product_is_narrow(wide):
    assert (wide["float8"], wide["int8"]) == (0, 0)
    assert wide["wide"] >= 3 * LINEARS
