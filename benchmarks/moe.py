"""A mixture of experts on a CPU: time per token at equal work per token, and more experts.

    python benchmarks/moe.py

Goal: with 64 experts at most 1.3 times that with 8, forward and backward.
"""

from typing import Any

from axcore.hardware.host_memory import keep_freed_memory

keep_freed_memory()  # as `axcore` does where JAX_PLATFORMS is cpu

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from _race import race, ratios  # noqa: E402
from _record import record  # noqa: E402

from axcore.layers import FeedForward, MoE  # noqa: E402
from axcore.module import functional  # noqa: E402

ROWS, TIME, DIM, HIDDEN, TOP_K = 8, 1024, 256, 512, 2
NUM_EXPERTS = (8, 16, 32, 64)


def layer(num_experts: int) -> Any:
    expert = FeedForward.Config(hidden_dim=HIDDEN)
    return MoE.Config(dim=DIM, expert=expert, num_experts=num_experts, top_k=TOP_K).build()


def forward(module: Any, state: Any, x: Any) -> Any:
    return functional(module, state, x)[0]


def gradients(module: Any, state: Any, x: Any) -> Any:
    def loss(state: Any, x: Any) -> Any:
        y, outputs = functional(module, state, x, training=True)
        return jnp.sum(jnp.square(y)) + outputs.total_loss()

    return jax.grad(loss, argnums=(0, 1))(state, x)


def raced(run: Any, modules: dict[str, Any], states: dict[str, Any], x: Any) -> dict[str, Any]:
    """Return times of all, and those of the most experts over those of the fewest."""

    def rival(name: str) -> Any:
        return lambda states, x: run(modules[name], states[name], x)

    times = race({name: rival(name) for name in modules}, states, x)
    fewest, *_, most = modules
    return {"times": times, "growth": ratios(times, ours=most, rival=fewest)}


def measure() -> dict[str, Any]:
    x = jnp.asarray(np.random.default_rng(0).standard_normal((ROWS, TIME, DIM)), jnp.float32)
    modules = {f"{count}_experts": layer(count) for count in NUM_EXPERTS}
    states = {name: jax.jit(module.init)(jax.random.key(0)) for name, module in modules.items()}
    return {
        "tokens": ROWS * TIME,
        "dim_hidden_top_k": [DIM, HIDDEN, TOP_K],
        "forward": raced(forward, modules, states, x),
        "forward_and_backward": raced(gradients, modules, states, x),
    }


if __name__ == "__main__":
    print(record("moe", measure()))
