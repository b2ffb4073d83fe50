"""Memory that the gradients of cross-entropy take on an H100, by XLA's analysis; none is needed.

    pip install "axl-gpu[aot]"
    JAX_PLATFORMS=cpu python benchmarks/gpu_loss_memory.py

compiles them for one GPU, at the sizes of Llama 3 8B and 8192 tokens, by our kernels, by the
portable one and with full logits, and writes `results/gpu_loss_memory.json`. Nothing is run.
"""

import jax
import jax.numpy as jnp
from _record import record
from axl_gpu.compiler import devices
from jax import Array

from axcore.ops import KernelPolicy, cross_entropy, use_policy
from axcore.plugins import Hardware

TOKENS, DIM, WORDS = 8192, 4096, 128_256
TARGET = "gpu-h100-8"
KERNELS = {
    "gpu_cross_entropy": "gpu_cross_entropy",
    "portable": "portable",
    "full_logits": "reference",
}
"""The kernels that are compared, by what the results call them."""


def temporaries_gib(kernel: str) -> float:
    """Return what a program that returns the gradients takes in addition to them."""
    one = jax.sharding.SingleDeviceSharding(devices(Hardware.parse(TARGET))[0])

    def loss(x: Array, w: Array, targets: Array, weights: Array) -> Array:
        return cross_entropy(x, w, targets, weights)[0]

    shapes = ((1, TOKENS, DIM), (DIM, WORDS), (1, TOKENS), (1, TOKENS))
    dtypes = (jnp.bfloat16, jnp.bfloat16, jnp.int32, jnp.float32)
    arrays = [
        jax.ShapeDtypeStruct(shape, dtype, sharding=one)
        for shape, dtype in zip(shapes, dtypes, strict=True)
    ]
    policy = KernelPolicy(hardware=Hardware.parse(TARGET), pins={"cross_entropy": kernel})
    with use_policy(policy):
        program = jax.jit(jax.grad(loss, (0, 1))).lower(*arrays).compile()
    return round(program.memory_analysis().temp_size_in_bytes / 2**30, 3)


if __name__ == "__main__":
    figures = {
        "target": TARGET,
        "tokens_width_words": [TOKENS, DIM, WORDS],
        "logits_gib": round(4 * TOKENS * WORDS / 2**30, 3),
        "temporaries_gib": {name: temporaries_gib(kernel) for name, kernel in KERNELS.items()},
    }
    print(record("gpu_loss_memory", figures))
