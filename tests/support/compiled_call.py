"""Calling a module in a test, compiled whole, and once for arguments of the same shapes."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from axcore.module import functional


def call_compiled(module: Any, state: Any, *args: Any, **options: Any) -> Any:
    """Returns a module's result as numpy arrays."""
    run = _compiled(module, tuple(sorted(options.items())))
    return jax.tree.map(np.asarray, run(state, args))


@functools.lru_cache(maxsize=64)
def _compiled(module: Any, options: tuple[tuple[str, Any], ...]) -> Callable[..., Any]:
    return jax.jit(lambda state, args: functional(module, state, *args, **dict(options))[0])
