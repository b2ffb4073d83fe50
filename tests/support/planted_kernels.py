"""Kernels of `rms_norm` with a bug each, and one without."""

import itertools
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from axcore.ops.rms_norm.kernels import rms_norm_reference as right
from axcore.plugins import Kernel, Ref
from axcore.testing import KernelSuite

_CALLS = itertools.count()


def wrong_dtype(inputs, spec):
    return right(inputs, spec).astype(jnp.float32)


def wrong_shape(inputs, spec):
    return right(inputs, spec)[None]


def a_little_off(inputs, spec):
    return right(inputs, spec) * 1.001


def cast_down(inputs, spec):
    narrow = inputs._replace(x=inputs.x.astype(jnp.bfloat16))
    return right(narrow, spec).astype(inputs.x.dtype)


def sums_in_16_bits(inputs, spec):
    x, scale = inputs
    factor = lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + jnp.asarray(spec.epsilon, x.dtype))
    return x * factor * (spec.scale_offset + scale).astype(x.dtype)[None, None]


def no_epsilon(inputs, spec):
    return right(inputs, type(spec)(epsilon=1e-6, scale_offset=spec.scale_offset))


def no_offset(inputs, spec):
    return right(inputs, type(spec)(epsilon=spec.epsilon))


def wrong_gradient(inputs, spec):
    y = right(inputs, spec)
    return y + 0.01 * (inputs.x - lax.stop_gradient(inputs.x))


def counts_calls(inputs, spec):
    return right(inputs, spec) * (1 + 0.1 * next(_CALLS))


def infinite(inputs, spec):
    y = right(inputs, spec)
    return jnp.where(y > 1, jnp.nan, y)


def zero_by_zero(inputs, spec):
    """The gradient divides by x."""
    return right(inputs, spec) * jnp.where(inputs.x == 0, 1.0, inputs.x / inputs.x)


def no_maximum(inputs, spec):
    """A logarithm of exponentials, from which nothing is subtracted: 1000 is too much."""
    y, x = right(inputs, spec), inputs.x / 10
    return y + 1e-6 * jnp.log(jnp.exp(x) * jnp.exp(-x))


def refuses_all(call):
    return "never"


def refuses_without_a_reason(call):
    return ""


def asks_a_device(call):
    return None if jax.devices() else "there is no device"


class PlantedKernels(KernelSuite):
    plugin = "axl-planted"
    fn: ClassVar[str] = "right"
    reason: ClassVar[str | None] = None
    case_names = ("plain",)

    @classmethod
    def records(cls):
        reason = None if cls.reason is None else Ref(f"planted_kernels:{cls.reason}")
        return (
            Kernel(
                op="rms_norm",
                name="planted",
                priority=200,
                forward=Ref(f"planted_kernels:{cls.fn}"),
                is_differentiable=True,
                unsupported_reason=reason,
            ),
        )
