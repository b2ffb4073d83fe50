"""Train steps in float8 and int8, compiled for H100s: linears multiply quantized operands."""

import re
from collections import Counter

import jax
import pytest

from axcore.config import evolve, update_config
from axcore.layers import Fp8Current, Fp8Delayed
from axcore.modifiers import Fp8Training, Int8Training
from axcore.module import DTypes
from axcore.ops.quantized.contract import FLOAT8
from axcore.ops.quantized.kernels import emulated_matmul
from axcore.ops.quantized.quantize import MATMULS
from axcore.ops.quantized.vjp import quantized_custom_vjp
from axcore.testing import small_experiment, trainer_on

MODIFIERS = {
    "current": Fp8Training(dot=Fp8Current.Config()),
    "delayed": Fp8Training(dot=Fp8Delayed.Config()),
    "int8": Int8Training(),
}
LINEARS = 7
"""Of a layer, which is compiled once for all layers."""

WIDE = 25
"""Products of a step without a modifier: three of each linear, and those of the loss."""

MERGED = {"float8": 6, "int8": 3}
"""XLA makes one of small products of one quantized input: query, key and value, and gate and up. In
float8 so are the gradients of their weights, which read the copy that was kept."""

READERS = {"q": 1, "out": 1, "gate": 1, "down": 1}
"""The layers that quantize an input, each the first that reads it, and how often they do."""

CUBLAS = {"xla_gpu_enable_triton_gemm": False}
"""Products by cuBLAS, whose calls can be counted."""

pytestmark = pytest.mark.compile("gpu-h100-8")


def trainer(folder, devices, name=None):
    """A transformer of two scanned layers, in bfloat16, split over eight devices."""
    cfg = update_config(small_experiment(folder), {"model.decoder.stack.unroll": 1})
    model = evolve(cfg.model, dtypes=DTypes(compute="bfloat16"))
    cfg = update_config(
        cfg, {"model": model, "mesh": {"fsdp": 8}, "kernels.pins": {"attention": "portable"}}
    )
    plain = trainer_on(cfg, devices)
    if name is None:
        return plain
    return trainer_on(MODIFIERS[name].apply(cfg, plain.hardware), devices)


def compiled(trainer):
    """The compiled step's text."""
    return trainer.compiler.lowered_step.compile(compiler_options=CUBLAS).as_text()


def products(program):
    """How many matrix products of each operand format are in a compiled step."""
    found = re.findall(r'= \(?(\w+)\[.*custom_call_target="(__cublas[^"]*)"', program)
    kinds = Counter("float8" if call.endswith("$f8") else dtype for dtype, call in found)
    return {"float8": kinds.pop("float8", 0), "int8": kinds.pop("s32", 0), "wide": kinds.total()}


def inputs_made_narrow(program, num_rows):
    """How often each layer makes rows float8 in a compiled step."""
    made = rf'f8e4m3fn\[{num_rows},\S* convert\(.*op_name="\S*/(\w+)/dot/convert_element_type"'
    return Counter(re.findall(made, program))


@pytest.mark.parametrize(
    ("name", "dtype"), [("current", "float8"), ("delayed", "float8"), ("int8", "int8")]
)
def test_each_linear_compiles_to_three_narrow_products(tmp_path, compile_devices, name, dtype):
    narrow = trainer(tmp_path, compile_devices, name)
    program = compiled(narrow)
    found = products(program)
    assert narrow.hardware.name == "gpu-h100-8"
    assert found[dtype] == 3 * LINEARS - MERGED[dtype]
    assert found["wide"] <= WIDE - LINEARS
    if dtype == "float8":
        rows_of_a_device = narrow.batch_spec.num_units // len(compile_devices)
        assert inputs_made_narrow(program, rows_of_a_device) == READERS
    kernels = {
        one.kernel.name for one in narrow.kernel_plan().choices if "quantized" in one.call.op
    }
    assert dtype in kernels  # in addition to those of steps that this process traced before


def test_without_a_modifier_no_product_is_narrow(tmp_path, compile_devices):
    found = products(compiled(trainer(tmp_path, compile_devices)))
    assert found == {"float8": 0, "int8": 0, "wide": WIDE}


def test_emulated_products_round_their_operands(compile_devices):
    """XLA for GPUs drops a cast to float8 and back where nothing is between them."""
    one = jax.sharding.SingleDeviceSharding(compile_devices[0])
    x, w = (jax.ShapeDtypeStruct(shape, "bfloat16", sharding=one) for shape in ((32, 16), (16, 64)))
    kernels = dict.fromkeys(MATMULS, emulated_matmul)
    run = jax.jit(lambda x, w: quantized_custom_vjp(x, w, FLOAT8, kernels))
    program = run.lower(x, w).compile().as_text()
    assert len(re.findall(r"f8e4m3fn\[[\d,]+\]\S* convert\(", program)) == 2
