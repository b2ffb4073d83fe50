"""What the chip runs: a kernel of the cross-entropy op, and a norm."""

import jax.numpy as jnp
from jax.nn import logsumexp

from axcore.config import REQUIRED, config
from axcore.module import Module
from axcore.ops import CrossEntropySums


def detect(platform, device_kind):
    return "x1" if platform == "cpu" else None


def flags(hardware):
    return {"--xla_force_host_platform_device_count": str(hardware.num_devices)}


def unsupported_reason(call):
    is_plain = not (call.feature("z_loss") or call.feature("soft_cap"))
    return None if is_plain else "takes no z_loss or soft_cap"


def loss(inputs, spec):
    x, w, targets, weights = inputs
    logits = (x @ (w.T if spec.vocabulary_first else w)).astype(jnp.float32)
    target = jnp.take_along_axis(logits, targets[..., None], -1)[..., 0]
    correct = weights * (logits.argmax(-1) == targets)
    total = jnp.sum(weights * (logsumexp(logits, -1) - target))
    return CrossEntropySums(total, weights.sum(), jnp.float32(0), correct.sum())


class ExampleNorm(Module):
    @config
    class Config(Module.Config):
        dim: int = REQUIRED

    def forward(self, x):
        return (x / jnp.sqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)).astype(x.dtype)
