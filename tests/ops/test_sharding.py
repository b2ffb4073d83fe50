"""Kernels under a mesh: each op is tried once, by kernels in plain jnp that see a device's part."""

import math

import jax
import jax.numpy as jnp
import pytest
from rounding import assert_same_to_rounding

from axcore.ops.attention.blockwise import blockwise_backward, blockwise_forward
from axcore.ops.attention.contract import AttentionTestCase
from axcore.ops.contract import relative_error
from axcore.ops.cross_entropy.contract import CrossEntropyTestCase
from axcore.ops.cross_entropy.kernels import cross_entropy_portable, token_statistics_reference
from axcore.ops.decode_attention.contract import DecodeTestCase
from axcore.ops.decode_attention.kernels import decode_attention_portable
from axcore.ops.grouped_matmul.contract import GroupedMatmulTestCase
from axcore.ops.grouped_matmul.kernels import (
    grouped_matmul_portable,
    grouped_matmul_portable_backward,
)
from axcore.ops.quantized.contract import FLOAT8, INT8, QuantizedDotTestCase
from axcore.ops.quantized.kernels import emulated_matmul
from axcore.ops.quantized.quantize import MatmulSpec, Operands, QuantizedArray
from axcore.ops.rms_norm.contract import RmsNormTestCase
from axcore.ops.rms_norm.kernels import rms_norm_portable, rms_norm_portable_backward
from axcore.ops.rope.kernels import rope_portable
from axcore.parallel import ActivationSharding, make_mesh, sharding_activations
from axcore.plugins import Kernel, Ref
from axcore.testing import attention_case, grouped_matmul_case
from axcore.testing.contracts import (
    Case,
    RopeTestCase,
    contract_of,
    cross_entropy_case,
    decode_case,
    rms_norm_case,
    rope_case,
)

MESHES = ({"data": 2, "model": 2}, {"fsdp": 2, "seq": 2, "model": 2})


def cross_entropy_backward(inputs, spec, *, lse_BT, scale_BT, **_):
    """Return the gradients of a part of the vocabulary, from the whole's log-sum-exp."""

    def weighted(x_BTD, w):
        tokens = inputs._replace(x_BTD=x_BTD, w=w)
        _, own_BT, target_BT, _ = token_statistics_reference(tokens, spec)
        slope_BT = jnp.exp(jax.lax.stop_gradient(own_BT) - lse_BT)
        factor_BT = slope_BT * (1 + 2 * spec.z_loss * lse_BT)
        is_own_BT = (inputs.targets_BT >= 0).astype(jnp.float32)
        return jnp.sum(scale_BT * (factor_BT * own_BT - is_own_BT * target_BT))

    dx, dw = jax.grad(weighted, argnums=(0, 1))(inputs.x_BTD, inputs.w)
    return inputs._replace(x_BTD=dx, w=dw, targets_BT=None)


KERNELS = {
    "attention": (blockwise_forward, blockwise_backward),
    "decode_attention": (decode_attention_portable,),
    "cross_entropy": (token_statistics_reference, cross_entropy_backward),
    "rms_norm": (rms_norm_portable, rms_norm_portable_backward),
    "rope": (rope_portable,),
    "grouped_matmul": (grouped_matmul_portable, grouped_matmul_portable_backward),
    "quantized_dot": (emulated_matmul,),
}


def attention(**fields):
    return attention_case(AttentionTestCase(name="any", **{"batch": 4, **fields}), with_lse=True)


def loss(**fields):
    sizes = {"leading": (4, 6), "vocabulary": 48}
    return cross_entropy_case(CrossEntropyTestCase(name="any", **sizes, **fields))


def grouped(*group_sizes, num_rows):
    sample = GroupedMatmulTestCase(name="any", group_sizes=group_sizes, num_rows=num_rows)
    return grouped_matmul_case(sample)


def narrow(spec):
    sample = QuantizedDotTestCase(name="any", spec=spec, leading=(4, 6))
    (known, *_) = contract_of("quantized_dot").cases
    return Case(name=sample.name, make=sample.make, call=known.call, run=known.run)


EVERY_PART = ("segments", "ranges", "sinks", "offset", "dropout", "bias")
TIED = {"vocabulary_first": True, "z_loss": 0.1, "soft_cap": 3.0}
CASES = {
    "attention, causal": ("attention", attention(spec={"right": 0})),
    "attention, every part": (
        "attention",
        attention(parts=EVERY_PART, spec={"dropout_rate": 0.2, "soft_cap": 3.0}),
    ),
    "attention, bias of all rows": ("attention", attention(parts=("row_bias",))),
    "attention, heads that do not divide": ("attention", attention(key_heads=1)),
    "decode": ("decode_attention", decode_case(DecodeTestCase(name="any", lengths=(9, 0, 3, 7)))),
    "decode, pages": (
        "decode_attention",
        decode_case(DecodeTestCase(name="any", lengths=(9, 0, 3, 7), page_size=8)),
    ),
    "cross-entropy": ("cross_entropy", loss()),
    "cross-entropy, everything": ("cross_entropy", loss(spec=TIED, w_dtype="float32")),
    "norm": ("rms_norm", rms_norm_case(RmsNormTestCase(name="any", shape=(4, 6, 2, 24)))),
    "norm, no scale": (
        "rms_norm",
        rms_norm_case(RmsNormTestCase(name="any", shape=(4, 6, 24), scale_dtype=None)),
    ),
    "rope": ("rope", rope_case(RopeTestCase(name="any", batch=4, tokens=6))),
    "experts": ("grouped_matmul", grouped(5, 0, 20, 11, num_rows=40)),
    "experts, sizes beyond the rows": ("grouped_matmul", grouped(30, 30, num_rows=40)),
    "float8": ("quantized_dot", narrow(FLOAT8)),
    "int8": ("quantized_dot", narrow(INT8)),
}


def values_and_gradients(function, case):
    inputs, spec = case.make("float32")
    leaves, structure = jax.tree.flatten(inputs)
    is_float = [bool(jnp.issubdtype(x.dtype, jnp.floating)) for x in leaves]

    def loss(floats):
        given = iter(floats)
        mixed = [next(given) if one else x for one, x in zip(is_float, leaves, strict=True)]
        outputs = jax.tree.leaves(case.run(function, structure.unflatten(mixed), spec))
        weights = [jnp.cos(jnp.arange(x.size, dtype=jnp.float32)) for x in outputs]
        weighted = (jnp.sum(x.reshape(-1) * w) for x, w in zip(outputs, weights, strict=True))
        return sum(weighted), outputs

    floats = [x for one, x in zip(is_float, leaves, strict=True) if one]
    return jax.tree.leaves(jax.jit(jax.grad(loss, has_aux=True))(floats))


@pytest.mark.parametrize("sizes", MESHES, ids=["2x2", "2x2x2"])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.quick_one_in(8)
def test_parts_give_the_values_and_gradients_of_the_whole(name, sizes):
    op, case = CASES[name]
    sizes_seen = set()

    def seen(kernel):
        def run(inputs, spec, **rows):
            sizes_seen.add(jax.tree.leaves(inputs)[0].size)
            return kernel(inputs, spec, **rows)

        return run

    halves = tuple(seen(kernel) for kernel in KERNELS[op])
    backward = {"backward": Ref("a:b")} if len(halves) > 1 else {}
    record = Kernel(op=op, name="parts", priority=200, forward=Ref("a:b"), **backward)
    function = contract_of(op).function(record, halves if backward else halves[0])
    whole = values_and_gradients(function, case)
    largest = max(sizes_seen)
    sizes_seen.clear()
    mesh = make_mesh(sizes, jax.devices()[: math.prod(sizes.values())])
    with jax.set_mesh(mesh), sharding_activations(ActivationSharding(mesh)):
        parts = values_and_gradients(function, case)
    assert max(sizes_seen) < largest
    for part, one in zip(parts, whole, strict=True):
        assert relative_error(part, one) <= 2e-5


def test_a_differentiable_kernel_of_the_loss_is_split_by_tokens():
    case, (op, sizes) = loss(spec=TIED), ("cross_entropy", {"fsdp": 2, "seq": 2, "model": 2})
    record = Kernel(op=op, name="parts", priority=200, forward=Ref("a:b"), is_differentiable=True)
    function = contract_of(op).function(record, cross_entropy_portable)
    whole = values_and_gradients(cross_entropy_portable, case)
    with jax.set_mesh(make_mesh(sizes, jax.devices()[:8])):
        parts = values_and_gradients(function, case)
    for part, one in zip(parts, whole, strict=True):
        assert relative_error(part, one) <= 2e-5


def test_gradients_of_weights_are_summed_over_devices_in_float32():
    values = jnp.ones((4096, 2), "float8_e4m3fn")
    one = QuantizedArray(values, jnp.float32(1 + 2**-8))
    spec = MatmulSpec(product="weight_gradient", contracting=((0,), (0,)), dtype="float32")
    record = Kernel(op="quantized_dot", name="parts", priority=200, forward=Ref("a:b"))
    run = jax.jit(
        lambda given: contract_of("quantized_dot").function(record, emulated_matmul)(given, spec)
    )
    given = Operands(one, one)
    with jax.set_mesh(make_mesh({"data": 2, "fsdp": 2}, jax.devices()[:4])):
        assert_same_to_rounding(run(given), emulated_matmul(given, spec))


def test_a_call_inside_of_a_shard_map_has_been_split_already():
    shapes = []

    def attend(inputs, spec):
        shapes.append(inputs.q_BTNH.shape)
        return inputs.q_BTNH, inputs.q_BTNH[..., 0]

    record = Kernel(
        op="attention", name="parts", priority=200, forward=Ref("a:b"), is_differentiable=True
    )
    function = contract_of("attention").function(record, attend)
    inputs, spec = attention().make("float32")
    mesh = make_mesh({"data": 2, "model": 2}, jax.devices()[:4])
    with jax.set_mesh(mesh):
        function(inputs, spec)
        inside = jax.shard_map(
            lambda q: function(inputs._replace(q_BTNH=q), spec)[0],
            in_specs=jax.P("data"),
            out_specs=jax.P("data"),
        )
        inside(inputs.q_BTNH)
    batch, time, heads, width = inputs.q_BTNH.shape
    assert shapes == [(batch // 2, time, heads // 2, width), (batch // 2, time, heads, width)]


def test_an_array_given_twice_is_one_array_on_each_device():
    """Kernels for self-attention ask whether queries and keys have the same segments."""
    answers = []

    def attend(inputs, spec):
        answers.append(inputs.q_segments_BT is inputs.k_segments_BS)
        return inputs.q_BTNH, inputs.q_BTNH[..., 0]

    record = Kernel(
        op="attention", name="parts", priority=200, forward=Ref("a:b"), is_differentiable=True
    )
    function = contract_of("attention").function(record, attend)
    inputs, spec = attention(queries=16, keys=16, parts=("segments",)).make("float32")
    segments = inputs.q_segments_BT
    with jax.set_mesh(make_mesh({"data": 2}, jax.devices()[:2])):
        function(inputs._replace(k_segments_BS=segments), spec)
        function(inputs._replace(k_segments_BS=segments + 0), spec)
    assert answers == [True, False]
