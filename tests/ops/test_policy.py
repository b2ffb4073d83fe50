"""Policies are part of what jit caches on, and what was chosen is on record."""

import json

import attrs
import jax
import jax.numpy as jnp
import pytest

from axcore.errors import KernelError
from axcore.ops import (
    ATTENTION_OP,
    KernelPlan,
    KernelPolicy,
    attention,
    cross_entropy,
    current_policy,
    recording_choices,
    use_policy,
)
from axcore.ops.attention.contract import ATTENTION_TEST_CASES
from axcore.ops.contract import relative_error
from axcore.plugins import Hardware

CPU = Hardware(family="cpu")
Q = jnp.sin(jnp.arange(2 * 6 * 2 * 4.0)).reshape(2, 6, 2, 4)


def pinned(**pins):
    return KernelPolicy(hardware=CPU, pins=pins)


def test_changing_a_pin_never_leaves_a_stale_program():
    num_traces = 0

    @jax.jit
    def attend(q):
        nonlocal num_traces
        num_traces += 1
        return attention(q, q, q, causal=True)

    def program(policy):
        with use_policy(policy):
            return str(jax.make_jaxpr(attend)(Q)), attend(Q)

    portable, from_portable = program(pinned(attention="portable"))
    reference, from_reference = program(pinned(attention="reference"))
    assert "custom_vjp" in portable
    assert "custom_vjp" not in reference
    assert relative_error(from_portable, from_reference) <= 1e-6
    traces = num_traces
    assert program(pinned(attention="portable"))[0] == portable
    assert num_traces == traces


def test_equal_policies_share_a_program():
    num_traces = 0

    @jax.jit
    def attend(q):
        nonlocal num_traces
        num_traces += 1
        return attention(q, q, q)

    for _ in range(3):
        with use_policy(KernelPolicy(hardware=CPU, pins={"attention": "portable"})):
            attend(Q)
    assert num_traces == 1


def test_unknown_pin_fails_inside_jit_and_leaves_no_trace():
    attend = jax.jit(lambda q: attention(q, q, q))
    with (
        use_policy(pinned(attention="flash")),
        pytest.raises(KernelError, match="pinned to 'flash', which is not a kernel of it"),
    ):
        attend(Q)
    assert attend(Q).shape == Q.shape


def test_policy_outside_of_any_is_that_of_this_machine():
    assert current_policy().hardware.family == "cpu"
    with use_policy(pinned(attention="reference")):
        assert current_policy().pins == {"attention": "reference"}
    assert not current_policy().pins


@pytest.mark.slow
def test_plan_holds_what_was_chosen_under_the_policy_and_why():
    policy = pinned(cross_entropy="reference")
    with use_policy(policy), recording_choices() as choices:
        attention(Q, Q, Q, causal=True)
        attention(Q, Q, Q, causal=True)
        cross_entropy(Q[:, :, 0], jnp.ones((4, 7)), jnp.zeros((2, 6), int), jnp.ones((2, 6)))
    attention(Q, Q, Q)  # recorded by nobody
    plan = KernelPlan.of(choices)
    assert len(choices) == 3
    assert len(plan.choices) == 2
    assert str(plan).splitlines()[-1] == "cross_entropy: reference (core), pinned, on cpu-1"
    by_op = {one["op"]: one for one in json.loads(plan.to_json())}
    assert by_op["attention"]["kernel"] == "portable"
    assert by_op["attention"]["hardware"] == "cpu-1"
    assert "q float32[2,6,2,4]" in by_op["attention"]["call"]
    assert by_op["cross_entropy"]["why"] == "pinned"


def test_forward_only_kernel_gets_its_gradient_from_a_kernel_of_its_own():
    policy = pinned(attention="blockwise", attention_backward="portable")

    def loss(q):
        return jnp.sum(jnp.sin(attention(q, q, q, causal=True)))

    with use_policy(policy), recording_choices() as choices:
        gradient = jax.jit(jax.grad(loss))(Q)
    ops = {one.call.op: one.kernel.name for one in choices}
    with use_policy(pinned(attention="reference")):
        expected = jax.jit(jax.grad(loss))(Q)
    assert ops == {"attention": "blockwise", "attention_backward": "portable"}
    assert relative_error(gradient, expected) <= 1e-5


def test_backward_pin_that_would_be_ignored_is_refused():
    with (
        use_policy(pinned(attention="portable", attention_backward="portable")),
        pytest.raises(KernelError, match="portable, which brings its own gradient"),
    ):
        attention(Q, Q, Q)


@pytest.mark.parametrize("sample", ATTENTION_TEST_CASES[-1:] + ATTENTION_TEST_CASES[:1])
def test_abstract_call_gives_back_its_parts(sample):
    inputs, spec = sample.make()
    call = ATTENTION_OP.call(inputs, spec, lse=True)
    abstract, same_spec = ATTENTION_OP.parts(call)
    assert same_spec == spec
    assert call.feature("lse") is True
    for array, part in zip(inputs, abstract, strict=True):
        described = None if array is None else (array.shape, array.dtype)
        assert described == (None if part is None else (part.shape, part.dtype))


def test_policies_compare_by_value():
    assert pinned(attention="portable") == pinned(attention="portable")
    assert hash(pinned(attention="portable")) == hash(pinned(attention="portable"))
    assert pinned() != attrs.evolve(pinned(), allow=("portable",))
