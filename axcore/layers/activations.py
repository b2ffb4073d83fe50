"""Activation functions by name."""

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array

Activation = Literal["silu", "gelu", "gelu_tanh", "relu", "squared_relu"]


def activation_fn(name: Activation) -> Callable[[Array], Array]:
    """Returns the function of that name.

    Source: silu, Elfwing et al. 2017, arXiv:1702.03118; gelu, Hendrycks and Gimpel 2016,
    arXiv:1606.08415; squared_relu, So et al. 2021, arXiv:2109.08668.
    """
    functions: dict[str, Callable[[Array], Array]] = {
        "silu": jax.nn.silu,
        "gelu": lambda x: jax.nn.gelu(x, approximate=False),
        "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
        "relu": jax.nn.relu,
        "squared_relu": lambda x: jnp.square(jax.nn.relu(x)),
    }
    return functions[name]
