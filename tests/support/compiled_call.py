"""Calling a module in a test, compiled whole, and once for arguments of the same shapes."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from axcore.module import functional


def call_compiled(module: Any, state: Any, *args: Any, **options: Any) -> Any:
    """Returns a module's result as numpy arrays; options that are arrays are traced."""
    arrays = {name: value for name, value in options.items() if isinstance(value, jax.Array)}
    static = tuple(sorted((name, options[name]) for name in options.keys() - arrays))
    return jax.tree.map(np.asarray, _compiled(module, static)(state, args, arrays))


@functools.lru_cache(maxsize=64)
def _compiled(module: Any, static: tuple[tuple[str, Any], ...]) -> Callable[..., Any]:
    def run(state: Any, args: Any, arrays: Any) -> Any:
        return functional(module, state, *args, **dict(static), **arrays)[0]

    return jax.jit(run)
