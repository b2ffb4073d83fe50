"""The sizes of a model family, by the names that they were published under."""

from collections.abc import Mapping
from typing import Any

from axcore.config import suggest_names
from axcore.errors import ConfigError

Sizes = Mapping[str, Mapping[str, Any]]
"""Arguments of `transformer` by the name of a size. Every family has a size `toy`, for tests."""

TOY: Mapping[str, Any] = {
    "vocab_size": 264,
    "dim": 64,
    "num_layers": 2,
    "num_heads": 4,
    "num_kv_heads": 2,
    "hidden_dim": 96,
}


def of_size(family: str, sizes: Sizes, size: str) -> Mapping[str, Any]:
    """Returns the arguments of a size.

    Raises:
        ConfigError: The family has no such size.
    """
    if size not in sizes:
        raise ConfigError(
            f"{family} has no size {size!r}; {suggest_names(size, sizes)}", where=f"{family}(size)"
        )
    return sizes[size]
