"""The libraries' kernels that axl-gpu brings, compiled by XLA for H100s.

The Pallas kernel becomes real code of sm_90a. cuDNN's graphs are built when a program is loaded on
a GPU, so here XLA only takes its calls; that they are the calls that JAX makes is shown below.
"""

import json
import re

import jax
import pytest
from axl_gpu.kernels.attention.cudnn import cudnn_attention
from compile_cases import attention, grouped

from axcore.testing import CompileSuite


class TestCompile(CompileSuite):
    plugin = "axl-gpu"
    targets = ("gpu-h100-8",)
    keys = (
        "attention/cudnn_attention",
        "attention/cudnn_packed_attention",
        "attention/cudnn_wide_attention",
        "grouped_matmul/mosaic_grouped_matmul",
    )
    calls = {
        "cudnn_attention": ('custom_call_target="__cudnn$fmha', 2),
        "cudnn_packed_attention": ('custom_call_target="__cudnn$fmha', 2),
        "cudnn_wide_attention": ('custom_call_target="__cudnn$fmha', 2),
        "mosaic_grouped_matmul": ('custom_call_target="mosaic_gpu', 3),
    }

    def cases(self, kernel):
        if kernel.op == "grouped_matmul":
            return (
                grouped("experts", (512,) * 8, num_rows=4096, width=1024, out_width=2048),
                grouped("one_group", (200,), num_rows=256, width=128, out_width=64),
                grouped("odd", (100, 0, 80), num_rows=200, width=64, out_width=192),
            )
        return self.attention_cases[kernel.name]

    attention_cases = {
        "cudnn_attention": (
            attention("documents", parts=("segments",)),
            attention("full", spec={}),
            attention("window", spec={"left": 300, "right": 0}),
            attention("width_64", width=64),
            attention("width_80", width=80),
            attention("odd", tokens=387),
        ),
        "cudnn_wide_attention": (
            attention("width_256", width=256),
            attention("value_width", width=192, value_width=128),
        ),
        "cudnn_packed_attention": (attention("packed", parts=("segments",), key_heads=4),),
    }


@pytest.mark.compile("gpu-h100-8")
@pytest.mark.parametrize("spec", [{"right": 0}, {}, {"left": 300, "right": 0}])
def test_calls_are_those_that_jax_makes(compile_devices, spec):
    case = attention("calls", spec=spec)
    inputs, spec = case.make("bfloat16")

    def by_jax(inputs):
        return jax.nn.dot_product_attention(
            *inputs[:3],
            scale=spec.scale,
            is_causal=spec.right == 0,
            local_window_size=None if spec.left is None else (spec.left, 0),
            implementation="cudnn",
        )

    def ours(inputs):
        return cudnn_attention(inputs, spec)[0]

    programs = [gradient(one, inputs, compile_devices) for one in (ours, by_jax)]
    assert cudnn_calls(programs[0]) == cudnn_calls(programs[1])


def gradient(attend, inputs, devices):
    """The compiled program of a loss's gradient."""
    one = jax.sharding.SingleDeviceSharding(devices[0])
    abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=one), inputs)

    def loss(inputs):
        return attend(inputs).astype("float32").sum()

    with jax.numpy_dtype_promotion("standard"):
        return jax.jit(jax.grad(loss)).lower(abstract).compile()


def cudnn_calls(program):
    """Name, operands, results and config of every call to cuDNN, forward and backward."""
    calls = []
    for line in program.as_text().splitlines():
        found = re.search(r'= (.*) custom-call\((.*)\), custom_call_target="(__cudnn[^"]*)"', line)
        if found:
            config = json.loads(re.search(r"backend_config=(\{.*\})", line)[1])
            operands = re.sub(r"%[\w.\-]+", "", found[2])
            calls.append((found[3], found[1], operands, told(config["cudnn_fmha_backend_config"])))
    assert len(calls) == 2
    return calls


def told(config):
    """What a config says, less the seed of a dropout that is not there and unset fields."""
    shape = config.pop("intermediate_tensor_shape")
    del config["seed"]
    order = shape["layout"]["minor_to_major"]
    return {**config, "logits": (shape["element_type"], shape["dimensions"], order)}
