"""Soft caps on attention's logits: a field of the core's own attention, so no layer of its own."""

from typing import Any

from axcore.config import evolve
from axcore.errors import ConfigError


def in_place_of(old: Any) -> Any:
    """Return the attention with its logits capped at 50, by `50 * tanh(logits / 50)`.

    Source: Gemma Team 2024, arXiv:2408.00118, section 2.

    Raises:
        ConfigError: Its logits are capped already.
    """
    if old.soft_cap is not None:
        raise ConfigError(
            f"soft_cap is {old.soft_cap} already", hint="set another value: **.core.soft_cap=..."
        )
    return evolve(old, soft_cap=50.0)
