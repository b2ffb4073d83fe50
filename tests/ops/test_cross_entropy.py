"""Portable cross-entropy means what the reference means, and never holds all logits."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from axcore.errors import KernelError
from axcore.ops import cross_entropy, cross_entropy_sums
from axcore.ops.contract import TOLERANCES, relative_error
from axcore.ops.cross_entropy import kernels
from axcore.ops.cross_entropy.contract import CROSS_ENTROPY_TEST_CASES
from axcore.ops.cross_entropy.kernels import cross_entropy_portable, cross_entropy_reference

SAMPLES = {sample.name: sample for sample in CROSS_ENTROPY_TEST_CASES}
CASES = [(name, "float32") for name in SAMPLES] + [("plain", "bfloat16"), ("tied", "bfloat16")]
CASES += [("wide_projection", "bfloat16")]


def run(function, inputs, spec):
    """Return the sums, and the gradients of three times the loss to x, w and the weights."""

    def loss(x, w, weights):
        sums = function(inputs._replace(x_BTD=x, w=w, weights_BT=weights), spec)
        return 3.0 * sums.loss, sums

    step = jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)
    (_, sums), gradients = jax.jit(step)(inputs.x_BTD, inputs.w, inputs.weights_BT)
    return sums, gradients


@pytest.mark.parametrize("max_chunks", [1, 2, 5])
@pytest.mark.parametrize(("name", "dtype"), CASES)
@pytest.mark.quick_one_in(8)
def test_any_number_of_chunks_equals_the_reference(monkeypatch, name, dtype, max_chunks):
    monkeypatch.setattr(kernels, "CHUNK_BYTES", 1)
    monkeypatch.setattr(kernels, "MAX_CHUNKS", max_chunks)
    inputs, spec = SAMPLES[name].make(dtype)
    sums, gradients = run(cross_entropy_reference, inputs, spec)
    got_sums, got_gradients = run(cross_entropy_portable, inputs, spec)
    for got, want in zip(got_sums, sums, strict=True):
        assert got.dtype == jnp.float32
        assert got.shape == ()
        assert relative_error(got, want) <= TOLERANCES[dtype].forward
    for got, want in zip(got_gradients, gradients, strict=True):
        assert got.dtype == want.dtype
        assert relative_error(got, want) <= TOLERANCES[dtype].backward


def test_loss_without_gradient_equals_loss_with_gradient():
    inputs, spec = SAMPLES["everything"].make()
    forward = jax.jit(partial(cross_entropy_portable, spec=spec))
    assert (
        relative_error(forward(inputs).loss, run(cross_entropy_portable, inputs, spec)[0].loss)
        < 1e-6
    )


def test_uniform_logits_cost_log_of_the_vocabulary():
    x, w = jnp.ones((2, 5, 4)), jnp.zeros((4, 32))
    weights = jnp.asarray([[1.0, 1.0, 0.5, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0, 0.0]])
    loss, weight = cross_entropy(x, w, jnp.zeros((2, 5), jnp.int32), weights)
    assert float(weight) == 3.5
    assert float(loss / weight) == pytest.approx(np.log(32.0), rel=1e-6)


def test_tokens_without_weight_change_nothing():
    inputs, spec = SAMPLES["plain"].make()
    dead = inputs.weights_BT == 0
    assert dead.any()
    moved = inputs._replace(
        x_BTD=jnp.where(dead[..., None], 100.0, inputs.x_BTD),
        targets_BT=jnp.where(dead, 0, inputs.targets_BT),
    )
    (sums, gradients), (other, other_gradients) = (
        run(cross_entropy_portable, one, spec) for one in (inputs, moved)
    )
    assert float(sums.loss) == pytest.approx(float(other.loss), rel=1e-6)
    assert relative_error(other_gradients[1], gradients[1]) <= 1e-6
    assert not other_gradients[0][dead].any()


def test_correct_counts_weighted_hits():
    x = jnp.eye(4)[None]
    targets = jnp.asarray([[0, 1, 3, 3]])
    weights = jnp.asarray([[1.0, 0.5, 1.0, 1.0]])
    sums = cross_entropy_sums(x, jnp.eye(4) * 5.0, targets, weights)
    assert float(sums.correct) == 2.5


def test_large_logits_stay_finite():
    inputs, spec = SAMPLES["plain"].make()
    sums, gradients = run(cross_entropy_portable, inputs._replace(x_BTD=inputs.x_BTD * 1e6), spec)
    assert all(jnp.isfinite(x).all() for x in (*sums, *gradients))


def compiled_step(function, batch, time, width, vocabulary):
    def loss(x, w, targets):
        return function(x, w, targets)

    shapes = [((batch, time, width), jnp.float32), ((width, vocabulary), jnp.float32)]
    arguments = [jax.ShapeDtypeStruct(*s) for s in (*shapes, ((batch, time), jnp.int32))]
    step = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))
    return step.lower(*arguments).compile()


def ours(x, w, targets):
    return cross_entropy(x, w, targets, jnp.ones(targets.shape))[0]


def full_logits(x, w, targets):
    log_probabilities = jax.nn.log_softmax(x @ w)
    return -jnp.sum(jnp.take_along_axis(log_probabilities, targets[..., None], axis=-1))


@pytest.mark.parametrize("sizes", [(4, 64, 16, 256), (2, 4096, 16, 16384)])
def test_whole_logits_are_nowhere_in_the_program(sizes):
    batch, time, _, vocabulary = sizes
    whole = re.compile(rf"\[({batch},{time}|{batch * time}),{vocabulary}\]")
    assert whole.search(compiled_step(full_logits, *sizes).as_text())
    assert not whole.search(compiled_step(ours, *sizes).as_text())


def test_large_vocabulary_needs_a_tenth_of_the_memory_of_full_logits():
    sizes = (2, 4096, 16, 16384)
    temporaries = [
        compiled_step(function, *sizes).memory_analysis().temp_size_in_bytes
        for function in (ours, full_logits)
    ]
    assert 10 * temporaries[0] <= temporaries[1]


def test_small_logits_cost_the_flops_of_plain_softmax():
    flops = [
        compiled_step(function, 4, 64, 64, 256).cost_analysis()["flops"]
        for function in (ours, full_logits)
    ]
    assert flops[0] <= 1.02 * flops[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x_BTD": jnp.ones((8,))}, r"x has shape \(8,\) and w \(8, 50\); expected \[..., T, D\]"),
        ({"w": jnp.ones((50, 8))}, r"width 8 and w has shape \(50, 8\), read as \[D, V\]"),
        ({"targets_BT": jnp.ones((3, 18), jnp.int32)}, r"targets have shape \(3, 18\)"),
        ({"w": jnp.ones((8, 50), jnp.bfloat16)}, r"x float32 and w bfloat16; expected one"),
        ({"targets_BT": jnp.ones((3, 19))}, r"targets are float32; expected integers"),
        ({"weights_BT": jnp.ones((3, 19), jnp.int32)}, r"weights are int32; expected floating"),
    ],
)
def test_misfits_are_named(change, message):
    inputs, _ = SAMPLES["plain"].make()
    with pytest.raises(KernelError, match=message):
        cross_entropy(*inputs._replace(**change))


@pytest.mark.parametrize(
    "choice", [{"z_loss": -1.0}, {"soft_cap": 0.0}, {"soft_cap": float("nan")}]
)
def test_numbers_out_of_range_are_named(choice):
    inputs, _ = SAMPLES["plain"].make()
    with pytest.raises(KernelError, match=rf"{next(iter(choice))} is .*; expected a"):
        cross_entropy(*inputs, **choice)
