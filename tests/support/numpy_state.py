"""First states of modules, by numpy: nothing is compiled to make them."""

from typing import Any

import jax
import numpy as np

from axcore.module import ConstantInit, ParamSpec


def numpy_state(specs: Any) -> Any:
    """Returns a state of some specs in which no norm is one and no bias zero."""
    generator = np.random.default_rng(1)

    def sample(spec: ParamSpec) -> np.ndarray:
        is_constant = isinstance(spec.init, ConstantInit)
        first = spec.init.value if is_constant else 0.0
        spread = 0.05 if is_constant else spec.fans[0] ** -0.5
        numbers = first + spread * generator.normal(size=spec.shape)
        return np.asarray(numbers, spec.abstract.dtype)

    return jax.tree.map(sample, specs, is_leaf=lambda leaf: isinstance(leaf, ParamSpec))
