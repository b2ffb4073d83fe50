"""Our flash attention for Hoppers: values and gradients against the op's reference.

What is around the kernels (padding, masks, meshes, residuals) is tried on every case with
plain JAX in the kernels' place. The kernels themselves are interpreted where there is no GPU, with
products alone computed by other means: see `attention_products`.
"""

import contextlib
import functools

import attrs
import jax
import jax.numpy as jnp
import pytest
from axl_gpu.kernels.attention.api import (
    SIMPLE,
    TUNED,
    Form,
    gpu_flash_attention,
    gpu_flash_attention_backward,
    packed_unsupported_reason,
    unsupported_reason,
)
from axl_gpu.kernels.attention.arrays import ForwardBlockSizes
from axl_gpu.kernels.attention.block import LOG2_E
from axl_gpu.kernels.attention.block_sizes import (
    BACKWARD_BLOCK_SIZES,
    FORWARD_BLOCK_SIZES,
    BackwardBlockSizes,
)
from axl_gpu.kernels.attention.block_sparsity import padded, spans, visibility
from axl_gpu.kernels.attention.matmuls import ARITHMETIC, TENSOR_CORES
from mosaic_interpreter import InterpretGPUParams
from rounding import assert_same_to_rounding

from axcore.errors import KernelError
from axcore.ops import AttentionInputs, AttentionSpec, KernelPolicy
from axcore.ops.attention.blockwise import blockwise_backward, blockwise_forward
from axcore.ops.attention.contract import ATTENTION_TEST_CASES
from axcore.ops.attention.mask import columns, rows, visible
from axcore.ops.attention.op import ATTENTION_OP
from axcore.ops.contract import relative_error
from axcore.ops.dispatch import choose
from axcore.plugins import Hardware
from axcore.testing import AttentionTestCase, KernelSuite, attention_case
from axcore.testing.contracts import attention_backward_case

FORWARD = "attention/gpu_flash_attention"
BACKWARD = "attention_backward/gpu_flash_attention"


def means(**params):
    """What multiplies here."""
    if jax.default_backend() == "gpu":
        return TENSOR_CORES
    return ARITHMETIC._replace(interpreter=InterpretGPUParams(**params))


class FlashAttention(KernelSuite):
    plugin = "axl-gpu"
    keys = (FORWARD, BACKWARD)
    dtypes = ("bfloat16",)
    form = TUNED

    def implementation(self, kernel):
        how = {"form": self.form, "products": means()}
        if kernel.op == "attention":
            return functools.partial(gpu_flash_attention, **how)
        return functools.partial(gpu_flash_attention_backward, **how)

    def tolerance(self, dtype):
        return 1e-2, 4e-2  # probabilities are rounded to bfloat16 before they meet anything


def call_of(arrays, choices):
    """The call that kernels' arrays describe."""
    low, high, q_segments, k_segments = arrays.seen
    inputs = AttentionInputs(
        *arrays[:3],
        k_start_BT=low,
        k_end_BT=high,
        q_segments_BT=q_segments,
        k_segments_BS=k_segments,
    )
    return inputs, AttentionSpec(scale=choices.scale, soft_cap=choices.soft_cap)


def plain_forward(arrays, spans_BQ4, sinks_N, choices, products):
    inputs, spec = call_of(arrays, choices)
    o, lse = blockwise_forward(inputs._replace(sinks_N=sinks_N), spec)
    return o, jnp.swapaxes(lse, 1, 2)


def plain_gradients(arrays, residuals, choices):
    lse, delta = (jnp.swapaxes(x, 1, 2) for x in residuals[1:])
    do = residuals.do_BTNV
    return blockwise_backward(
        *call_of(arrays, choices),
        o_BTNV=jnp.zeros_like(do),
        lse_BTN=lse / LOG2_E,
        do_BTNV=do,
        dlse_BTN=-delta,
    )


def plain_fused_gradients(arrays, residuals, spans_BL4, choices, products):
    dq, dk, dv = plain_gradients(arrays, residuals, choices)[:3]
    return dq.astype(jnp.float32) / choices.scale, dk, dv


def plain_query_gradients(arrays, residuals, spans_BQ4, choices, products):
    return plain_gradients(arrays, residuals, choices).q_BTNH


def plain_key_gradients(arrays, residuals, spans_BL4, choices, products):
    gradients = plain_gradients(arrays, residuals, choices)
    return gradients.k_BSKH, gradients.v_BSKV


@pytest.mark.quick_one_in(4)
class TestAroundTheKernels(FlashAttention):
    case_names = ("segments",)
    form = Form(plain_forward, plain_query_gradients, plain_key_gradients, plain_fused_gradients)

    def extra_cases(self, kernel):
        return extra_cases(kernel)


@pytest.mark.quick_one_in(8)
class TestAroundTheFusedKernel(TestAroundTheKernels):
    keys = (BACKWARD,)

    @pytest.fixture(autouse=True)
    def blocks(self):
        with BACKWARD_BLOCK_SIZES.forced(BackwardBlockSizes(num_kernels=1)):
            yield


@pytest.mark.slow
class TestAroundTheKernelsOnEveryCase(TestAroundTheKernels):
    case_names = None


def extra_cases(kernel):
    few = AttentionTestCase(
        name="few_documents",
        batch=1,
        heads=1,
        key_heads=1,
        parts=("segments",),
        spec={"right": 0},
    )
    wide = attrs.evolve(few, name="wide", width=192, value_width=128)
    everything = AttentionTestCase(
        name="everything_but_bias",
        batch=1,
        heads=2,
        key_heads=1,
        keys=153,
        queries=70,
        width=80,
        value_width=24,
        parts=("segments", "ranges", "sinks", "offset"),
        spec={"left": 90, "right": 2, "soft_cap": 3.0, "query_offset": 4},
    )
    sinks = AttentionTestCase(name="sinks", parts=("sinks", "ranges"))
    case = attention_case if kernel.op == "attention" else attention_backward_case
    return case(few), case(wide), case(everything), case(sinks, with_lse=True)


@contextlib.contextmanager
def small_blocks(*, num_groups, num_stages, num_kernels=2):
    """ForwardBlockSizes of 64, so that few tokens are several of them."""
    backward = BackwardBlockSizes(
        num_groups=num_groups,
        dq_stages=num_stages,
        dkv_stages=num_stages,
        num_kernels=num_kernels,
    )
    with (
        FORWARD_BLOCK_SIZES.forced(ForwardBlockSizes(64, 64, num_groups, num_stages)),
        BACKWARD_BLOCK_SIZES.forced(backward),
    ):
        yield


class Interpreted(FlashAttention):
    """The interpreter knows neither remat of a forward pass nor `shard_map`."""

    num_groups, num_stages, num_kernels = 2, 2, 2
    form = TUNED

    test_remat_changes_no_gradient = None
    test_vmap_equals_one_call_after_another = None
    test_jit_changes_nothing = None

    @pytest.fixture(autouse=True)
    def blocks(self):
        with small_blocks(
            num_groups=self.num_groups,
            num_stages=self.num_stages,
            num_kernels=self.num_kernels,
        ):
            yield


class Simple(Interpreted):
    num_groups, num_stages = 1, 1
    form = SIMPLE


@pytest.mark.quick_one_in(4)
class TestSimple(Simple):
    case_names = ("few_documents",)

    def extra_cases(self, kernel):
        return extra_cases(kernel)


@pytest.mark.slow
class TestTuned(Interpreted):
    """Three interpreted warp groups wait for each other, which takes its time."""

    case_names = ("few_documents",)

    def extra_cases(self, kernel):
        return extra_cases(kernel)


@pytest.mark.slow
class TestFused(TestTuned):
    """One kernel for all gradients, whose additions to memory are interpreted as such."""

    keys = (BACKWARD,)
    num_kernels = 1


@pytest.mark.slow
class TestSimpleOnMoreCases(TestSimple):
    case_names = ("everything_but_bias", "whole_tiles", "sinks_lse")


@pytest.mark.slow
class TestTunedOnMoreCases(TestTuned):
    case_names = ("everything_but_bias", "wide")


@pytest.mark.slow
class TestFusedOnMoreCases(TestFused):
    case_names = ("everything_but_bias", "causal", "segments", "causal_window", "width_128")


LONG = AttentionTestCase(
    name="long",
    batch=1,
    queries=120,
    keys=180,
    heads=2,
    key_heads=1,
    width=64,
    value_width=64,
    parts=("segments",),
    spec={"right": 70},
)
"""Three blocks of keys, so that slots of a ring of two are used again."""


def outputs_and_gradients(form, sample, num_kernels=2, **params):
    inputs, spec = sample.make(jnp.bfloat16)
    how = {"form": form, "products": means(**params)}
    num = 1 if form is SIMPLE else 2

    def both(inputs):
        o, lse = gpu_flash_attention(inputs, spec, **how)
        gradients = gpu_flash_attention_backward(
            inputs,
            spec,
            o_BTNV=o,
            lse_BTN=lse,
            do_BTNV=jnp.cos(o.astype(jnp.float32)).astype(o.dtype),
            dlse_BTN=jnp.zeros_like(lse),
            **how,
        )
        return o, lse, *gradients[:3]

    with small_blocks(num_groups=num, num_stages=num, num_kernels=num_kernels):
        return jax.jit(both)(inputs)


@pytest.mark.slow
def test_the_tuned_form_equals_the_simple_one_and_races_for_nothing():
    simple, tuned, fused = (
        outputs_and_gradients(
            form, LONG, num_kernels, detect_races=True, uninitialized_memory="nan"
        )
        for form, num_kernels in ((SIMPLE, 2), (TUNED, 2), (TUNED, 1))
    )
    for one, other in zip(simple, tuned, strict=True):
        assert relative_error(other, one) <= 1e-6
    for one, other in zip(simple, fused, strict=True):
        assert relative_error(other, one) <= 4e-3  # sums of queries' gradients are rounded later


@pytest.mark.slow
@pytest.mark.parametrize("num_programs", [1, 3])
def test_thread_blocks_that_share_all_work_equal_one_for_each_part_of_it(num_programs):
    inputs, spec = attrs.evolve(LONG, batch=2).make(jnp.bfloat16)  # four parts of it

    def attend(blocks):
        products = means(detect_races=True, uninitialized_memory="nan")
        with FORWARD_BLOCK_SIZES.forced(blocks):
            return jax.jit(lambda x: gpu_flash_attention(x, spec, products=products))(inputs)

    one_each = ForwardBlockSizes(64, 64, num_groups=2, num_stages=2)
    shared = attrs.evolve(one_each, num_programs=num_programs)
    assert_same_to_rounding(attend(shared), attend(one_each))


MASKS = ("causal", "segments", "lonely_segments", "ranges", "everything")


@pytest.mark.parametrize("sample", [one for one in ATTENTION_TEST_CASES if one.name in MASKS])
@pytest.mark.quick_one_in(10)
def test_spans_hold_every_visible_pair_and_whole_blocks_are_whole(sample):
    inputs, spec = sample.make()
    size, count = 16, -(-max(sample.queries, sample.keys) // 16)
    length = size * count
    seen = padded(visibility(inputs, spec), length, length)
    mask = visible(spec, rows(inputs, spec), columns(inputs))
    mask = jnp.ones((1, 1, 1, 1, 1), bool) if mask is None else mask
    shape = (sample.batch, sample.queries, sample.keys)
    mask = jnp.broadcast_to(mask[:, 0, 0], shape)
    mask = jnp.pad(mask, [(0, 0), *((0, length - n) for n in shape[1:])])
    pairs = mask.reshape(sample.batch, count, size, count, size).swapaxes(2, 3)
    any_seen, all_seen = pairs.any((3, 4)), pairs.all((3, 4))
    found = spans(seen, num_keys=length, block_q=size, block_k=size)
    for span, live, full in (
        (found.of_queries_BQ4, any_seen, all_seen),
        (found.of_keys_BL4, any_seen.swapaxes(1, 2), all_seen.swapaxes(1, 2)),
    ):
        start, full_start, full_end, end = (span[..., i][..., None] for i in range(4))
        index = jnp.arange(count)[None, None, :]
        assert bool((~live | ((index >= start) & (index < end))).all())
        assert bool((full | (index < full_start) | (index >= full_end)).all())
        assert bool(((start <= full_start) & (full_start <= full_end) & (full_end <= end)).all())
    if sample.name == "causal":  # the last of three blocks has five queries, so it is not whole
        assert found.of_queries_BQ4[0].tolist() == [[0, 1, 1, 1], [0, 0, 1, 2], [0, 3, 3, 3]]


@pytest.mark.parametrize(
    ("changes", "dtype", "reason"),
    [
        ({}, jnp.float32, "takes bfloat16 and float16, not float32"),
        ({"parts": ("bias",)}, jnp.bfloat16, "takes no bias"),
        ({"parts": ("dropout",), "spec": {"dropout_rate": 0.1}}, jnp.bfloat16, "takes no dropout"),
        ({"width": 320}, jnp.bfloat16, "takes widths up to 256, not k's 320"),
        ({"value_width": 264}, jnp.bfloat16, "takes widths up to 256, not v's 264"),
        ({"queries": 0}, jnp.bfloat16, "takes no empty array"),
        ({"keys": 0}, jnp.bfloat16, "takes no empty array"),
    ],
)
def test_what_it_cannot_do_is_refused_with_the_reason(changes, dtype, reason):
    call = attention_case(AttentionTestCase(name="refused", **changes)).abstract_call(dtype)
    assert reason in unsupported_reason(call)


@pytest.mark.parametrize(
    ("keys", "parts", "reason"),
    [
        (64, ("segments",), None),
        (63, ("segments",), "takes 64 keys or more, where a bias is larger than the queries"),
        (64, (), "takes segments, and there are none"),
    ],
)
def test_packed_documents_are_ours_where_a_bias_is_larger_than_queries(keys, parts, reason):
    sample = AttentionTestCase(name="packed", queries=keys, keys=keys, parts=parts)
    answer = packed_unsupported_reason(attention_case(sample).abstract_call(jnp.bfloat16))
    assert answer is None if reason is None else reason in answer


CUDNN, OURS = "cudnn_attention", "gpu_flash_attention"
PACKED = "gpu_packed_flash_attention"


@pytest.mark.parametrize(
    ("target", "changes", "validated", "fastest"),
    [
        ("gpu-h100-8", {}, CUDNN, CUDNN),
        ("gpu-h100-8", {"parts": ("segments",)}, PACKED, PACKED),
        ("gpu-h200-8", {"parts": ("segments",)}, PACKED, PACKED),
        ("gpu-h200-8", {"spec": {"soft_cap": 50.0, "right": 0}}, OURS, OURS),
        ("gpu-h100-8", {"parts": ("sinks", "ranges")}, OURS, OURS),
        ("gpu-a100-8", {"parts": ("segments",), "queries": 64, "keys": 64}, CUDNN, CUDNN),
    ],
)
def test_it_comes_after_cudnn_but_for_what_cudnn_cannot_do_well(
    target, changes, validated, fastest
):
    sample = AttentionTestCase(name="chosen", **{"queries": 70, "keys": 70, **changes})
    inputs, spec = sample.make(jnp.bfloat16)
    call = ATTENTION_OP.call(inputs, spec, lse=False)
    policy = KernelPolicy(hardware=Hardware.parse(target))
    assert choose(call, policy).kernel.name == validated
    assert choose(call, attrs.evolve(policy, kernel_choice="fastest")).kernel.name == fastest


def test_chips_without_its_instructions_are_refused():
    call = attention_case(AttentionTestCase(name="capped", spec={"soft_cap": 2.0})).abstract_call(
        jnp.bfloat16
    )
    with pytest.raises(KernelError, match=r"gpu_flash_attention.*wants wgmma, which gpu-b200-8"):
        choose(call, KernelPolicy(hardware=Hardware.parse("gpu-b200-8")))
