"""Our flash attention, really compiled for H100s: code of sm_90a, whose registers suffice."""

import attrs
import jax
import jax.numpy as jnp
import ptxas
import pytest
from axl_gpu.kernels.attention.api import gpu_flash_attention, gpu_flash_attention_backward
from axl_gpu.kernels.attention.block_sizes import (
    BACKWARD_BLOCK_SIZES,
    FORWARD_BLOCK_SIZES,
    BackwardBlockSizes,
)

from axcore.ops.attention.op import attention_custom_vjp
from axcore.plugins import Hardware
from axcore.testing import AttentionTestCase, CompileSuite, attention_case
from axcore.testing.contracts import attention_backward_case


def attention(kernel, name, tokens=1024, width=128, *, with_lse=False, **fields):
    sizes = {"batch": 8, "queries": tokens, "keys": tokens, "heads": 4, "key_heads": 2}
    widths = {"width": width, "value_width": width}
    sample = AttentionTestCase(name=name, **{**sizes, **widths, "spec": {"right": 0}, **fields})
    case = attention_case if kernel.op == "attention" else attention_backward_case
    return case(sample, with_lse=with_lse)


class TestCompile(CompileSuite):
    plugin = "axl-gpu"
    keys = ("attention/gpu_flash_attention", "attention_backward/gpu_flash_attention")
    targets = ("gpu-h100-8",)
    calls = {"gpu_flash_attention": ('custom_call_target="mosaic_gpu', 1)}

    def cases(self, kernel):
        return (
            attention(kernel, "causal"),
            attention(kernel, "documents", parts=("segments",), tokens=387, width=80),
            attention(
                kernel,
                "capped",
                width=64,
                with_lse=True,
                parts=("sinks", "ranges"),
                spec={"left": 300, "right": 0, "soft_cap": 50.0},
            ),
        )


def spilled_bytes(sample, devices, capfd):
    """What threads keep in memory for want of registers, by kernel."""
    one = jax.sharding.SingleDeviceSharding(devices[0])
    inputs = jax.eval_shape(lambda: sample.make(jnp.bfloat16)[0])
    _, spec = AttentionTestCase(name="spec", spec=dict(sample.spec)).make()

    def loss(inputs):
        o, _ = attention_custom_vjp(
            inputs, spec, forward=gpu_flash_attention, backward=gpu_flash_attention_backward
        )
        return jnp.sum(o.astype(jnp.float32))

    abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=one), inputs)
    jax.jit(jax.grad(loss, allow_int=True)).lower(abstract).compile()
    return ptxas.spilled_bytes("".join(capfd.readouterr()))


CAUSAL = AttentionTestCase(
    name="causal",
    batch=2,
    queries=2048,
    keys=2048,
    heads=8,
    key_heads=2,
    width=128,
    value_width=128,
    spec={"right": 0},
)


@pytest.mark.compile("gpu-h100-8")
@pytest.mark.parametrize(
    ("changes", "most"),
    [
        ({}, 0),
        ({"parts": ("segments",)}, 0),
        ({"width": 64, "value_width": 64, "spec": {"right": 0, "soft_cap": 50.0}}, 0),
        ({"parts": ("segments",), "spec": {"right": 0, "left": 512, "soft_cap": 50.0}}, 32),
        ({"width": 256, "value_width": 256, "spec": {"right": 0, "soft_cap": 50.0}}, 128),
        ({"width": 192}, 0),
    ],
    ids=["causal", "documents", "narrow_and_capped", "capped", "wide_and_capped", "wide_keys"],
)
def test_registers_suffice(changes, most, compile_devices, capfd, monkeypatch):
    monkeypatch.setenv(ptxas.REPORTS, "1")
    spilled = spilled_bytes(attrs.evolve(CAUSAL, **changes), compile_devices, capfd)
    assert set(spilled) == {"flash_forward", "flash_query_gradients", "flash_key_gradients"}
    assert max(spilled.values()) <= most, spilled


@pytest.mark.compile("gpu-h100-8")
@pytest.mark.parametrize(("width", "most"), [(64, 0), (128, 160)], ids=["narrow", "wide"])
def test_one_kernel_for_all_gradients(width, most, compile_devices, capfd, monkeypatch):
    monkeypatch.setenv(ptxas.REPORTS, "1")
    sample = attrs.evolve(CAUSAL, width=width, value_width=width)
    with BACKWARD_BLOCK_SIZES.forced(BackwardBlockSizes(num_kernels=1)):
        spilled = spilled_bytes(sample, compile_devices, capfd)
    assert spilled.pop("flash_forward", 0) == 0  # not compiled again where another test did
    (of_all_gradients,) = spilled.values()
    assert of_all_gradients <= most


@pytest.mark.compile("gpu-h100-8")
def test_all_block_sizes_that_tuning_tries_fit(compile_devices, capfd, monkeypatch):
    monkeypatch.setenv(ptxas.REPORTS, "1")
    hardware = Hardware.parse("gpu-h100-8")
    call = attention_case(CAUSAL).abstract_call("bfloat16")
    for table in (FORWARD_BLOCK_SIZES, BACKWARD_BLOCK_SIZES):
        for block_sizes in table.candidates(call, hardware):
            with table.forced(block_sizes):
                assert not any(spilled_bytes(CAUSAL, compile_devices, capfd).values()), block_sizes
