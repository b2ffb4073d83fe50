"""Cross-entropy by our Pallas kernels: interpreted against the reference, and compiled."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from axl_tpu.kernels.cross_entropy.api import (
    tpu_cross_entropy,
    tpu_cross_entropy_backward,
    unsupported_reason,
)
from axl_tpu.kernels.cross_entropy.block_sizes import BLOCK_SIZES, CrossEntropyBlockSizes
from kernel_blocks import in_blocks
from pallas_races import CAREFUL, check_no_race_was_printed

from axcore.ops import Call, CrossEntropyInputs, CrossEntropySpec, KernelPolicy, choose
from axcore.ops.contract import relative_error
from axcore.ops.cross_entropy.kernels import cross_entropy_reference
from axcore.ops.cross_entropy.op import CROSS_ENTROPY_OP, cross_entropy_custom_vjp
from axcore.parallel import make_mesh
from axcore.plugins import Hardware, Kernel, plugin_host
from axcore.testing import CompileSuite, KernelSuite
from axcore.testing.contracts import CrossEntropyTestCase, cross_entropy_case

KEYS = ("cross_entropy/tpu_cross_entropy",)
SMALL = CrossEntropyBlockSizes(rows=128, vocabulary=128)


def halves(interpret):
    both = (tpu_cross_entropy, tpu_cross_entropy_backward)
    return tuple(partial(half, interpret=interpret) for half in both)


def in_small_blocks(interpret):
    return tuple(in_blocks(BLOCK_SIZES, SMALL, half) for half in halves(interpret))


def loss_by(forward, backward):
    return partial(cross_entropy_custom_vjp, forward=forward, backward=backward)


class TestKernel(KernelSuite):
    plugin = "axl-tpu"
    keys = KEYS
    dtypes = ("float32",)
    case_names = ("plain", "everything")

    def implementation(self, kernel):
        return halves(jax.default_backend() != "tpu")


@pytest.mark.slow
class TestKernelOnEveryCase(TestKernel):
    case_names = None

    def implementation(self, kernel):
        return in_small_blocks(jax.default_backend() != "tpu")

    def extra_cases(self, kernel):
        every = {"z_loss": 0.1, "soft_cap": 3.0}
        return (
            cross_entropy_case(CrossEntropyTestCase(name="blocks", **blocks(spec=every))),
            cross_entropy_case(
                CrossEntropyTestCase(
                    name="tied_blocks", **blocks(spec={**every, "vocabulary_first": True})
                )
            ),
        )


@pytest.mark.slow
class TestKernelInBfloat16(TestKernelOnEveryCase):
    """XLA for processors lacks the product that it makes of one block and its transposition."""

    dtypes = ("bfloat16",)
    case_names = ("tied", "everything", "blocks", "tied_blocks")


def blocks(**fields):
    """Several blocks of tokens and of the vocabulary, with a rest of both."""
    return {"leading": (3, 100), "width": 40, "vocabulary": 333, **fields}


def value_and_gradients(kernel, inputs, spec):
    def loss(x, w):
        return kernel(CrossEntropyInputs(x, w, *inputs[2:]), spec).loss

    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))(*inputs[:2])


def check_equal(got, wanted, allowed):
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        assert relative_error(one, other) < allowed


@pytest.mark.slow
@pytest.mark.parametrize("vocabulary_first", [False, True])
def test_steps_do_not_race_and_padding_is_not_seen(vocabulary_first, capsys):
    spec = {"vocabulary_first": vocabulary_first, "soft_cap": 5.0}
    sample = CrossEntropyTestCase(name="careful", leading=(130,), vocabulary=150, spec=spec)
    inputs, spec = sample.make()
    got = value_and_gradients(loss_by(*in_small_blocks(CAREFUL)), inputs, spec)
    check_equal(got, value_and_gradients(cross_entropy_reference, inputs, spec), 2e-5)
    check_no_race_was_printed(capsys)


@pytest.mark.slow
def test_correct_tokens_and_z_loss_are_those_of_the_reference():
    sample = CrossEntropyTestCase(name="sums", **blocks(spec={"z_loss": 0.1}))
    inputs, spec = sample.make()
    kernel = jax.jit(lambda inputs: loss_by(*in_small_blocks(True))(inputs, spec))
    check_equal(tuple(kernel(inputs)), tuple(cross_entropy_reference(inputs, spec)), 1e-5)


@pytest.mark.parametrize("vocabulary_first", [False, True])
def test_words_split_over_devices_give_what_one_device_does(vocabulary_first):
    """Each device has some of the vocabulary, and all tokens of its row of devices."""
    spec = {"vocabulary_first": vocabulary_first, "z_loss": 0.1, "soft_cap": 3.0}
    inputs, spec = CrossEntropyTestCase(name="words", leading=(2, 6), spec=spec).make()
    (record,) = [one for one in plugin_host().records(Kernel) if one.key == KEYS[0]]
    kernel = CROSS_ENTROPY_OP.function(record, *halves(True))
    wanted = value_and_gradients(cross_entropy_reference, inputs, spec)
    with jax.set_mesh(make_mesh({"fsdp": 2, "model": 2}, jax.devices()[:4])):
        check_equal(value_and_gradients(kernel, inputs, spec), wanted, 2e-5)


@pytest.mark.slow
def test_gradient_of_a_token_that_is_nearly_certain_is_not_rounded_away():
    """Its probability is within bfloat16's precision of one, so the gradient is a small rest."""
    x = jnp.ones((16, 128), jnp.bfloat16)
    w = jnp.zeros((128, 128), jnp.bfloat16).at[3].set(0.09375)
    threes, ones = jnp.full((16,), 3, jnp.int32), jnp.ones((16,), jnp.float32)
    inputs, spec = CrossEntropyInputs(x, w, threes, ones), CrossEntropySpec(vocabulary_first=True)
    _, (dx, _) = value_and_gradients(loss_by(*halves(True)), inputs, spec)
    _, (wanted, _) = value_and_gradients(cross_entropy_reference, inputs, spec)
    assert 0 < jnp.max(jnp.abs(wanted)) < 1e-4
    assert jnp.allclose(dx.astype(jnp.float32), wanted.astype(jnp.float32), rtol=0.02, atol=0.0)


def call_of(x=(8, 64), w=(64, 100), dtype="bfloat16"):
    dtypes = (("x", dtype), ("w", "float32"), ("weights", "float32"))
    return Call(op="cross_entropy", shapes=(("x", x), ("w", w)), dtypes=dtypes)


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (call_of(dtype="float16"), "not float16"),
        (call_of(x=(0, 64)), "no empty array"),
        (call_of(x=(8, 9000), w=(9000, 100)), "widths up to 8192 of bfloat16, not 9000"),
        (call_of(x=(8, 8192), w=(8192, 100), dtype="float32"), "up to 4096 of float32"),
    ],
)
def test_what_it_cannot_do_is_refused_with_the_reason(call, reason):
    assert reason in unsupported_reason(call)


@pytest.mark.parametrize(
    ("vocabulary_size", "vocabulary"), [(32000, 640), (128256, 768), (50, 128)]
)
def test_words_are_cut_without_a_rest_where_they_can_be(vocabulary_size, vocabulary):
    fitted = CrossEntropyBlockSizes(512, 768).fitted(8192, vocabulary_size)
    assert fitted == CrossEntropyBlockSizes(512, vocabulary)


@pytest.mark.parametrize(
    ("target", "dtype", "width", "block_sizes"),
    [
        ("tpu-v5e-8", "bfloat16", 4096, (512, 768)),
        ("tpu-v5p-8", "bfloat16", 4096, (512, 512)),
        ("tpu-v5p-8", "float32", 4096, (256, 384)),
        ("tpu-v5p-8", "bfloat16", 8192, (256, 256)),
    ],
)
def test_blocks_fit_the_chip(target, dtype, width, block_sizes):
    call = call_of(x=(8192, width), w=(width, 32000), dtype=dtype)
    assert BLOCK_SIZES.entry(call, Hardware.parse(target)).block_sizes == CrossEntropyBlockSizes(
        *block_sizes
    )


@pytest.mark.parametrize(
    ("pins", "name"),
    [({}, "portable"), ({"cross_entropy": "tpu_cross_entropy"}, "tpu_cross_entropy")],
)
def test_it_serves_only_those_who_ask_for_it_and_keeps_nobody_from_the_portable_one(pins, name):
    policy = KernelPolicy(hardware=Hardware.parse("tpu-v5p-8"), pins=pins)
    call = cross_entropy_case(CrossEntropyTestCase(name="any")).abstract_call("bfloat16")
    assert choose(call, policy).kernel.name == name


class TestCompile(CompileSuite):
    plugin = "axl-tpu"
    keys = KEYS
    targets = ("tpu-v5e-8", "tpu-v5p-8", "tpu-v6e-8")
    calls = {"tpu_cross_entropy": ('custom_call_target="tpu_custom_call"', 2)}

    def cases(self, kernel):
        def case(name, leading=(8, 2048), width=4096, vocabulary=32000, **fields):
            sizes = {"leading": leading, "width": width, "vocabulary": vocabulary}
            return cross_entropy_case(
                CrossEntropyTestCase(name=name, **sizes, **{"w_dtype": "float32", **fields})
            )

        every = {"vocabulary_first": True, "z_loss": 1e-4, "soft_cap": 30.0}
        return (
            case("llama"),
            case("tied", vocabulary=50257, width=768, w_dtype=None, spec=every),
            case("wide", width=8192, vocabulary=3000),
            case("small", leading=(8, 10), width=80, vocabulary=300, w_dtype=None),
        )
