"""A kernel that returns something else than its op asks for is named, with its plugin."""

import jax
import jax.numpy as jnp
import pytest

from axcore.errors import PluginError
from axcore.ops import KernelPolicy, attention, cross_entropy, rms_norm, use_policy
from axcore.plugins import Hardware

KERNELS = """
import jax.numpy as jnp

def one_array(inputs, spec):
    return inputs[0]

def flat(inputs, spec):
    return jnp.zeros((3,)), jnp.zeros((3,))

def three(*_, **__):
    return 3

def raises(*_):
    raise ValueError("bad weather")

def forward(inputs, spec):
    q = inputs.q_BTNH
    return q, jnp.zeros(q.shape[:3], jnp.float32)

def one_gradient(inputs, spec, **_):
    return inputs.q_BTNH

def narrow_gradient(inputs, spec, **_):
    return inputs._replace(q_BTNH=inputs.q_BTNH[..., :1])
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


@pytest.mark.parametrize(
    ("op", "details", "call", "text"),
    [
        (
            "attention",
            own("one_array"),
            call_attention,
            "returned float32[1,4,2,8]; expected (4-d, 3-d)",
        ),
        ("attention", own("flat"), call_attention, "returned (float32[3], float32[3]); expected ("),
        ("attention", own("three"), call_attention, "returned 3; expected (4-d, 3-d)"),
        ("rms_norm", own("flat"), call_rms_norm, "expected 4-d"),
        (
            "cross_entropy",
            own("one_array"),
            call_cross_entropy,
            "expected CrossEntropySums(loss=0-d",
        ),
        ("attention", halves("one_gradient"), gradient_of_attention, "expected AttentionInputs(q"),
        ("attention", halves("narrow_gradient"), gradient_of_attention, "q_BTNH=float32[1,4,2,1]"),
    ],
)
def test_kernel_is_named_with_what_it_returned_and_what_was_expected(
    brought, op, details, call, text
):
    with brought(op, details), pytest.raises(PluginError) as raised:
        call()
    assert f"of kernel '{op}" in raised.value.what
    assert "/odd' of plugin 'axl-acme', returned" in raised.value.what
    assert text in raised.value.what
    assert "set AXCORE_BLOCK=axl-acme" in (raised.value.hint or "")


def test_exception_of_a_kernel_gains_a_note(brought):
    with brought("attention", own("raises")), pytest.raises(ValueError, match="bad wea") as raised:
        call_attention()
    notes = "\n".join(raised.value.__notes__)
    assert "axl_acme.code:raises, the `forward` of kernel 'attention/odd' of plugin 'axl-a" in notes
