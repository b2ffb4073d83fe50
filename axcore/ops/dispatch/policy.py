"""`KernelPolicy`: what decides between kernels besides the call, carried in jit's cache key.

A policy is entered around tracing. Because it is a JAX user context, a function that was compiled
under one policy is traced again under another: changing a pin never leaves a stale program.
"""

import functools
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Literal, cast

import attrs
from immutabledict import immutabledict

from axcore._jax_compat import user_context
from axcore.plugins import Hardware

KernelPreference = Literal["validated", "fastest"]
"""Which kernel serves where several can: one that has run on the chip and was timed there, if there
is any; or the first by bands and `preferred_to` alone, whether it ever ran or not.
"""


def _frozen(pins: Mapping[str, str]) -> Mapping[str, str]:
    return immutabledict(pins)


@attrs.frozen(kw_only=True)
class KernelPolicy:
    """Which hardware kernels are chosen for, and what the user asked for.

    Args:
        hardware: What the program is for, whatever this process runs on.
        pins: Kernel name by op name: that kernel or an error.
        allow: Names of portable kernels that may serve where the hardware's plugin has kernels for
            the op and none of them can.
        kernel_choice: Which kernel serves where several can.
    """

    hardware: Hardware
    pins: Mapping[str, str] = attrs.field(factory=dict, converter=_frozen)
    allow: tuple[str, ...] = attrs.field(default=(), converter=tuple)
    kernel_choice: KernelPreference = "validated"

    @classmethod
    def of(cls, cfg: Any, hardware: Hardware) -> "KernelPolicy":
        """Return what a trainer's config says of kernels, for some hardware."""
        return cls(
            hardware=hardware,
            pins=cfg.kernels.pins,
            allow=cfg.kernels.allow,
            kernel_choice=cfg.kernels.choice,
        )


_policy = user_context(None)


def use_policy(policy: KernelPolicy) -> AbstractContextManager[None]:
    """Return a context in which ops choose their kernels by `policy`."""
    return cast(AbstractContextManager[None], _policy(policy))


def current_policy() -> KernelPolicy:
    """Return the policy in force; outside of any, that of the detected hardware without pins."""
    return cast(KernelPolicy | None, _policy.value) or _default_policy()


@functools.cache
def _default_policy() -> KernelPolicy:
    return KernelPolicy(hardware=Hardware.detect())
