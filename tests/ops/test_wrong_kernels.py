"""A kernel that returns something else than its op asks for is named, with its plugin."""

import jax
import jax.numpy as jnp
import pytest

from axcore.errors import KernelError
from axcore.ops import KernelPolicy, attention, cross_entropy, rms_norm, rope, use_policy
from axcore.ops.dispatch import op_kernels
from axcore.plugins import Hardware, Op, plugin_host

KERNELS = """
import jax.numpy as jnp
from axcore.ops import CrossEntropySums

def one_array(inputs, spec):
    return inputs[0]

def flat(inputs, spec):
    return jnp.zeros((3,)), jnp.zeros((3,))

def three(*_, **__):
    return 3

def nothing(*_, **__):
    return None

def raises(*_):
    raise ValueError("bad weather")

def forward(inputs, spec):
    q = inputs.q_BTNH
    return q, jnp.zeros(q.shape[:3], jnp.float32)

def swapped(inputs, spec):
    o, lse = forward(inputs, spec)
    return o, lse.swapaxes(1, 2)

def no_lse(inputs, spec):
    return forward(inputs, spec)[0], None

def three_results(inputs, spec):
    return (*forward(inputs, spec), 0)

def in_bfloat16(inputs, spec):
    return inputs[0].astype("bfloat16")

def other_shape(inputs, spec):
    return inputs[0].swapaxes(1, 2)

def weak(inputs, spec):
    return jnp.full(inputs[0].shape, 2.0)

def no_weight(inputs, spec):
    zero = jnp.zeros(())
    return CrossEntropySums(zero, None, zero, zero)

def one_gradient(inputs, spec, **_):
    return inputs.q_BTNH

def narrow_gradient(inputs, spec, **_):
    return inputs._replace(q_BTNH=inputs.q_BTNH[..., :1])

def no_gradient(inputs, spec, **_):
    return inputs._replace(v_BSKV=None)

def gradient_in_bfloat16(inputs, spec, **_):
    return inputs._replace(k_BSKH=inputs.k_BSKH.astype("bfloat16"))
"""

PLUGIN = """
from axcore.plugins import Kernel, Ref, hook, requires

@hook.kernels
def kernels():
    yield Kernel(op="{op}", name="odd", priority=200, {details})
"""

X = jnp.ones((1, 4, 2, 8))


def call_attention():
    return attention(X, X, X)


def call_rms_norm():
    return rms_norm(X)


def call_rope():
    return rope(X, X[:, :, 0, :4], X[:, :, 0, :4])


def call_cross_entropy():
    targets, weights = jnp.zeros((1, 4), jnp.int32), jnp.ones((1, 4))
    return cross_entropy(jnp.ones((1, 4, 8)), jnp.ones((8, 5)), targets, weights)


def gradient_of_attention():
    return jax.grad(lambda q: attention(q, X, X).sum())(X)


@pytest.fixture
def brought(make_dist):
    def bring(op, details):
        source = PLUGIN.format(op=op, details=details)
        make_dist("axl-acme", source, files={"code.py": KERNELS})
        return use_policy(KernelPolicy(hardware=Hardware.parse("cpu-1"), pins={op: "odd"}))

    return bring


def own(function):
    return f'forward=Ref("axl_acme.code:{function}"), is_differentiable=True'


def halves(function):
    return (
        f'forward=Ref("axl_acme.code:forward"), backward=Ref("axl_acme.code:{function}"), '
        "is_differentiable=False"
    )


O_AND_LSE = "expected (float32[1,4,2,8], float32[1,4,2])"


@pytest.mark.parametrize(
    ("op", "details", "call", "text"),
    [
        (
            "attention",
            own("one_array"),
            call_attention,
            f"the result is float32[1,4,2,8]; {O_AND_LSE}",
        ),
        (
            "attention",
            own("flat"),
            call_attention,
            "o_BTNV is float32[3]; expected float32[1,4,2,8]; lse_BTN is float32[3]; expected",
        ),
        ("attention", own("three"), call_attention, f"the result is 3; {O_AND_LSE}"),
        ("attention", own("nothing"), call_attention, f"the result is None; {O_AND_LSE}"),
        ("attention", own("three_results"), call_attention, "float32[1,4,2], 0); expected"),
        ("attention", own("no_lse"), call_attention, "lse_BTN is missing; expected float32[1,4,2]"),
        (
            "attention",
            own("swapped"),
            call_attention,
            "lse_BTN is float32[1,2,4]; expected float32[1,4,2]",
        ),
        (
            "rms_norm",
            own("flat"),
            call_rms_norm,
            "y is (float32[3], float32[3]); expected float32[1,4,2,8]",
        ),
        (
            "rms_norm",
            own("in_bfloat16"),
            call_rms_norm,
            "y is bfloat16[1,4,2,8]; expected float32[1,4,2,8]",
        ),
        ("rms_norm", own("nothing"), call_rms_norm, "y is missing; expected float32[1,4,2,8]"),
        (
            "rope",
            own("other_shape"),
            call_rope,
            "y_BTNH is float32[1,2,4,8]; expected float32[1,4,2,8]",
        ),
        (
            "cross_entropy",
            own("one_array"),
            call_cross_entropy,
            "expected CrossEntropySums(loss=float32[]",
        ),
        (
            "cross_entropy",
            own("no_weight"),
            call_cross_entropy,
            "weight is missing; expected float32[]",
        ),
        ("attention", halves("one_gradient"), gradient_of_attention, "expected AttentionInputs(q"),
        (
            "attention",
            halves("narrow_gradient"),
            gradient_of_attention,
            "the gradient of q_BTNH is float32[1,4,2,1]; expected float32[1,4,2,8]",
        ),
        (
            "attention",
            halves("no_gradient"),
            gradient_of_attention,
            "the gradient of v_BSKV is missing; expected float32[1,4,2,8]",
        ),
        (
            "attention",
            halves("gradient_in_bfloat16"),
            gradient_of_attention,
            "the gradient of k_BSKH is bfloat16[1,4,2,8]; expected float32[1,4,2,8]",
        ),
    ],
)
def test_kernel_is_named_with_what_it_returned_and_what_was_expected(
    brought, op, details, call, text
):
    with brought(op, details), pytest.raises(KernelError) as raised:
        call()
    assert f"the kernel '{op}" in raised.value.what
    assert "/odd' of plugin 'axl-acme' (axl_acme.code:" in raised.value.what
    assert text in raised.value.what
    assert f"--set \"kernels.pins={{'{op}" in raised.value.hint
    assert "': 'portable'}\"" in raised.value.hint
    assert ("cast it in the kernel: .astype('float32')" in raised.value.hint) == (
        "bfloat16" in text
    )


def test_a_run_continues_without_the_kernel_by_the_pin_of_the_hint(brought):
    with brought("rms_norm", own("in_bfloat16")), pytest.raises(KernelError) as raised:
        call_rms_norm()
    assert 'KernelPolicy(pins={"rms_norm": "portable"})' in raised.value.hint
    policy = KernelPolicy(hardware=Hardware.parse("cpu-1"), pins={"rms_norm": "portable"})
    with use_policy(policy):
        assert call_rms_norm().shape == X.shape


def test_a_result_of_a_weak_dtype_keeps_its_dtype(brought):
    with brought("rms_norm", own("weak")):
        assert not jax.typeof(call_rms_norm()).weak_type


def references():
    return [
        pytest.param(op.contract.resolve(), kernel, id=op.name)
        for op in plugin_host().records(Op)
        for kernel in op_kernels(op.name)
        if op.contract is not None and kernel.band == "reference"
    ]


@pytest.mark.parametrize(("contract", "kernel"), references())
def test_an_op_asks_kernels_for_what_its_reference_returns(contract, kernel):
    function = contract.op.function(kernel, contract.reference)
    for case in contract.cases:
        for dtype in ("float32", "bfloat16"):
            jax.eval_shape(lambda: case.run(function, *case.make(dtype)))  # noqa: B023
